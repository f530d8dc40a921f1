"""All pairs of columns with noise, and the random fields that fit them."""
