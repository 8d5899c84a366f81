"""What a coordinator keeps beside its tables: lock, heartbeat, requests and notes."""
