"""Faults as a test programme: every call of the system that a release makes fails in
turn, and every run must end in one of four ways (``docs/testing.md``, "Faults").
"""
