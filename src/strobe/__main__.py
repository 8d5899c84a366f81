"""`python -m strobe` is the command `strobe`."""

from __future__ import annotations

import sys

from strobe.cli.main import main

sys.exit(main())
