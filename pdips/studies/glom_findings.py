from pdips.studies.framework import Finding
def glom_findings(table, curves): return []
