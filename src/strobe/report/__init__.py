"""Documents for people and programs: what the command line, the Python interface and a console show."""
