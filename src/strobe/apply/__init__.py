"""Views that come, change and go while the others are kept."""
