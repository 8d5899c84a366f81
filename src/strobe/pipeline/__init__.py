"""One run: threads around the pure boxes, from the last header to the reason why it ended."""
