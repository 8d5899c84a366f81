"""What a JVM and the processes that it starts print, on its way into a log: without secrets and control characters.

It comes through a pipe, which a thread of this process empties line by line. When this process ends, so does the JVM,
and what it prints then is not needed any more.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from strobe.data.private import append_to
from strobe.redaction import printable, redact

LONGEST = 1 << 20
"""Bytes of a line: a longer one is taken apart."""


class RedactedLog:
    """Appends what is written to `stream` to a log."""

    def __init__(self, path: Path) -> None:
        """The log is this user's alone, if it is made now."""
        self._log = os.fdopen(append_to(path), "ab", buffering=0)
        self.begin = os.fstat(self._log.fileno()).st_size
        """Where in the log what comes is."""
        reading, self.stream = os.pipe()
        self._lines = os.fdopen(reading, "rb")
        self._thread = threading.Thread(target=self._copy, name="spark-log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Nothing more comes from this process. Others may hold the stream: it ends when the last of them does."""
        stream, self.stream = self.stream, -1
        if stream >= 0:
            os.close(stream)

    def join(self, seconds: float) -> None:
        """Wait for the end of what others write."""
        self._thread.join(seconds)

    def _copy(self) -> None:
        with self._lines, self._log:
            while line := self._lines.readline(LONGEST):
                text = printable(redact(line.decode(errors="surrogateescape")), lines=True)
                try:
                    self._log.write(text.encode())
                except OSError:  # a full disk: whoever writes must not be held up
                    continue
