"""The warehouse: the log of commits and its views, as Delta tables."""
