"""Scores: any PyMC model, its records' clipped scores sanitized, and a posterior that
knows the noise.
"""
