"""What the algorithms cost (ECA paper, 6 and D): messages, bytes and I/O, measured by running them."""
