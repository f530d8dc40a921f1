"""A gallery of models of other people's galleries, each from its source's text to a
private posterior.
"""
