"""Two pipelines over the same databases come to one vector, as new views and those that are kept do before a cutover:
with a warehouse in memory, no JVM."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from committing import no_spark
from memory_live import PROJECT, WRITES, MemoryWarehouse, Past, compare, contents, opened, write
from patience import PATIENCE, Writing

from strobe.config.load import load_project
from strobe.messages import Commit, CommitHeader, Position
from strobe.pipeline.pipeline import Pipeline
from strobe.pipeline.run_end import CutOver, RunEnd, Stopped
from strobe.pipeline.states import Committing
from strobe.planning.topology import Topology, assemble
from strobe.simulator.world import evaluate


class Side:
    """A pipeline and its warehouse, from the state that the sources are in."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.start = {name: contents(topology, name) for name in topology.sources}
        views = {name: planned.view for name, planned in topology.views.items()}
        self.states = {n: evaluate(view, {s: c for s, (_, c) in self.start.items()}) for n, view in views.items()}
        positions = {n: {s: self.start[s][0] for s in view.sources} for n, view in views.items()}
        last = CommitHeader(1, datetime.now(timezone.utc), positions)
        self.warehouse = MemoryWarehouse(topology, last, self.states, 0.05)
        self.pipeline = Pipeline(topology, self.warehouse, last, through_spark=no_spark)

    def judge(self, handed: Sequence[Commit], vector: dict[str, str]) -> None:
        """All commits are states of the sources, those that were handed over too, and the last one is at the vector."""
        self.warehouse.commits += handed
        numbers = [commit.header.number for commit in self.warehouse.commits]
        assert numbers == list(range(2, len(numbers) + 2))
        compare(self.topology, self.warehouse, Past(self.topology, self.start), self.states)
        for positions in self.warehouse.commits[-1].header.positions.values():
            assert positions == {s: vector[s] for s in positions}


def test_two_pipelines_meet_at_one_vector(tmp_path: Path) -> None:
    """While everybody writes: what brings each there is handed over, nothing is appended or lost beside it, and the
    last commit of the one ends its run."""
    kept = Side(opened(tmp_path, PROJECT))
    new = Side(assemble(load_project(tmp_path)))
    ended, met, over = threading.Event(), threading.Event(), threading.Event()
    handed: dict[str, Sequence[Commit]] = {}
    positions, vector = dict[str, Position](), dict[str, str]()

    def stand() -> Iterator[None]:
        yield from new.pipeline.barrier.bring_to(positions, PATIENCE, hold=True)
        handed["new"] = new.pipeline.committer.hand_over()
        met.set()

    def final(last: CommitHeader, before: Sequence[Commit]) -> CommitHeader:
        handed["kept"] = before
        over.set()
        return CommitHeader(last.number + 1, last.committed_at, last.positions)

    def join() -> Iterator[None]:
        while len(kept.warehouse.commits) < 3 or len(new.warehouse.commits) < 3:
            yield
        new.pipeline.committer.hold()
        while new.pipeline.committer.working:
            yield
        yield from kept.pipeline.barrier.pause(PATIENCE)
        yield from new.pipeline.barrier.pause(PATIENCE)
        for name, monitor in new.pipeline.monitors.items():
            positions[name] = max(monitor.position, kept.pipeline.monitors[name].position, key=lambda p: p.order)
            vector[name] = positions[name].text
        new.pipeline.start_operation(stand())
        yield from kept.pipeline.barrier.bring_to(positions, PATIENCE, hold=True)
        while not met.is_set():
            yield
        kept.pipeline.committer.end_with(final)
        while True:
            yield

    ends: list[RunEnd] = []
    side = threading.Thread(target=lambda: ends.append(new.pipeline.run(lambda: Stopped() if ended.is_set() else None)))
    writing = Writing(1.0, over.is_set)
    work = [threading.Thread(target=write, args=(tmp_path, name, writing)) for name in WRITES]
    for thread in (side, *work):
        thread.start()
    kept.pipeline.start_operation(join())
    try:
        end = kept.pipeline.run(lambda: CutOver() if over.is_set() else None)
    finally:
        writing.stop()
        ended.set()
        for thread in (side, *work):
            thread.join(PATIENCE)
    end.check()
    assert isinstance(end, CutOver) and ends == [Stopped()]
    assert kept.pipeline.committer.state is Committing.ENDED and new.pipeline.committer.state is Committing.ENDED
    last = [commit.header.number for commit in handed["kept"]] or [kept.pipeline.committer.last.number - 1]
    assert kept.pipeline.committer.last.number == last[-1] + 1
    kept.judge(handed["kept"], vector)
    after = [c for c in new.warehouse.commits if handed["new"] and c.header.number > handed["new"][-1].header.number]
    new.warehouse.commits = [c for c in new.warehouse.commits if c not in after]
    new.judge(handed["new"], vector)
