"""The commands, by what they do."""
