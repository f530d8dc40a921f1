"""Models as people write them, converted to models of confidential columns."""
