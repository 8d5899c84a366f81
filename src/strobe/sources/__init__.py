"""Sources: for each kind of database a monitor that reports its transactions and an answerer of queries."""
