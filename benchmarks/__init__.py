"""Measures what Strobe costs, side by side with recomputing, in one run."""
