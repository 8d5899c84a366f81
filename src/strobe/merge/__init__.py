"""Merge: the painting algorithm over the view-update table, which makes the views mutually consistent."""
