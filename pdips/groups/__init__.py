"""Group sums: mixed models with very many groups, from noisy numbers of each group's
records and of their values.
"""
