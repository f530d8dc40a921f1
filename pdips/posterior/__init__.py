"""Synthesis from a posterior with bounded likelihoods."""
