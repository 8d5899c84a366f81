"""From a project to what is run: sources opened, views compiled, algorithms and levels chosen."""
