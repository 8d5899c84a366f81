"""Delta tables: changes from the change data feed, look-ups in a version's files."""
