"""Runtime: runs the boxes live, with threads, clocks, retries and recovery."""
