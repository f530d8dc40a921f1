"""Synthesis from noisy statistics."""
