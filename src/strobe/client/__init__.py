"""What other processes ask of a warehouse and of its coordinator."""
