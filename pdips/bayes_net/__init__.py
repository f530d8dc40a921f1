"""PrivBayes."""
