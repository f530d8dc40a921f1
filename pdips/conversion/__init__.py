"""Models as people write them, formulas too, turned into models of one record."""
