"""PostgreSQL: changes by logical replication, look-ups in snapshots that say which transactions they have seen."""
