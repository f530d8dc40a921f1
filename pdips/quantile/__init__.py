"""Quantile regression and synthesis column by column."""
