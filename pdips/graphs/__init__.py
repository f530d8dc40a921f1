"""Graphs of a model of one record, repeated for many."""
