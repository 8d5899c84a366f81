"""Files that newer drops replace: what differs between two drops is one transaction."""
