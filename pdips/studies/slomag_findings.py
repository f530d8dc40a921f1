from pdips.studies.framework import Finding
def slomag_findings(table, curves): return []
