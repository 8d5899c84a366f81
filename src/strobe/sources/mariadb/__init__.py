"""MariaDB and MySQL: changes from the binlog, look-ups in consistent snapshots."""
