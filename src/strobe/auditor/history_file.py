"""Histories as files: one JSON document a line, so that the output of any system can be judged.

`docs/histories.md` has the format. Every mistake in a file is an error that names the line and what to change, since a
history that is read wrongly is judged wrongly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from strobe.algebra.bag import Bag
from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.sql import compile_view
from strobe.algebra.view import View
from strobe.auditor.history import History, HistoryState, HistoryView
from strobe.auditor.recomputation import Recomputation
from strobe.auditor.timeline import HistoryTransaction
from strobe.auditor.values import decode, encode, normal_type
from strobe.auditor.verdict import CannotEvaluate
from strobe.errors import Unfit, UserError

FORMAT = 1
HEADER = {"strobe": "history", "format": FORMAT}


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def write(history: History, file: TextIO) -> None:
    """Writes a history down, so that `read` gives it back."""
    for document in _documents(history):
        file.write(json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n")


def _documents(history: History) -> Iterator[dict[str, Any]]:
    yield {**HEADER, **({"positions": dict(history.start)} if history.start else {})}
    schemas = {schema.id: schema for schema, _ in history.relations}
    for schema, rows in history.relations:
        columns = [{"name": column.name, "type": column.type} for column in schema.columns]
        body = {"source": schema.source, "name": schema.name, "columns": columns}
        key = {"key": list(schema.key)} if schema.key else {}
        shown = [row for row, count in _encoded(rows, _types(schema.columns)) for _ in range(count)]
        yield {"relation": {**body, **key, "rows": shown}}
    types: dict[str, dict[str, str] | None] = {}
    for view in history.views:
        types[view.name] = _output_types(compile_view(view.name, view.sql, schemas), view.columns)
        columns = [{"name": column.name, "type": column.type} for column in view.columns]
        yield {"view": {"name": view.name, "sql": view.sql, **({"columns": columns} if columns else {})}}
    for transaction in history.transactions:
        changes = {
            source: {
                name: _changes(change, _types(schemas[f"{source}.{name}"].columns)) for name, change in own.items()
            }
            for source, own in transaction.parts.items()
        }
        positions = {"positions": dict(transaction.positions)} if transaction.positions else {}
        yield {"transaction": {"id": transaction.id, **positions, "changes": changes}}
    for state in history.states:
        views: dict[str, Any] = {}
        for name, bag in state.rows.items():
            views[name] = {"rows": [row for row, count in _encoded(bag, types[name]) for _ in range(count)]}
        for name, bag in state.changes.items():
            views[name] = {"changes": _changes(bag, types[name])}
        claimed = {"positions": {view: dict(own) for view, own in state.positions.items()}} if state.positions else {}
        yield {"state": {**claimed, "views": views}}


def _changes(bag: Bag, types: Mapping[str, str] | None) -> list[Any]:
    return [[count, row] for row, count in _encoded(bag, types)]


def _encoded(bag: Bag, types: Mapping[str, str] | None) -> Iterator[tuple[list[Any], int]]:
    if types is None:
        yield from ((list(row), count) for row, count in bag.items())
        return
    for row, count in bag.project(list(types)).items():
        try:
            yield [encode(value, type_) for value, type_ in zip(row, types.values(), strict=True)], count
        except Unfit as error:
            raise UserError(f"the row {row} cannot be written: {error}") from None


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def read(path: Path) -> History:
    """The history in a file; `UserError` with the line of whatever is wrong in it."""
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            return _Reader(str(path)).history(lines)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"the history cannot be read: {reason}", where=str(path)) from None


class _Reader:
    def __init__(self, name: str) -> None:
        self._name = name
        self._line = 0
        self._schemas: dict[str, RelationSchema] = {}
        self._contents: dict[str, dict[tuple[Any, ...], int]] = {}
        """What the relations hold, while transactions are read."""
        self._initial: dict[str, Bag] = {}
        self._views: dict[str, HistoryView] = {}
        self._compiled: dict[str, View] = {}
        self._types: dict[str, dict[str, str] | None] = {}
        self._transactions: dict[str, HistoryTransaction] = {}
        self._states: list[tuple[int, HistoryState]] = []
        self._start: dict[str, str] = {}

    def history(self, lines: Iterable[str]) -> History:
        readers = {
            "relation": self._relation,
            "view": self._view,
            "transaction": self._transaction,
            "state": self._state,
        }
        headed = False
        for number, line in enumerate(lines, 1):
            self._line = number
            if not line.strip():
                continue
            document = self._parsed(line)
            if not headed:
                self._header(document)
                headed = True
                continue
            kind = next(iter(document), "")
            if len(document) != 1 or kind not in readers:
                raise self._wrong("the line is none of relation, view, transaction and state", _SHAPE)
            readers[kind](self._object(document[kind], f"the {kind}"))
        self._check_whole()
        return History(
            tuple((schema, self._initial[id_]) for id_, schema in self._schemas.items()),
            tuple(self._views.values()),
            tuple(self._transactions.values()),
            tuple(state for _, state in self._states),
            self._start,
        )

    def _check_whole(self) -> None:
        for what, found in (("view", self._views), ("state", self._states)):
            if not found:
                raise self._wrong(f"the history has no {what}", f"Add at least one line {{{json.dumps(what)}: …}}.")
        sources = {schema.source for schema in self._schemas.values()}
        for source in self._start:
            if source not in sources:
                self._line = 1
                raise self._wrong(f"there is no source {source!r}", _known(sources))
        known = self._known_positions(sources)
        for line, state in self._states:
            self._line = line
            for view, claimed in (state.positions or {}).items():
                self._check_claim(view, claimed, known)

    # ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _parsed(self, line: str) -> dict[str, Any]:
        try:
            document = json.loads(line, object_pairs_hook=self._once, parse_constant=self._constant)
        except json.JSONDecodeError as error:
            raise self._wrong(f"this is not JSON: {error.msg} at column {error.colno}", _SHAPE) from None
        except (ValueError, RecursionError) as error:
            raise self._wrong(f"this is not JSON that can be read: {error}", _SHAPE) from None
        return self._object(document, "a line")

    def _constant(self, name: str) -> None:
        raise self._wrong(f"{name} is not JSON", f'Write it as a string: "{name}".')

    def _once(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            twice = next(name for i, (name, _) in enumerate(pairs) if name in dict(pairs[:i]))
            raise self._wrong(f"{twice!r} stands twice in one object", "Write each name once.")
        return found

    def _header(self, document: dict[str, Any]) -> None:
        shown = json.dumps(HEADER)
        if document.get("strobe") != "history":
            raise self._wrong("the file does not begin as a history does", f"Make {shown} the first line.")
        if document.get("format") != FORMAT:
            fix = f"This version of Strobe reads format {FORMAT}."
            raise self._wrong(f"the history has format {document.get('format')!r}", fix)
        self._fields(document, "the header", ("strobe", "format"), ("positions",))
        self._start = self._words(document.get("positions", {}), "positions")

    def _relation(self, body: dict[str, Any]) -> None:
        self._fields(body, "the relation", ("source", "name", "columns"), ("key", "rows"))
        columns = self._columns(body["columns"])
        key = tuple(self._text(name, "a key column") for name in self._list(body.get("key", []), "key"))
        for name in key:
            if name not in [column.name for column in columns]:
                raise self._wrong(f"the key column {name!r} is not a column", "Name columns of the relation.")
        schema = RelationSchema(self._text(body["source"], "source"), self._text(body["name"], "name"), columns, key)
        if schema.id in self._schemas:
            raise self._wrong(f"the relation {schema.id} is there twice", "Leave one of the lines away.")
        if self._views or self._transactions or self._states:
            raise self._wrong("a relation comes after views, transactions or states", "Put relations first.")
        types = _types(columns)
        rows = [self._row(row, types, schema.id) for row in self._list(body.get("rows", []), "rows")]
        self._schemas[schema.id] = schema
        self._initial[schema.id] = Bag.of(list(types), rows)
        self._contents[schema.id] = dict(self._initial[schema.id].items())

    def _view(self, body: dict[str, Any]) -> None:
        self._fields(body, "the view", ("name", "sql"), ("columns",))
        name, sql = self._text(body["name"], "name"), self._text(body["sql"], "sql")
        if name in self._views:
            raise self._wrong(f"the view {name} is there twice", "Leave one of the lines away.")
        if self._states:
            raise self._wrong("a view comes after states", "Put views before the first state.")
        compiled = compile_view(name, sql, self._schemas, where=f"{self._where()}, view {name}")
        columns = self._columns(body["columns"]) if "columns" in body else ()
        outputs = [output.name for output in compiled.outputs]
        if columns and [column.name for column in columns] != outputs:
            raise self._wrong(f"the view's SQL yields the columns {', '.join(outputs)}", "Name just these, in order.")
        self._views[name] = HistoryView(name, sql, columns)
        self._compiled[name] = compiled
        self._types[name] = _output_types(compiled, columns)

    def _transaction(self, body: dict[str, Any]) -> None:
        self._fields(body, "the transaction", ("id", "changes"), ("position", "positions", "at"))
        id_ = self._text(body["id"], "id")
        self._text(body.get("at", "now"), "at")
        if id_ in self._transactions:
            fix = "Give each transaction its own id; parts of a global one stand in one line."
            raise self._wrong(f"the transaction {id_} is there twice", fix)
        parts = {
            source: {name: self._change(source, name, change) for name, change in self._object(own, source).items()}
            for source, own in self._object(body["changes"], "changes").items()
        }
        if not parts:
            raise self._wrong("the transaction has no source", "Name at least one source in its changes.")
        for source in parts:
            self._check_source(source)
        positions = self._words(body.get("positions", {}), "positions")
        if "position" in body:
            if len(parts) != 1 or positions:
                raise self._wrong("`position` is for one source", 'Write "positions": {"source": "position", …}.')
            positions = dict.fromkeys(parts, self._text(body["position"], "position"))
        for source in positions:
            if source not in parts:
                raise self._wrong(f"there is a position of {source!r}, but no part", "Give positions of its sources.")
        self._transactions[id_] = HistoryTransaction(id_, parts, positions)

    def _change(self, source: str, name: str, change: Any) -> Bag:
        id_ = f"{source}.{name}"
        if id_ not in self._schemas:
            raise self._wrong(f"there is no relation {id_}", _known(self._schemas))
        bag = self._signed(change, _types(self._schemas[id_].columns), id_)
        contents = self._contents[id_]
        for row, count in bag.items():
            contents[row] = contents.get(row, 0) + count
            if contents[row] < 0:
                fix = "Changes are what really happened: check the rows before, and the order of the transactions."
                raise self._wrong(f"the row {list(row)} is taken out of {id_}, but is not there", fix)
        return bag

    def _state(self, body: dict[str, Any]) -> None:
        self._fields(body, "the state", ("views",), ("positions", "at"))
        self._text(body.get("at", "now"), "at")
        rows: dict[str, Bag] = {}
        changes: dict[str, Bag] = {}
        for name, shown in self._object(body["views"], "views").items():
            if name not in self._views:
                raise self._wrong(f"there is no view {name!r}", _known(self._views))
            given = self._object(shown, f"view {name}")
            self._fields(given, f"view {name}", (), ("rows", "changes"))
            if len(given) != 1:
                raise self._wrong(f"view {name} has both or neither of rows and changes", "Give one of them.")
            outputs = [output.name for output in self._compiled[name].outputs]
            types = self._types[name]
            if "changes" in given:
                changes[name] = self._signed(given["changes"], types, name, outputs)
            else:
                found = [self._row(row, types, name, outputs) for row in self._list(given["rows"], "rows")]
                rows[name] = Bag.of(outputs, found)
        missing = [name for name in self._views if name not in rows] if not self._states else []
        if missing:
            raise self._wrong(f"the first state has no rows of {missing[0]}", "The first state shows all views' rows.")
        positions = self._claims(body["positions"]) if "positions" in body else None
        self._states.append((self._line, HistoryState(rows, changes, positions)))

    # ── claims ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _claims(self, found: Any) -> dict[str, dict[str, int | str]]:
        claims: dict[str, dict[str, int | str]] = {}
        for view, own in self._object(found, "positions").items():
            if view not in self._views:
                raise self._wrong(f"there is no view {view!r}", _known(self._views))
            claims[view] = self._object(own, f"positions of {view}")
            missing = [source for source in self._compiled[view].sources if source not in claims[view]]
            if missing:
                fix = "Say for each source that the view reads which position it reflects, or claim nothing."
                raise self._wrong(f"the state claims no position of {missing[0]} for view {view}", fix)
        return claims

    def _known_positions(self, sources: Iterable[str]) -> dict[str, list[str | None]]:
        known: dict[str, list[str | None]] = {source: [self._start.get(source)] for source in sources}
        for transaction in self._transactions.values():
            for source in transaction.parts:
                known[source].append(transaction.positions.get(source))
        return known

    def _check_claim(self, view: str, claimed: Mapping[str, int | str], known: Mapping[str, list[str | None]]) -> None:
        for source, claim in claimed.items():
            self._check_source(source)
            if isinstance(claim, bool) or not isinstance(claim, (int, str)):
                fix = "Write how many of its transactions it reflects, or the position that the last of them has."
                raise self._wrong(f"the position {claim!r} of {source} for view {view} is neither", fix)
            if claim not in (known[source] if isinstance(claim, str) else range(len(known[source]))):
                fix = f"{source} has {len(known[source]) - 1} transactions; positions are those that they carry."
                raise self._wrong(f"there is no position {claim!r} of {source}", fix)

    def _check_source(self, source: str) -> None:
        sources = {schema.source for schema in self._schemas.values()}
        if source not in sources:
            raise self._wrong(f"there is no source {source!r}", _known(sources))

    # ── parts of lines ───────────────────────────────────────────────────────────────────────────────────────────────

    def _columns(self, found: Any) -> tuple[Column, ...]:
        columns: dict[str, Column] = {}
        for item in self._list(found, "columns"):
            body = self._object(item, "a column")
            self._fields(body, "the column", ("name", "type"))
            name = self._text(body["name"], "name")
            if name.lower() in columns:
                raise self._wrong(f"the column {name} is there twice", "Names are compared without case.")
            try:
                columns[name.lower()] = Column(name, normal_type(self._text(body["type"], "type")))
            except Unfit as error:
                raise self._wrong(f"column {name}: {error}", "Name one of these types.") from None
        if not columns:
            raise self._wrong("there are no columns", 'Write "columns": [{"name": "id", "type": "bigint"}, …].')
        return tuple(columns.values())

    def _signed(self, found: Any, types: Mapping[str, str] | None, what: str, names: Sequence[str] = ()) -> Bag:
        counts: dict[tuple[Any, ...], int] = {}
        for item in self._list(found, f"the changes of {what}"):
            pair = self._list(item, "a change")
            if len(pair) != 2 or not isinstance(pair[0], int) or isinstance(pair[0], bool) or not pair[0]:
                fix = "Write [1, [values]] for a row that comes and [-1, [values]] for one that goes."
                raise self._wrong(f"a change of {what} is not a count and a row", fix)
            row = self._row(pair[1], types, what, names)
            counts[row] = counts.get(row, 0) + pair[0]
        return Bag(list(types or names), counts)

    def _row(
        self, found: Any, types: Mapping[str, str] | None, what: str, names: Sequence[str] = ()
    ) -> tuple[Any, ...]:
        values = self._list(found, f"a row of {what}")
        columns = list(types or names)
        if len(values) != len(columns):
            fix = f"Give one value for each of {', '.join(columns)}."
            raise self._wrong(f"a row of {what} has {len(values)} values, not {len(columns)}", fix)
        if types is None:
            return tuple(json.dumps(value) if isinstance(value, (list, dict)) else value for value in values)
        row = []
        for value, (column, type_) in zip(values, types.items(), strict=True):
            try:
                row.append(decode(value, type_))
            except Unfit as error:
                raise self._wrong(f"{what}, column {column}: {error}", f"The column is a {type_}.") from None
        return tuple(row)

    def _words(self, found: Any, what: str) -> dict[str, str]:
        return {name: self._text(value, f"{what} of {name}") for name, value in self._object(found, what).items()}

    def _fields(
        self, body: Mapping[str, Any], what: str, required: Sequence[str], optional: Sequence[str] = ()
    ) -> None:
        for name in required:
            if name not in body:
                raise self._wrong(f"{what} has no {name!r}", f"It needs {', '.join(required)}.")
        for name in body:
            if name not in (*required, *optional):
                fix = f"It may have {', '.join((*required, *optional))}."
                raise self._wrong(f"{what} has an unknown field {name!r}", fix)

    def _object(self, found: Any, what: str) -> dict[str, Any]:
        if not isinstance(found, dict):
            raise self._wrong(f"{what} is not an object", "Write {…}.")
        return found

    def _list(self, found: Any, what: str) -> list[Any]:
        if not isinstance(found, list):
            raise self._wrong(f"{what} is not a list", "Write […].")
        return found

    def _text(self, found: Any, what: str) -> str:
        if not isinstance(found, str) or not found:
            raise self._wrong(f"{what} is not a text", 'Write "…", not empty.')
        return found

    def _where(self) -> str:
        return f"{self._name}, line {self._line}"

    def _wrong(self, message: str, fix: str) -> UserError:
        return UserError(message, where=self._where(), fix=fix)


_SHAPE = 'Each line is {"relation": {…}}, {"view": {…}}, {"transaction": {…}} or {"state": {…}}.'


def _types(columns: Iterable[Column]) -> dict[str, str]:
    return {column.name: column.type for column in columns}


def _output_types(view: View, columns: Iterable[Column]) -> dict[str, str] | None:
    """The types of a view's columns: as they are given, or as the SQL says; None where only Spark could say."""
    try:
        return _types(columns) or Recomputation(view).types
    except CannotEvaluate:
        return None


def _known(names: Iterable[str]) -> str:
    return f"There are {', '.join(sorted(names))}."
