"""The HTML pages of a release: a privacy card for users outside, a report for its
curator.
"""
