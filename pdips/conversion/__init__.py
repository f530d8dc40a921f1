"""Models as people write them, ``make(df)``, turned into models of one record."""
