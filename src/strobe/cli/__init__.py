"""The command line: one small module for each group of commands, `main` puts them together."""
