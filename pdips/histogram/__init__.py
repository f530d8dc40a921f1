"""Mechanisms on the counts of all cells."""
