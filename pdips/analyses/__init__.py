"""Analyses that are named before a release, and answered beside its sets."""
