"""Models as people write them, formulas among them, turned into models of one record."""
