"""PostgreSQL: changes by logical replication, look-ups in exported snapshots."""
