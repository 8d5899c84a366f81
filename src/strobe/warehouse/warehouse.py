"""The warehouse as the coordinator uses it: claim it, append commits, bring views in, fold, maintain, read.

Appends come from one thread (`appender`); work on the tables may go on in another at the same time (`upkeep`).

What is true is in the log. A header names, for every view, the generation in force; a definition or a loaded table that
no header names does not exist for readers, and is done away with at the next start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import datetime, timedelta
from functools import partial, reduce

from pyspark.sql import DataFrame, SparkSession

from strobe.algebra.relation import Relation
from strobe.algebra.schema import quoted
from strobe.algebra.view import View
from strobe.errors import BrokenInvariant, NotNow, UserError, ViewWrong
from strobe.messages import Commit, CommitHeader, Lookup
from strobe.spark.failures import FAILURES
from strobe.spark.session import in_background
from strobe.warehouse import (
    contradictions,
    evaluation,
    inspect,
    log,
    lookups,
    reader,
    storage,
    tables,
    view_table,
)
from strobe.warehouse.appender import Appender, guarded, unknown
from strobe.warehouse.claim import Claim
from strobe.warehouse.control import todo
from strobe.warehouse.control.lock import CoordinatorLock
from strobe.warehouse.evaluation import Part
from strobe.warehouse.folding import Hook
from strobe.warehouse.generations import Generations
from strobe.warehouse.layout import FILE_RETENTION, Layout, retention_properties
from strobe.warehouse.ledger import Ledger
from strobe.warehouse.records import Definition, Generation, Published
from strobe.warehouse.removal_plan import COMMIT
from strobe.warehouse.upkeep import Upkeep

LOADS = 4
"""Views whose tables are written at a time."""

Load = tuple[View, DataFrame, Mapping[str, str]]
"""A view, its rows, and the fingerprints of the relations that these were computed from."""


def _nothing(name: str) -> None:
    """No hook."""


class Warehouse:
    """A warehouse that is open. Everything but reading needs `fence` first."""

    def __init__(
        self,
        spark: SparkSession,
        layout: Layout,
        retention: timedelta,
        at: Hook = _nothing,
        lock: CoordinatorLock | None = None,
        checked: bool = True,
    ) -> None:
        self.layout = layout
        self._checked = checked
        self._claim = Claim(layout, lock or CoordinatorLock(layout.control))
        self._appender = Appender(spark, layout, self._claim, at)
        self._generations = Generations()
        self._ledger = Ledger(layout)
        self._upkeep = Upkeep(
            spark, layout, retention, self._claim, self._appender, lambda: self._generations, self._found_wrong, at
        )
        self._spark = spark
        self._retention = retention
        self._at = at

    @classmethod
    def create_or_open(
        cls,
        spark: SparkSession,
        layout: Layout,
        retention: timedelta,
        project: str,
        at: Hook = _nothing,
        lock: CoordinatorLock | None = None,
        checked: bool = True,
    ) -> Warehouse:
        """Open a warehouse; an empty or absent folder becomes one. `UserError` for any other folder.

        `lock` is the warehouse's own, for whoever holds it already. With `checked` every append is held against what
        the views held before; not where something else brings their tables on, as beside a warehouse that they join.
        """
        with guarded(layout, "the warehouse could not be made"):
            tables.create_or_check(spark, layout, retention, project)
        return cls(spark, layout, retention, at, lock, checked)

    # -- coordinating -------------------------------------------------------------------------------------------------

    def fence(self, take_over: bool = False) -> CommitHeader | None:
        """Become the only coordinator; returns the last header, which nobody else can change any more.

        Afterwards `use` says which compiled views take part.
        """
        self._claim.lock(take_over)
        with self._upkeep.alone, self._appender.appending, guarded(self.layout, "the warehouse could not be claimed"):
            self._claim.fence(self._spark)
            last = self._appender.last = inspect.last_header_of(inspect.open_log(self.layout))
            tables.check_end(self.layout, last)
            self._repair(last)
            self._keep_retention()
            return last

    @property
    def epoch(self) -> int:
        return self._claim.epoch

    @property
    def last(self) -> CommitHeader | None:
        """The last header, as this coordinator knows it."""
        return self._appender.last

    @property
    def definitions(self) -> dict[str, Definition]:
        """The definitions in force, by view."""
        return self._generations.in_force

    def use(self, compiled: Sequence[View], unguaranteed: Collection[str] = ()) -> None:
        """Take these compiled views for appends. They are the stored definitions' own SQL; others must be loaded.

        `unguaranteed` names views without any guarantee, whose changes may take away rows that are not there.
        """
        self._generations = self._generations.use(compiled, unguaranteed)

    def close(self) -> None:
        self._claim.release()

    def append(self, commits: Sequence[Commit]) -> CommitHeader:
        """Append commits, all or none, in one Spark job; returns the last header, as it is in the log.

        `UserError` if a view's expression fails on a row, and nothing was committed; `Fenced`; or `CommitUnknown`,
        after which this warehouse must be fenced again before anything else. `ViewWrong` if the commits were appended,
        and contradict what a view held: readers see it as it was before.
        """
        last = self._appender.append([self._generations.batch(commits)])
        if self._checked:
            self._check(commits)
        return last

    def _check(self, commits: Sequence[Commit]) -> None:
        changed = {name for commit in commits for name in (*commit.changes, *commit.removals, *commit.fragments)}
        guaranteed = changed - self._generations.unguaranteed
        for name, commit, how in self._ledger.check([self.definitions[n] for n in sorted(guaranteed)], commits):
            self._found_wrong(name, how, commit - 1)
        for name in guaranteed:
            if self.definitions[name].wrong:
                raise contradictions.error(self.definitions[name])

    # -- bringing views in --------------------------------------------------------------------------------------------

    def load(self, view: View, frame: DataFrame, fingerprints: Mapping[str, str] | None = None) -> Generation:
        """Write a view's table from freshly computed rows; nobody sees them before `cut_over`. `fingerprints` are those
        of the relations that the rows were computed from."""
        with self._upkeep.alone:
            return self._load(view, frame, fingerprints or {})

    def load_all(self, loads: Sequence[Callable[[], Load]], loaded: Callable[[int], None]) -> list[Generation]:
        """The same for several views, a few at a time: while Spark writes one table, it plans others. `loaded` is told
        how many are written; what it raises ends the load."""
        found: list[Generation] = []
        with ThreadPoolExecutor(LOADS, thread_name_prefix="load") as pool:
            for first in range(0, len(loads), LOADS):
                with self._upkeep.alone:
                    some = [pool.submit(self._load_computed, load) for load in loads[first : first + LOADS]]
                    wait(some)
                found += [each.result() for each in some]
                loaded(len(found))
        return found

    def _load_computed(self, load: Callable[[], Load]) -> Generation:
        return self._load(*load())

    def _load(self, view: View, frame: DataFrame, fingerprints: Mapping[str, str]) -> Generation:
        view_table.check_names(view)
        types = evaluation.output_types(self._spark, view)
        view_table.check_types(view, types)
        found = {f.name: f.dataType.simpleString() for f in frame.schema}
        if list(found.items()) != list(types.items()):
            raise BrokenInvariant(f"changes yield {types}, a computation yields {found}", where=f"view {view.name}")
        with in_background(self._spark):
            self._claim.ensure()
            generation = self._next_generation(view.name)
            properties = retention_properties(self._retention)
            version = self._written(view, frame, generation, properties)
            self._at("load.table")
        schema = ", ".join(f"{quoted(name)} {type_}" for name, type_ in types.items())
        return Generation(view, generation, schema, version, fingerprints)

    def _written(self, view: View, frame: DataFrame, generation: int, properties: dict[str, str]) -> int:
        try:
            return view_table.load(self._spark, self.layout, view, frame, generation, properties)
        except FAILURES as error:
            wrong = evaluation.data_error(view, error)
            raise wrong or unknown(self.layout, f"view {view.name} could not be loaded", error) from error

    def remember(self, proven: Mapping[str, Mapping[str, str]], of: Mapping[str, Definition]) -> None:
        """Views rest on other fingerprints now, which have been proven to be as good; those that were loaded anew since
        do not."""
        with self._upkeep.alone:
            same = {n for n, d in self.definitions.items() if n in of and of[n].generation == d.generation}
            after = self._generations.proven({n: found for n, found in proven.items() if n in same})
            if after.definitions != self._generations.definitions:
                self._claim.ensure()
                tables.write_definitions(self.layout, after.definitions)
                self._generations = after

    def found_wrong(self, view: str, generation: int, wrong: str) -> ViewWrong | None:
        """From now on readers see this view as it is, if it is still this generation; what there is to say of it."""
        with self._upkeep.alone:
            definition = self.definitions.get(view)
            if definition is None or definition.generation != generation or self.last is None:
                return None
            self._found_wrong(view, wrong, self.last.number)
            return contradictions.error(self.definitions[view])

    def _found_wrong(self, view: str, wrong: str, right_to: int) -> None:
        """From now on readers see this view as it was at an earlier commit, and it takes no part in folds."""
        with self._upkeep.alone:
            self._claim.ensure()
            after = self._generations.found_wrong(view, wrong, right_to)
            tables.write_definitions(self.layout, after.definitions)
            self._generations = after

    def prepare_log(self, loaded: Sequence[Generation]) -> None:
        """Make room in the log for views that will come in: then their cutover takes less time."""
        with self._appender.appending:
            self._claim.ensure()
            log.add_fields(self._spark, self.layout, loaded)

    def cut_over(
        self,
        loaded: Sequence[Generation],
        commit: Commit,
        dropped: Sequence[str] = (),
        carried: Mapping[str, Part] | None = None,
        before: Sequence[Commit] = (),
        *,
        empty: bool = False,
    ) -> CommitHeader:
        """Let loaded views take part from this commit on, and others no more; the next fold publishes it.

        The commit carries what changed of the views and their tables do not hold (see `unsettled`). Commits `before` it
        are appended with it: all or none. With `empty`, tables of views that leave are to be emptied afterwards.
        """
        with self._upkeep.alone, self._appender.appending, guarded(self.layout, "views could not be brought in"):
            self._claim.ensure()
            self._appender.check_numbers([*before, commit])
            self._check_loads(loaded)
            after = self._generations.cut_over(loaded, dropped, commit.number)
            tables.write_definitions(self.layout, after.definitions)
            if empty:
                leaving = {n: d.generation for n, d in self.definitions.items() if n in dropped}
                todo.add(self.layout.control, todo.EMPTY, leaving)
            log.add_fields(self._spark, self.layout, loaded)
            self._at("load.definitions")
            earlier = [self._generations.batch(before)] if before else []
            try:
                last = self._appender.append([*earlier, after.batch([commit], carried)])
            except UserError:  # nothing was committed, and commits go on from here
                tables.write_definitions(self.layout, self._generations.definitions)
                raise
            self._generations = after
            self._at("load.joined")
            return last

    def _check_loads(self, loaded: Sequence[Generation]) -> None:
        for item in loaded:
            name = item.view.name
            if inspect.loaded_generation(inspect.open_table(self.layout.view(name)), name) != item.number:
                raise NotNow("its table was taken back meanwhile", where=f"view {name}", fix="Try again.")

    def take_back(self) -> None:
        """Loads that will not join after all: the tables hold the generations in force again."""
        with self._upkeep.work("loads could not be taken back") as spark:
            self._claim.ensure()
            for definition in self.definitions.values():
                view_table.undo_load(spark, self.layout, definition)

    def unsettled(self, spark: SparkSession, after: int, commits: Sequence[Commit]) -> dict[str, Part]:
        """What changed of views after a commit, and would by commits that were not appended: their columns and
        `_count`. For another warehouse, to which `spark` belongs and which the views are to join."""
        own, last = inspect.open_log(self.layout), self.last.number if self.last else 0
        found: dict[str, list[Part]] = defaultdict(list)
        for name in inspect.changes(own, after, last):
            rows, size = view_table.logged(spark, own, self.definitions[name], after, last)
            found[name].append((rows, size <= self.layout.sizes.together))
        stored, together = partial(self._appender.stored, spark=spark), self.layout.sizes.together
        waiting = evaluation.changed_rows(spark, self._generations.members, commits, stored, together)
        for name, (rows, small) in waiting.items():
            found[name].append((rows.drop(COMMIT), small))
        return {name: _summed(parts) for name, parts in found.items()}

    def empty(self) -> None:
        """Take the rows out of the tables of views that have left, where that was asked for."""
        self._upkeep.empty()

    def _next_generation(self, view: str) -> int:
        defined = [d.generation for d in self._generations.definitions if d.view == view]
        location = self.layout.view(view)
        loaded = inspect.last_load(inspect.open_table(location), view) if storage.exists(location) else 0
        return 1 + max([loaded, *defined])

    def _repair(self, header: CommitHeader | None) -> None:
        """Do away with what an interrupted load left behind: the log's last header is the truth."""
        stored = inspect.definitions(self.layout)
        self._generations = Generations.named_by(header, stored)
        if self._generations.definitions != tuple(stored):
            tables.write_definitions(self.layout, self._generations.definitions)
        for definition in self.definitions.values():
            view_table.undo_load(self._spark, self.layout, definition)

    def _keep_retention(self) -> None:
        """Set the tables' retention if the project's has changed."""
        wanted = retention_properties(self._retention)
        for location in (*map(self.layout.view, self.definitions), *self.layout.small):
            if inspect.properties(inspect.open_table(location)).get(FILE_RETENTION) != wanted[FILE_RETENTION]:
                view_table.set_properties(self._spark, location, wanted)

    # -- in the background --------------------------------------------------------------------------------------------

    def fold(self) -> Published | None:
        """Bring the view tables up to the last commit and publish their versions; nothing if they are there already."""
        return self._upkeep.fold()

    @property
    def unpublished(self) -> bool:
        """Whether views have come or left with a commit that is not published yet."""
        return self._upkeep.unpublished

    @property
    def folding(self) -> bool:
        """Whether tables are being folded, loaded or maintained at this moment, in another thread."""
        return self._upkeep.busy

    def maintain(self) -> None:
        """Drop what is older than the horizon, join small files, delete files that nothing uses. Now and then."""
        self._upkeep.maintain()

    # -- reading ------------------------------------------------------------------------------------------------------

    def copy(self, source: str, lookup: Lookup, types: Mapping[str, str]) -> tuple[Relation, str]:
        """Rows of a relation from the copy that is kept here, and the source's position that they are of."""
        return lookups.copy(self._spark, self.layout, source, lookup, types)

    def shown(self, view: View, lookup: Lookup) -> tuple[Relation, str]:
        """Rows of a relation that a view itself shows, and the source's position that they are of; few keys only."""
        return lookups.shown(self.layout, view, lookup)

    def snapshot(self, at: int | None = None) -> reader.ViewsAtCommit:
        """All views at one commit, or at the last."""
        return reader.snapshot(self._spark, self.layout, at)

    def table(self, view: str, at: int | None = None) -> DataFrame:
        """A view at a commit, or at the last."""
        return self.snapshot(at).table(view)

    def commit_at(self, time: datetime) -> int:
        """The newest commit that was there at a time."""
        return reader.commit_at(self.layout, time)


def _summed(parts: Sequence[Part]) -> Part:
    whole, small = reduce(DataFrame.unionByName, (rows for rows, _ in parts)), all(few for _, few in parts)
    return view_table.summed(whole.coalesce(1) if small else whole), small
