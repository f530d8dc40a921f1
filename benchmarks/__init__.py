"""Measurements that the documentation quotes: ``python -m benchmarks`` prints
them all.
"""
