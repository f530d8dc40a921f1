PROPORTIONS_TEXT=""
def proportion_findings(table, curves): return []
