PROPORTIONS_TEXT=""
def proportion_findings(table, curves): return []
NORMAL_TEXT=""
def normal_findings(table, curves): return []
