"""Which of several reasons a run has ended with."""

from __future__ import annotations

import pytest

from strobe import errors
from strobe.pipeline.run_end import (
    AppendUnknown,
    CutOver,
    Failed,
    Fenced,
    RunEnd,
    SourceLost,
    SparkEnded,
    Stopped,
    decided,
    ended_with,
)

LOST, UNKNOWN = errors.SourceLost("its log is gone"), errors.CommitUnknown("it may have happened")
FENCED, GONE, WRONG = errors.Fenced("taken over"), errors.SparkLost("Spark's process ended"), KeyError("a mistake")
GONE_TABLE = errors.RelationLost("a table is gone")


@pytest.mark.parametrize(
    ("end", "late", "counts"),
    [
        (Stopped(), [], Stopped()),
        (CutOver(), [WRONG, FENCED], Failed(WRONG)),
        (Stopped(), [LOST, UNKNOWN], AppendUnknown(UNKNOWN)),
        (Stopped(), [GONE, LOST, UNKNOWN], SparkEnded(GONE)),
        (SourceLost(LOST), [WRONG, UNKNOWN], AppendUnknown(UNKNOWN)),
        (SourceLost(LOST), [GONE_TABLE, FENCED], SourceLost(LOST)),
        (Fenced(FENCED), [UNKNOWN, LOST], Fenced(FENCED)),
    ],
)
def test_what_counts(end: RunEnd, late: list[BaseException], counts: RunEnd) -> None:
    """The first failure; an append of unknown outcome counts more than a lost source, wherever it comes."""
    assert decided(end, late) == counts


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (LOST, SourceLost),
        (GONE_TABLE, SourceLost),
        (UNKNOWN, AppendUnknown),
        (FENCED, Fenced),
        (GONE, SparkEnded),
        (WRONG, Failed),
        (errors.LostGuarantee("too much log"), Failed),
    ],
)
def test_what_an_error_ends_a_run_as(error: BaseException, kind: type[RunEnd]) -> None:
    end = ended_with(error)
    assert type(end) is kind
    with pytest.raises(type(error)) as raised:
        end.check()
    assert raised.value is error
