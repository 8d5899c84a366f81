"""SQLite: changes through triggers into a log table, look-ups in read transactions."""
