"""The binlog as bytes: its protocol, events, rows and statements."""
