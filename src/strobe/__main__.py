"""`python -m strobe` is the command `strobe`."""

from __future__ import annotations

from strobe.cli.main import entry

entry()
