"""The exactness contract of `sources.base`, held against every source."""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from patience import PATIENCE

from strobe.algebra.bag import Bag, Row
from strobe.errors import LostGuarantee, SourceUnavailable, UserError
from strobe.messages import Lookup, Query, Seen, Transaction
from strobe.sources.base import Source
from strobe.sources.lookups import answer_on_driver

if TYPE_CHECKING:
    from conftest import SourceUnderTest

ORDERS = ({"id": "bigint", "customer": "bigint", "note": "string"}, ("id",))
ITEMS = ({"order_id": "bigint", "article": "string"}, ())

Read = Callable[..., list[Transaction]]
Total = Callable[[Sequence[Transaction], str, Bag], Bag]
Background = Callable[[Callable[[int], None]], None]


@pytest.fixture
def source(under_test: SourceUnderTest) -> Source:
    """A prepared source with one empty relation `orders`, which has a key."""
    return under_test.prepared({"orders": ORDERS})


@pytest.fixture
def both(under_test: SourceUnderTest) -> Source:
    """As `source`, with a relation `items` that has no key."""
    return under_test.prepared({"orders": ORDERS, "items": ITEMS})


def empty(relation: str = "orders") -> Bag:
    return Bag(tuple((ORDERS if relation == "orders" else ITEMS)[0]))


def order(n: int, customer: int | None = 1, note: str | None = "") -> Row:
    return (n, customer, note)


def changed(transactions: Sequence[Transaction]) -> list[Transaction]:
    """Without those that only say how far the log was read: when they come, and where, is nobody's promise."""
    return [t for t in transactions if t.changes or t.gone]


def ask(
    source: Source, relation: str, columns: Sequence[str], on: Sequence[str] = (), keys: Iterable[Row] | None = None
) -> tuple[Bag, Seen]:
    """One look-up in a snapshot of its own."""
    wanted = None if keys is None else Bag.of(tuple(on), keys)
    lookup = Lookup(0, relation, tuple(columns), tuple(on), wanted)
    (found,), seen = answer_on_driver(source.reader(), Query("v", 1, source.name, (lookup,)), 10**6)
    return found, seen


def random_change(rng: random.Random, now: dict[int, Row]) -> list[tuple[str, Row | None, Row | None]]:
    """A transaction of one to four changes of `orders`, whose present rows are `now`; keys change too."""
    changes: list[tuple[str, Row | None, Row | None]] = []
    for _ in range(rng.randint(1, 4)):
        row = order(rng.randint(1, 8), rng.choice([None, 1, 2]), rng.choice(["", "x", None]))
        old = now.pop(rng.choice(list(now))) if now and rng.random() < 0.6 else None
        new = None if (old and rng.random() < 0.5) or row[0] in now else row
        if new:
            now[new[0]] = new
        if old or new:
            changes.append(("orders", old, new))
    return changes


@pytest.mark.needs("several relations")
def test_a_transaction_comes_out_whole(under_test: SourceUnderTest, both: Source, read: Read) -> None:
    """Changes of two relations in one transaction are in one message, also when it is read while it is written."""
    start = both.now()
    under_test.apply([("orders", None, order(1)), ("items", None, (1, "duck")), ("items", None, (1, "duck"))])
    (transaction,) = changed(read(both, start, both.now()))
    assert transaction.source == both.name
    assert transaction.changes["orders"] == Bag.of(tuple(ORDERS[0]), [order(1)])
    assert transaction.changes["items"] == Bag(tuple(ITEMS[0]), {(1, "duck"): 2})
    assert transaction.committed_at is not None
    assert abs(transaction.committed_at.timestamp() - time.time()) < 600


@pytest.mark.needs("several relations")
def test_no_message_tears_a_transaction(
    under_test: SourceUnderTest, both: Source, stream: Any, in_background: Background
) -> None:
    """Under a writer whose transactions always change both relations alike, so does every reported message."""
    reading = stream(both, both.now())
    in_background(lambda n: under_test.apply([("orders", None, order(n)), ("items", None, (n, "duck"))]))
    found = 0
    while found < 20:
        for transaction in changed(reading.until(both.now())):
            ids = {row[0] for row, _ in transaction.changes["orders"].items()}
            assert ids == {row[0] for row, _ in transaction.changes["items"].items()}
            found += len(ids)
    reading.stop()


@pytest.mark.needs("many transactions")
def test_rereading_from_any_position_repeats(
    under_test: SourceUnderTest, source: Source, read: Read, total: Total
) -> None:
    """At every position ever reported the sum of the stream is what the contents were there, however it is read."""
    rng, now, states = random.Random(7), dict[int, Row](), {}
    start = source.now()
    states[start.text] = (start, empty())
    for _ in range(16):
        if changes := random_change(rng, now):
            under_test.apply(changes)
            end = source.now()
            states[end.text] = (end, under_test.contents("orders"))
    positions = list(states.values())
    stops = [p for p, _ in positions]
    again = under_test.open()
    for place, (position, state) in enumerate(positions[:-1]):
        for other, later in positions[place + 1 :: 5]:
            assert total(read(again, again.position(position.text), other, stops), "orders", state) == later
    once = changed(read(source, start, stops[-1], stops))
    assert once == changed(read(again, start, stops[-1], stops))
    for place, transaction in enumerate(once):
        state = next(state for position, state in positions if transaction.position <= position)
        assert state == total(once[: place + 1], "orders", empty())


def test_no_transaction_spans_a_stop(under_test: SourceUnderTest, source: Source, read: Read) -> None:
    """What would be reported together is split at the positions that views stand at."""
    start = source.now()
    stops = []
    for n in range(4):
        under_test.apply([("orders", None, order(n))])
        stops.append(source.now())
    found = read(source, start, stops[-1], [stops[0], stops[2]])
    ends = [t.position for t in found]
    assert {stops[0], stops[2], stops[3]} <= set(ends)
    assert ends == sorted(ends, key=lambda p: p.order)


def test_a_group_without_net_change_still_advances(under_test: SourceUnderTest, source: Source, read: Read) -> None:
    """A row that comes and goes leaves a message without changes: positions move on."""
    start = source.now()
    under_test.apply([("orders", None, order(1))])
    under_test.apply([("orders", order(1), None)])
    end = source.now()
    found = read(source, start, end, [end])
    assert end <= found[-1].position
    assert sum(bool(t.changes) for t in found) in (0, 2)


def test_the_stream_stops_when_told(source: Source) -> None:
    """A stream with nothing to report ends soon after it is told to."""
    until = time.monotonic() + 0.2
    assert changed(list(source.transactions(source.now(), [], lambda: time.monotonic() > until))) == []
    assert time.monotonic() < until + PATIENCE


@pytest.mark.needs("many transactions")
@pytest.mark.parametrize("exact", [False, True])
def test_an_answer_is_the_state_that_it_has_seen(
    under_test: SourceUnderTest, source: Source, stream: Any, total: Total, in_background: Background, exact: bool
) -> None:
    """Under a concurrent writer: the transactions that a snapshot had seen sum to what the snapshot holds, both in the
    stream that was running when it was taken and in one read later that stops there. A snapshot at a position had seen
    everything before it."""
    start = source.now()
    reading = stream(source, start)
    rng, now = random.Random(3), dict[int, Row]()

    def write(_: int) -> None:
        if changes := random_change(rng, now):
            under_test.apply(changes)

    in_background(write)
    rounds = 0
    while (rounds := rounds + 1) <= 15 or len(reading.seen) <= 3:
        reader = source.reader(at_a_position=exact)
        seen = reader.open()
        time.sleep(0.01)
        columns = tuple(ORDERS[0])
        scanned = Bag.of(columns, reader.scan("orders", columns))
        time.sleep(0.01)
        asked = Bag.of(columns, reader.lookup(Lookup(0, "orders", columns), None))
        reader.close()
        again = stream(source, start, [seen.through])
        upto = again.until(seen.through)
        again.stop()
        reading.until(source.now())
        assert upto[-1:] == [t for t in upto if t.position == seen.through]
        assert not exact or all(seen.saw(t) for t in upto)
        assert scanned == asked == total([t for t in upto if seen.saw(t)], "orders", empty())
        assert scanned == total([t for t in reading.seen if seen.saw(t)], "orders", empty())
    reading.stop()


def test_values_are_the_same_from_everywhere(under_test: SourceUnderTest, read: Read) -> None:
    """Each type's values come out of the stream, a look-up and a scan identical in type and value, NULL included."""
    types = dict(enumerate(under_test.values))
    columns = {"id": "bigint"} | {f"c{i}": type_ for i, type_ in types.items()}
    source = under_test.prepared({"wide": (columns, ("id",))})
    start = source.now()
    longest = max(map(len, under_test.values.values()))
    padded = [[*values, *[None] * (longest - len(values))] for values in under_test.values.values()]
    expected = {n: (n, *row) for n, row in enumerate(zip(*padded, strict=True))}
    under_test.apply([("wide", None, row) for row in expected.values()])
    (transaction,) = changed(read(source, start, source.now()))
    streamed = {row[0]: row for row, _ in transaction.changes["wide"].items()}
    scanned = {row[0]: row for row, _ in ask(source, "wide", tuple(columns))[0].items()}
    found, _ = ask(source, "wide", tuple(columns), ["id"], [(n,) for n in expected])
    for n, row in expected.items():
        looked_up = {r[0]: r for r, _ in found.items()}[n]
        assert exact(streamed[n]) == exact(scanned[n]) == exact(looked_up) == exact(row)


def exact(row: Row) -> list[tuple[type, str]]:
    return [(type(v), repr(v)) for v in row]


@pytest.mark.needs("many transactions")
def test_a_lookup_never_misses_a_row(under_test: SourceUnderTest) -> None:
    """Every value of every type finds the rows that have it, by itself and among other keys; no row comes twice."""
    tables = {
        f"of_{n}": ({"id": "bigint", "c": type_, "d": type_}, ("id",)) for n, type_ in enumerate(under_test.values)
    }
    of_all = None if "several relations" in under_test.lacks else under_test.prepared(tables)
    for (name, table), (type_, values) in zip(tables.items(), under_test.values.items(), strict=True):
        source = of_all or under_test.prepared({name: table})
        rows = [(n, v, w) for n, (v, w) in enumerate((v, w) for v in [*values, None] for w in [*values[:2], None])]
        under_test.apply([(name, None, row) for row in rows])
        for value in values:
            found, _ = ask(source, name, ["id", "c", "d"], ["c"], [(value,)])
            for row in rows:
                assert row[1] != value or (row, 1) in found.items(), f"{type_}: {value!r} must find {row}"
            pair, _ = ask(source, name, ["id"], ["c", "d"], [(value, values[0])])
            assert {(r[0],) for r in rows if r[1:] == (value, values[0])} <= {row for row, _ in pair.items()}
        everything, _ = ask(source, name, ["id"], ["c"], [(v,) for v in values])
        assert set(everything.items()) >= {((r[0],), 1) for r in rows if r[1] is not None}
        assert all(count == 1 for _, count in everything.items())


def test_many_keys_and_keys_of_an_earlier_lookup(under_test: SourceUnderTest, source: Source) -> None:
    """Look-ups by thousands of keys, and by what an earlier look-up of the same query found, in the same snapshot."""
    under_test.apply([("orders", None, order(n, n + 1)) for n in range(3000)])
    found, _ = ask(source, "orders", ["id"], ["customer"], [(n,) for n in range(2500)])
    assert {row[0] for row, _ in found.items()} >= set(range(2499))
    assert all(count == 1 for _, count in found.items())
    first = Lookup(0, "orders", ("customer",), ("id",), Bag.of(("id",), [(5,)]))
    second = Lookup(1, "orders", ("id",), ("id",), None, keys_from=(0, ("customer",)))
    (_, rows), _ = answer_on_driver(source.reader(), Query("v", 1, source.name, (first, second)), 10**6)
    assert (6,) in dict(rows.items())


@pytest.mark.needs("without key", "duplicates")
def test_duplicates_are_kept(under_test: SourceUnderTest, both: Source, read: Read, total: Total) -> None:
    """A relation without a key holds equal rows as often as they are there; NULLs too."""
    start = both.now()
    under_test.apply([("items", None, (1, "duck"))] * 3 + [("items", None, (None, None))] * 2)
    middle = both.now()
    under_test.apply([("items", (1, "duck"), None), ("items", (None, None), (None, "x"))])
    expected = Bag(tuple(ITEMS[0]), {(1, "duck"): 2, (None, None): 1, (None, "x"): 1})
    assert under_test.contents("items") == expected
    assert total(read(both, start, both.now(), [middle]), "items", empty("items")) == expected
    assert ask(both, "items", tuple(ITEMS[0]))[0] == expected
    assert dict(ask(both, "items", tuple(ITEMS[0]), ["order_id"], [(1,)])[0].items())[(1, "duck")] == 2
    (schema,) = (s for s in both.schemas() if s.name == "items")
    assert schema.key == ()


def test_a_key_that_changes_is_one_event(under_test: SourceUnderTest, source: Source, read: Read) -> None:
    """An update of a key is one row going and one coming, in one message."""
    under_test.apply([("orders", None, order(1))])
    start = source.now()
    under_test.apply([("orders", order(1), order(9))])
    (transaction,) = changed(read(source, start, source.now()))
    assert transaction.changes["orders"] == Bag(tuple(ORDERS[0]), {order(1): -1, order(9): 1})


def test_schema_and_key(source: Source) -> None:
    """The relation is offered with its columns, types and key, under which it can be searched."""
    (schema,) = source.schemas()
    assert (schema.id, schema.key) == (f"{source.name}.orders", ("id",))
    assert {c.name: c.type for c in schema.columns} == ORDERS[0]
    assert schema.column("id").searchable


def test_identity_and_position_survive(under_test: SourceUnderTest, source: Source) -> None:
    """Another process sees the same identity, and a position as text means the same again."""
    under_test.apply([("orders", None, order(1))])
    position, again = source.now(), under_test.open()
    assert again.identity() == source.identity()
    assert again.position(position.text) == position
    again.verify(position)
    source.prepare(["orders"])
    assert again.identity() == source.identity() and position <= again.now()
    again.verify(position)
    with pytest.raises(UserError):
        again.position("no position")


def test_another_log_is_another_identity(under_test: SourceUnderTest, source: Source) -> None:
    """A source made anew has another identity, and does not pass for the old one by its positions."""
    under_test.apply([("orders", None, order(1))])
    before, position = source.identity(), source.now()
    fresh = under_test.prepared({"orders": ORDERS})
    under_test.apply([("orders", None, order(2))])
    assert fresh.identity() != before
    with pytest.raises(LostGuarantee):
        fresh.verify(position)


@pytest.mark.needs("restore")
def test_a_restored_backup_is_noticed(under_test: SourceUnderTest, source: Source) -> None:
    """A position before the backup still holds; one after it is lost, also once the log is as long again."""
    under_test.apply([("orders", None, order(1))])
    before = source.now()
    under_test.backup()
    under_test.apply([("orders", None, order(2))])
    after = source.now()
    under_test.restore()
    source.verify(before)
    with pytest.raises(LostGuarantee, match="restored"):
        source.verify(after)
    under_test.apply([("orders", None, order(3))])
    under_test.apply([("orders", None, order(4))])
    with pytest.raises(LostGuarantee) as caught:
        source.verify(after)
    assert "rebuild" in caught.value.fix.lower()
    with pytest.raises(LostGuarantee):
        next(source.transactions(after, [], lambda: False))


@pytest.mark.needs("restore")
def test_a_restore_under_a_running_stream_is_noticed(under_test: SourceUnderTest, source: Source, stream: Any) -> None:
    """A stream that has read past the backup does not go on as if nothing had happened."""
    under_test.backup()
    reading = stream(source, source.now())
    under_test.apply([("orders", None, order(1))])
    reading.until(source.now())
    under_test.restore()
    under_test.apply([("orders", None, order(2))])
    with pytest.raises(LostGuarantee):
        next(reading.iterator)


@pytest.mark.needs("prune")
def test_a_pruned_log_is_noticed(under_test: SourceUnderTest, source: Source) -> None:
    """A position that the log no longer reaches back to is lost, in `verify` and in the stream."""
    start = source.now()
    under_test.apply([("orders", None, order(1))])
    under_test.apply([("orders", None, order(2))])
    under_test.prune()
    with pytest.raises(LostGuarantee):
        source.verify(start)
    with pytest.raises(LostGuarantee):
        next(source.transactions(start, [], lambda: False))
    source.verify(source.now())


@pytest.mark.needs("many transactions")
def test_discard_keeps_what_is_needed(under_test: SourceUnderTest, source: Source, read: Read, total: Total) -> None:
    """After discarding through a position everything from it on can be read, and the position still verifies."""
    for n in range(5):
        under_test.apply([("orders", None, order(n))])
    position, state = source.now(), under_test.contents("orders")
    for n in range(5, 8):
        under_test.apply([("orders", None, order(n))])
    source.discard(position)
    source.verify(position)
    again = under_test.open()
    assert total(read(again, position, again.now()), "orders", state) == under_test.contents("orders")
    source.discard(source.now())
    source.verify(source.now())
    under_test.apply([("orders", order(1), None)])
    assert source.now().order > position.order


def test_a_reader_pickles(under_test: SourceUnderTest, source: Source) -> None:
    """Executors get the reader by pickle and see what the driver sees."""
    under_test.apply([("orders", None, order(1))])
    reader = pickle.loads(pickle.dumps(source.reader()))
    before = source.now()
    through = reader.open().through
    assert before <= through <= source.now()
    assert list(reader.scan("orders", ["id"])) == [(1,)]
    reader.close()


@pytest.mark.needs("outage")
def test_an_outage_is_worth_another_try(under_test: SourceUnderTest, source: Source, stream: Any) -> None:
    """A source that does not answer says so with the error that is retried, from the stream and from readers."""
    reading = stream(source, source.now())
    under_test.apply([("orders", None, order(1))])
    reading.until(source.now())
    under_test.outage()
    for attempt in (source.now, source.identity, lambda: source.reader().open(), lambda: list(reading.iterator)):
        with pytest.raises(SourceUnavailable):
            attempt()
    assert [f.severity for f in source.check(["orders"])] == ["error"]
    source.discard(source.position(reading.position.text))


@pytest.mark.needs("prepare")
def test_preparing_and_undoing(under_test: SourceUnderTest) -> None:
    """An unprepared source is found by `check` and by the first use; a prepared one has nothing left to do."""
    under_test.create({"orders": ORDERS})
    source = under_test.open()
    finding = source.check(["orders"])[0]
    assert finding.severity == "error" and "strobe prepare" in finding.fix
    for attempt in (source.now, source.identity, lambda: source.reader().open()):
        with pytest.raises(UserError, match="prepare"):
            attempt()
    assert source.prepare_script(["orders"])
    source.prepare(["orders"])
    assert source.check(["orders"]) == [] and source.prepare_script(["orders"]) == []
    assert source.undo()
    assert source.check(["orders"])[0] == finding
    assert source.undo() == []


def test_an_unknown_relation_is_found(source: Source) -> None:
    """`check` names a relation that is not there, and `prepare` refuses it without doing anything."""
    (finding,) = source.check(["nothing"])
    assert finding.severity == "error" and "nothing" in finding.where
    with pytest.raises(UserError):
        source.prepare(["nothing"])
    assert source.check(["orders"]) == []


def test_how_much_log_is_left_shrinks_with_what_has_been_read(under_test: SourceUnderTest, source: Source) -> None:
    """In the source's own unit: nothing from a position to itself; what is between two adds up."""
    start = source.now()
    under_test.apply([("orders", None, order(1))])
    middle = source.now()
    under_test.apply([("orders", None, order(2))])
    end = source.now()
    first, second, both = (source.distance(a, b) for a, b in ((start, middle), (middle, end), (start, end)))
    assert 0 < first < both and first + second == both
    assert source.distance(end, end) == source.distance(end, start) == 0
    assert source.log_unit
