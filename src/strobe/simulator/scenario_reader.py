"""Reads scenarios. A mistake is a `UserError` that names the line and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from strobe.algebra.bag import Bag, Row
from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.sql import compile_view
from strobe.algebra.view import View
from strobe.auditor.levels import LEVELS
from strobe.errors import UserError
from strobe.managers.registry import beyond_inner_joins
from strobe.messages import GlobalTransaction
from strobe.simulator.algorithms import choose
from strobe.simulator.judging import Order, Shown
from strobe.simulator.lab import Changes, Plan, Step
from strobe.simulator.notation import Scanner, read_rows, read_tuple
from strobe.simulator.scenario import Happening, Line, Scenario, Schedule, natural_sql, whole

BOUND = 20_000
"""Schedules that `all` goes through, at the most."""


def load(file: Path) -> Scenario:
    """The scenario in a file, or a `UserError` that names the line."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise UserError(f"the file cannot be read: {reason}", where=str(file), fix="Name a scenario file.") from None
    return read(text, str(file))


def read(text: str, where: str = "scenario") -> Scenario:
    return _Reader(text, where).scenario()


_TOP = "A scenario has lines `source …`, `view: …`, `algorithm: …`, `U1 = …`, `schedule` and `level: …`."
_RELATION = "A relation is written r1(A key, B): [1,2] [3,4], below its source."
_UPDATE = "An update is insert(r1, [1,2]), delete(r1, [1,2]) or modify(r1, [1,2], [1,3])."
_STEP = "A step is `x executes U1`, `receives U1`, `x evaluates Q1` or `receives A1`."
_VIEW = "A view is `Π A,C (r1 ⋈ r2)`, `r1 ⋈ r2`, or a SELECT."
_WORDS = ("source", "view", "algorithm", "schedule", "level", "initially", "finally")


@dataclass
class _Relation:
    """A relation as it is read; its columns get types when all values are known."""

    source: str
    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    types: dict[str, str]
    rows: dict[Row, int]
    line: Line
    found: dict[str, str] = field(default_factory=dict)

    def check(self, row: Row, scanner: Scanner) -> None:
        """Whether a tuple fits, which also says what the columns hold."""
        if len(row) != len(self.columns):
            sizes = f"{self.name} has {len(self.columns)} columns, the tuple has {len(row)}"
            raise scanner.fail(sizes, "Write a value for each column.")
        for column, value in zip(self.columns, row, strict=True):
            kind = "string" if isinstance(value, str) else "bigint"
            wanted = self.types.get(column) or self.found.setdefault(column, kind)
            if kind != wanted:
                raise scanner.fail(
                    f"{self.name}.{column} holds {'text' if wanted == 'string' else 'integers'} elsewhere",
                    "Give a column values of one kind.",
                )

    def schema(self) -> RelationSchema:
        types = {c: self.types.get(c) or self.found.get(c, "bigint") for c in self.columns}
        columns = tuple(Column(c, types[c]) for c in self.columns)
        return RelationSchema(self.source, self.name, columns, self.key, tuple((c,) for c in self.columns))


@dataclass(frozen=True)
class _Update:
    """An update as it is read."""

    label: str
    relation: _Relation
    rows: Mapping[Row, int]


class _Reader:
    def __init__(self, text: str, where: str) -> None:
        self.where = where
        self.lines = [line for line in _lines(text, where) if line.text]
        self.title = next((t.lstrip("# ").strip() for t in text.splitlines() if t.startswith("#")), "")
        self.relations: list[_Relation] = []
        self.sources: list[str] = []
        self.view_lines: list[Line] = []
        self.algorithm: Line | None = None
        self.transactions: dict[str, tuple[Line, list[_Update]]] = {}
        self.schedule: tuple[Line, list[Line]] | None = None
        self.single: dict[str, Line] = {}

    def scenario(self) -> Scenario:
        for first, rest in self._sections():
            self._section(first, rest)
        if not self.relations or not self.view_lines or self.algorithm is None:
            missing = "relation" if not self.relations else "view" if not self.view_lines else "algorithm"
            raise UserError(f"the scenario has no {missing}", where=self.where, fix=_TOP)
        plan, labels, order = self._plan()
        chosen = choose(self.algorithm.text, self.algorithm.where)
        chosen.check(plan.view, self.algorithm.where)
        return Scenario(
            self.title,
            plan,
            labels,
            order,
            chosen,
            self._schedule(),
            self.single.get("initially"),
            self.single.get("finally"),
            self._levels(),
            self.single["level"].where if "level" in self.single else "",
            self.where,
        )

    # Sections.

    def _sections(self) -> Iterator[tuple[Line, list[Line]]]:
        """Each line at the margin, with the indented ones below it."""
        if self.lines and self.lines[0].indented:
            raise UserError("the first line is indented", where=self.lines[0].where, fix=_TOP)
        starts = [i for i, line in enumerate(self.lines) if not line.indented]
        for i, start in enumerate(starts):
            end = starts[i + 1] if i + 1 < len(starts) else len(self.lines)
            yield self.lines[start], self.lines[start + 1 : end]

    def _section(self, first: Line, rest: list[Line]) -> None:
        word = re.match(r"\w*", first.text)[0].lower()  # type: ignore[index]  # it matches everything
        body = replace(first, text=re.sub(r"^\w+\s*:?\s*", "", first.text))
        if re.match(r"[\w.]+\s*=", first.text):
            self._transaction(replace(first, text=" ".join([first.text, *(line.text for line in rest)])))
        elif word == "source":
            self._source(body, rest)
        elif word == "view":
            self._once("view", first)
            self.view_lines = [line for line in (body, *rest) if line.text]
        elif word == "schedule":
            self._once("schedule", first)
            self.schedule = (body, rest)
        elif word in _WORDS:
            self._once(word, body)
            if word == "algorithm":
                self.algorithm = body
            if rest:
                raise UserError("an indented line cannot stand here", where=rest[0].where, fix=_TOP)
        else:
            raise UserError(f"{first.text.split()[0]!r} begins no line of a scenario", where=first.where, fix=_TOP)

    def _once(self, word: str, line: Line) -> None:
        if word in self.single:
            raise UserError(f"there is a second {word}", where=line.where, fix=f"Keep one {word}.")
        self.single[word] = line

    # Sources and their relations.

    def _source(self, line: Line, rest: list[Line]) -> None:
        scanner = line.scan()
        source = scanner.name("a source", "Write `source x`.")
        scanner.end("Write `source x`, and its relations indented below.")
        if source in self.sources:
            raise scanner.fail(f"there is a second source {source}", "Write all relations of a source below it.")
        self.sources.append(source)
        for each in rest:
            self.relations.append(self._relation(source, each))

    def _relation(self, source: str, line: Line) -> _Relation:
        scanner = line.scan()
        name = scanner.name("a relation", _RELATION)
        if any(r.source == source and r.name == name for r in self.relations):
            raise scanner.fail(f"{source} has a second relation {name}", "Give each relation its own name.")
        columns: list[str] = []
        key: list[str] = []
        types: dict[str, str] = {}
        scanner.expect("(", _RELATION)
        while not columns or scanner.take(","):
            column = scanner.name("a column", _RELATION)
            if column in columns:
                raise scanner.fail(f"{name} has a second column {column}", "Give each column its own name.")
            columns.append(column)
            while word := scanner.take("key", "text", "integer"):
                if word == "key":
                    key.append(column)
                else:
                    types[column] = "string" if word == "text" else "bigint"
        scanner.expect(")", _RELATION)
        scanner.take(":", "=")
        relation = _Relation(source, name, tuple(columns), tuple(key), types, read_rows(scanner), line)
        scanner.end(_RELATION)
        for row, n in relation.rows.items():
            relation.check(row, scanner)
            if n < 0:
                raise scanner.fail("a relation cannot begin with a deleted tuple", "Write the tuples that are there.")
        return relation

    def _named(self, scanner: Scanner) -> _Relation:
        name = scanner.name("a relation", _UPDATE)
        found = [r for r in self.relations if name in (r.name, f"{r.source}.{r.name}")]
        if len(found) != 1:
            known = ", ".join(f"{r.source}.{r.name}" for r in self.relations)
            problem = f"several sources have a relation {name}" if found else f"there is no relation {name}"
            raise scanner.fail(problem, f"There are {known}; they stand before their first use.")
        return found[0]

    # Transactions.

    def _transaction(self, line: Line) -> None:
        scanner = line.scan()
        name = scanner.token()
        scanner.token()
        taken = {u.label for _, updates in self.transactions.values() for u in updates} | set(self.transactions)
        if name in taken or name in self.sources or name[0] in "QA" or name in ("V", "MV", "UQS", "COLLECT"):
            raise scanner.fail(f"a transaction cannot be called {name}", "Name it like U1 or T1, each its own name.")
        opened = scanner.take("<", "⟨")
        updates = [self._update(scanner)]
        while scanner.take(",", ";"):
            updates.append(self._update(scanner))
        if opened:
            scanner.expect(">⟩", "A transaction is written T1 = <insert(…), delete(…)>.")
        scanner.end(_UPDATE)
        labels = [u.label or (name if len(updates) == 1 else f"{name}.{i}") for i, u in enumerate(updates, 1)]
        for label in labels:
            if label in taken or (label == name and len(updates) > 1) or labels.count(label) > 1:
                raise scanner.fail(f"there is a second {label}", "Give each update its own name.")
        self.transactions[name] = (line, [replace(u, label=label) for u, label in zip(updates, labels, strict=True)])

    def _update(self, scanner: Scanner) -> _Update:
        verb, label = scanner.name("an update", _UPDATE), ""
        if scanner.take("=", ":"):
            label, verb = verb, scanner.name("an update", _UPDATE)
        if verb not in ("insert", "delete", "modify", "change"):
            raise scanner.fail(f"{verb!r} is no update", _UPDATE)
        scanner.expect("(", _UPDATE)
        relation = self._named(scanner)
        scanner.expect(",", _UPDATE)
        if verb == "change":
            rows = read_rows(scanner)
        elif verb == "modify":
            old = read_tuple(scanner)
            scanner.expect(",", _UPDATE)
            new = read_tuple(scanner)
            rows = {old: -1, new: 1} if old != new else {}
        else:
            rows = {read_tuple(scanner): 1 if verb == "insert" else -1}
        scanner.expect(")", _UPDATE)
        for row in rows:
            relation.check(row, scanner)
        return _Update(label, relation, rows)

    def _plan(self) -> tuple[Plan, dict[str, tuple[tuple[str, ...], ...]], Order]:
        steps: dict[str, list[Step]] = {s: [] for s in self.sources}
        labels: dict[str, list[tuple[str, ...]]] = {s: [] for s in self.sources}
        order: list[tuple[str, ...]] = []
        now = {(r.source, r.name): Bag(r.columns, r.rows) for r in self.relations}
        for name, (line, updates) in self.transactions.items():
            sources = tuple(dict.fromkeys(u.relation.source for u in updates))
            together = (GlobalTransaction(name, frozenset(sources)),) if len(sources) > 1 else ()
            for source in sources:
                own = [u for u in updates if u.relation.source == source]
                steps[source].append(Step(name, tuple(self._changes(u, now, line) for u in own), together))
                labels[source].append(tuple(u.label for u in own))
            order.append(sources)
        initial = {s: {r.name: Bag(r.columns, r.rows) for r in self.relations if r.source == s} for s in self.sources}
        plan = Plan(self._view(), initial, {s: tuple(done) for s, done in steps.items()})
        return plan, {s: tuple(done) for s, done in labels.items()}, tuple(order)

    def _changes(self, update: _Update, now: dict[tuple[str, str], Bag], line: Line) -> Changes:
        """What an update does; it must be possible where it stands."""
        relation = update.relation
        change = Bag(relation.columns, update.rows)
        now[relation.source, relation.name] = after = now[relation.source, relation.name].add(change)
        if any(n < 0 for _, n in after.items()):
            raise UserError(
                f"{update.label} deletes a tuple that is not in {relation.name} then",
                where=line.where,
                fix="Updates happen at a source in the order in which they are written.",
            )
        if relation.key and any(n > 1 for _, n in after.project(relation.key).items()):
            raise UserError(
                f"after {update.label} two tuples of {relation.name} have the same key",
                where=line.where,
                fix="A key is unique; delete the old tuple first, or modify it.",
            )
        return {relation.name: change}

    # The view.

    def _view(self) -> View:
        where = self.view_lines[0].where
        schemas = {r.id: r for r in (relation.schema() for relation in self.relations)}
        text = "\n".join(line.text for line in self.view_lines)
        if not re.match(r"(?i)\s*(select|with)\b", text):
            text = self._sql(Scanner(text, where))
        compiled = compile_view("V", text, schemas, where=where)
        if compiled.tree is not None:
            raise UserError(
                f"the papers' views are inner joins, and this one has {beyond_inner_joins(compiled.tree)}",
                where=where,
                fix="Leave it out.",
            )
        found = whole(compiled)
        Shown(found, where)
        return found

    def _sql(self, scanner: Scanner) -> str:
        """`Π W (r1 ⋈ r2)` as SQL: a natural join, with columns in the order of their first mention."""
        shown: list[str] = []
        projected = scanner.next[:1] in ("Π", "π") or scanner.next.lower() == "project"
        if projected:
            first = scanner.token()
            shown = [first[1:].lstrip("_")] if first[:1] in ("Π", "π") and first[1:].lstrip("_") else []
            while scanner.next and scanner.next != "(":
                shown += [token for token in [scanner.token()] if token != ","]
            scanner.expect("(", _VIEW)
        joined = [self._named(scanner)]
        while scanner.take("⋈", "join"):
            joined.append(self._named(scanner))
        if projected:
            scanner.expect(")", _VIEW)
        scanner.end(_VIEW)
        return natural_sql([(f"{r.source}.{r.name}", r.columns) for r in joined], shown)

    # The schedule and what is expected.

    def _schedule(self) -> Schedule:
        if self.schedule is None:
            return Schedule()
        first, rest = self.schedule
        if not first.text or first.text == "in order":
            return Schedule("listed", tuple(self._happenings(rest))) if rest else Schedule()
        if rest:
            raise UserError("a schedule is listed, or random, or all", where=rest[0].where, fix="Keep one of them.")
        return read_schedule(first.text, first.where)

    def _happenings(self, lines: list[Line]) -> Iterator[Happening]:
        current: Happening | None = None
        for line in lines:
            step = _happening(line, self.sources)
            if step is None and current is None:
                raise UserError(f"{line.text!r} is no step", where=line.where, fix=_STEP)
            if step is None and current is not None:
                current = replace(current, expected=(*current.expected, *_expected(line, line.text)))
            elif step is not None:
                if current is not None:
                    yield current
                current = step
        if current is not None:
            yield current

    def _levels(self) -> tuple[str, ...]:
        line = self.single.get("level")
        if line is None:
            return ()
        found = tuple(" ".join(part.split()) for part in line.text.lower().split(","))
        for level in found:
            bare = level.removeprefix("not ")
            if bare not in LEVELS:
                fix = f"There are {', '.join(LEVELS)}, and `not` before one of them."
                raise UserError(f"there is no level {bare!r}", where=line.where, fix=fix)
        return found


def _lines(text: str, where: str) -> Iterator[Line]:
    for number, raw in enumerate(text.splitlines(), 1):
        kept = re.match(r"(?:[^#']|'[^']*'|')*", raw)
        body = kept[0] if kept else ""
        yield Line(body.strip(), f"{where}:{number}", body[:1].isspace())


def read_schedule(text: str, where: str) -> Schedule:
    """`random 7`, `all`, `all up to 5000`; also with a colon, as on a command line."""
    words = text.replace(":", " ").lower().split()
    match words:
        case ["random", seed] if seed.isdigit():
            return Schedule("random", number=int(seed))
        case ["all"]:
            return Schedule("all", number=BOUND)
        case ["all", "up", "to", bound] if bound.isdigit() and int(bound):
            return Schedule("all", number=int(bound))
    raise UserError(f"{text!r} is no schedule", where=where, fix="Write random and a seed, all, or all up to 5000.")


def _happening(line: Line, sources: list[str]) -> Happening | None:
    """A step, if the line is one; what stands after a colon or an equals sign is expected of it."""
    found = re.match(
        r"(?:\d+\.\s*)?(?:(?:the\s+)?(?P<who>\w+)\s+)?(?P<verb>execute|evaluate|receive)s?\s+(?P<what>[\w.]+)"
        r"(?:\s+(?:from|at)\s+(?P<at>\w+))?\s*(?P<answer>=(?:[^:']|'[^']*')*)?(?P<rest>:.*)?$",
        line.text,
    )
    if found is None:
        return None
    who, verb, what, at, answer, rest = found.group("who", "verb", "what", "at", "answer", "rest")
    source = at or (who if who and who.lower() not in ("warehouse", "source") else "")
    if what in sources:
        source, what = what, ""
    if source and source not in sources:
        raise UserError(f"there is no source {source}", where=line.where, fix=f"There are {', '.join(sources)}.")
    expected = [replace(line, text=f"{what} {answer.strip()}")] if answer else []
    return Happening(line, verb, what, source, (*expected, *_expected(line, (rest or "")[1:])))


def _expected(line: Line, text: str) -> list[Line]:
    """What stands between semicolons."""
    return [replace(line, text=part.strip()) for part in re.findall(r"(?:[^;']|'[^']*')+", text) if part.strip()]
