"""What Spark's exceptions say, in one line, and what a failed job means to whoever reads a source by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException

from strobe.errors import SourceUnavailable

SPARK = (Py4JError, PySparkException)
FAILURES = (*SPARK, OSError)
"""What Spark or the file system could not do: an executor or a worker was killed, the disk is full, the JVM ended."""


def cause(error: BaseException) -> str:
    """The line that says what was the matter, among those of stack traces."""
    text = str(error)
    if "Traceback (most recent call last):" in text:
        after = text.rpartition("Traceback (most recent call last):")[2].splitlines()
        python = [line for line in after if line and not line[0].isspace()]
        if python:
            return python[0].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    told = [line for line in lines if not line.startswith("An error occurred while calling")]
    return [type(error).__name__, *reversed(told), *causes][-1]


def remedy(cause: str) -> str:
    """What the user has to do about it first, if anything."""
    return "Make room on the file system of the warehouse. " if "No space left" in cause else ""


@contextmanager
def reading(source: str) -> Iterator[None]:
    """A job that fails has read nothing: the same is tried again later."""
    try:
        yield
    except AnalysisException:  # it would fail every time
        raise
    except FAILURES as error:
        why = cause(error)
        fix = f"{remedy(why)}Nothing was committed, and it is read again from the start."
        raise SourceUnavailable(f"Spark could not read it: {why}", where=f"source {source}", fix=fix) from error
