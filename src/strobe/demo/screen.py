"""What the demo shows: live tables on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from strobe.auditor.compare import Difference
from strobe.coordinator.status import MaintainedView, Status, WatchedSource
from strobe.demo import shop
from strobe.demo.history import Archive
from strobe.demo.oracle import Verdict, Wrong
from strobe.events import Event

PLAIN_EVERY = 5.0
"""Seconds between two lines where there is no terminal."""

WIDEST = 100
"""Columns that are read with ease."""


class Screen:
    """A reporter for the coordinator, and the storyteller."""

    def __init__(self, console: Console, seconds: float) -> None:
        self._console = console
        self._seconds = seconds
        self._status: Status | None = None
        self._began = time.monotonic()

    # What the coordinator says.

    def tell(self, event: Event) -> None:
        """The demo tells its own story."""

    def status(self, status: Status) -> None:
        self._status = status

    # Before.

    def introduce(self) -> None:
        self._print(
            "",
            Text.assemble(("Strobe", "bold"), ": joined views of live databases, fresh and never wrong."),
            "",
            "A little shop keeps orders and customers in SQLite and payments in PostgreSQL, and gets its catalogue as "
            "CSV files. None of them knows of the others. Two views join them all, while a clerk, a desk, a cashier, a "
            "bank and a buyer change everything at once, often the same order at the same moment.",
            "",
        )

    def step(self, text: str) -> None:
        elapsed = time.monotonic() - self._began
        self._console.print(Text.assemble((f"{elapsed:4.0f} s  ", "dim"), text), soft_wrap=True)

    # Meanwhile.

    @contextmanager
    def live(self, archive: Archive) -> Iterator[None]:
        self.step(f"Load for {self._seconds:.0f} seconds")
        begin = time.monotonic()
        if self._console.is_terminal:
            live = Live(
                get_renderable=lambda: self._tables(archive, time.monotonic() - begin),
                console=self._console,
                refresh_per_second=4,
            )
            with live:
                yield
            return
        over = threading.Event()
        lines = threading.Thread(target=self._lines, args=(archive, begin, over), name="lines", daemon=True)
        lines.start()
        try:
            yield
        finally:
            over.set()
            lines.join()

    def _lines(self, archive: Archive, begin: float, over: threading.Event) -> None:
        while not over.wait(min(PLAIN_EVERY, self._seconds / 3)):
            if self._status is not None:
                self.step(self._summary(archive, self._status))

    def _summary(self, archive: Archive, status: Status) -> str:
        changes = sum(recorder.changed for recorder in archive.recorders.values())
        watched = _watched(status)
        asked = sum(source.asked.queries for source in watched.values())
        ages = (recorder.age(watched[name].position) for name, recorder in archive.recorders.items() if name in watched)
        behind = max(ages, default=0.0)
        return (
            f"{changes:,} rows changed in the databases, commit {status.commit:,}, {asked:,} questions asked; "
            f"readers are {behind:.1f} s behind"
        )

    def _tables(self, archive: Archive, elapsed: float) -> RenderableType:
        bar = ProgressBar(total=self._seconds, completed=min(elapsed, self._seconds), width=40)
        if self._status is None:
            return Padding(bar, (1, 0, 1, 8))
        sources, views = _sources(archive, self._status), _views(self._status)
        parts = (bar, "", sources, "", views, "", self._summary(archive, self._status))
        return Padding(Group(*parts), (1, 0, 1, 8))

    # Afterwards.

    def judge(self, verdicts: Mapping[str, Verdict], audited: Mapping[str, Any]) -> None:
        table = Table("", "kept by Strobe", "kept by a naive maintainer", box=SIMPLE, pad_edge=False)
        for view in shop.VIEWS:
            table.add_row(view, _judged(verdicts[view]), _judged(verdicts[f"{view}_naive"]))
        self._print(
            "", "Every committed state, compared with a recomputation at exactly the positions it names:", table
        )
        for view in shop.VIEWS:
            self._witness(f"Strobe's {view}", verdicts[view])
            self._witness(f"The naive {view}", verdicts[f"{view}_naive"])
        self._audited(audited)

    def _witness(self, which: str, verdict: Verdict) -> None:
        if verdict.first is None:
            return
        told = f"{which} at commit {verdict.first.commit}: {in_words(verdict.first)}"
        if verdict.last is not None:
            rows = len(verdict.last.differences)
            still = "a row is still wrong, and stays" if rows == 1 else f"{rows} rows are still wrong, and stay"
            told += f" Now that all is quiet {still} so until somebody loads the view anew."
        self._print(told, "")

    def _audited(self, audited: Mapping[str, Any]) -> None:
        valid = audited["verdict"] == "valid"
        style = "bold green" if valid else "bold red"
        found = "both views equal what the databases say" if valid else "the views differ from what the databases say"
        self._print(Text.assemble(f"Audit at commit {audited['commit']}: ", (audited["verdict"], style), f", {found}."))
        self._print(
            *(f"  {view}: {row}" for view, found in audited["views"].items() for row in found["witness"] or ()), ""
        )

    def conclude(self, keep: Path | None) -> None:
        if keep is None:
            self._print(
                "Next: `strobe init DIR` makes a project that runs; put your own databases into its strobe.yml.", ""
            )
            return
        self._print(f"The project is in {keep}. Next, with `--project {keep}`:")
        self._print("  strobe history", '  strobe sql "SELECT * FROM paid_orders" --at 1', "")
        self._print("`strobe run` cannot go on: the demo's PostgreSQL server is gone.", "")

    def _print(self, *parts: RenderableType) -> None:
        for part in parts:
            text = Text(part) if isinstance(part, str) else part
            self._console.print(text, width=min(self._console.width, WIDEST) if isinstance(text, Text) else None)


def _watched(status: Status) -> dict[str, WatchedSource]:
    return {name: source for name, source in status.sources.items() if isinstance(source, WatchedSource)}


def _sources(archive: Archive, status: Status) -> Table:
    table = Table("source", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for title in ("rows changed", "visible", "behind"):
        table.add_column(title, justify="right")
    watched = _watched(status)
    for name, recorder in archive.recorders.items():
        if source := watched.get(name):
            visible, behind = recorder.passed(source.position), f"{recorder.age(source.position):.1f} s"
            table.add_row(f"{name} ({recorder.kind})", f"{recorder.changed:,}", f"{visible:,}", behind)
    for name in archive.drops:
        if source := watched.get(name):
            read, visible = (archive.order(name, position) - 1 for position in (source.read, source.position))
            table.add_row(f"{name} (CSV)", f"{read} drops", f"{visible} drops", "")
    return table


def _views(status: Status) -> Table:
    table = Table("view", "Strobe", "naive maintainer", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for view in shop.VIEWS:
        strobe, naive = status.views[view], status.views[f"{view}_naive"]
        if isinstance(strobe, MaintainedView) and isinstance(naive, MaintainedView):
            kept = f"{strobe.level}, {strobe.queue} in flight"
            table.add_row(view, kept, f"believes answers, {naive.queue} in flight")
    return table


def _judged(verdict: Verdict) -> Text:
    style = "bold red" if verdict.wrong else "bold green"
    return Text.assemble(f"{verdict.states:,} states, ", (f"{verdict.wrong:,} wrong", style))


def in_words(wrong: Wrong) -> str:
    """One of the rows that differ, as a person would tell it."""
    extra = next((d for d in wrong.differences if d.count > 0), None)
    if extra is None:
        missing = wrong.differences[0]
        return f"order {missing.row['order_id']} is missing ({_shown(missing)})."
    truth = next((d for d in wrong.differences if d.count < 0 and _same(d, extra)), None)
    if truth is None:
        return f"it lists order {extra.row['order_id']} ({_shown(extra)}), which should not be there."
    changed = {name for name, value in extra.row.items() if truth.row[name] != value}
    return (
        f"order {extra.row['order_id']} has {_shown(extra, changed)}; in the databases it has {_shown(truth, changed)}."
    )


def _same(one: Difference, other: Difference) -> bool:
    return all(one.row[name] == other.row[name] for name in ("order_id", "payment_id"))


def _shown(difference: Difference, names: set[str] | None = None) -> str:
    """The columns that a person cares about: money as money, no numbers of rows."""
    told = {name: value for name, value in difference.row.items() if not name.endswith("_id") and name != "sku"}
    chosen = {name: value for name, value in told.items() if names is None or name in names} or difference.row
    return ", ".join(_value(name, value) for name, value in chosen.items())


def _value(name: str, value: object) -> str:
    if name.endswith("_cents") and isinstance(value, int):
        return f"{name.removesuffix('_cents')} {value / 100:.2f}"
    return f"{name} {value}"
