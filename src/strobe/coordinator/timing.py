"""How often a coordinator does what it does by itself, and how long it waits: a record, so that a test can hurry it."""

from __future__ import annotations

from dataclasses import dataclass

from strobe.retry import APPEND, PROBE, START_SPARK, VERIFY, Policy


@dataclass(frozen=True)
class Timing:
    beat: float = 0.5
    """Seconds between heartbeats, and between looks at the sources."""
    detach: float = 10.0
    """Seconds for which a source may be down before the views that do not need it go on without the others."""
    parts: float = 60.0
    """Seconds that a global transaction may take from its first part to its last: so long do views that were loaded
    with one part wait for the others before anybody sees them."""
    probe: Policy = PROBE
    verify: Policy = VERIFY
    append: Policy = APPEND
    start_spark: Policy = START_SPARK
    fold_share: float = 10.0
    """Folding that takes long is done less often than the project's `publish` says: at the most for one of so many
    seconds, unless many commits wait."""
    fold_commits: int = 500
    fold_idle: float = 5.0
    """Seconds without a commit after which what there is is folded."""
    discard_every: float = 5.0
    measure_every: float = 15.0
    """Seconds between looks how much log the sources keep."""
    end_every: float = 60.0
    """Where a log ends that nobody reads takes a snapshot of its source to find out."""
    maintain_every: float = 600.0
    audit_share: float = 0.1
    """Of the time that the audit in the background may take up, whatever its period is."""
    audit_keys: int = 5_000
    """Keys in a part, at about the most."""
    audit_rows: int = 100_000
    """Rows that a part may make the sources send."""
    audit_wait: float = 30.0
    """Seconds that a part may wait for a commit, or for the log of a source; then it is checked later."""


USUAL = Timing()
