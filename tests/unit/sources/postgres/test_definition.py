"""What happened between two fingerprints, without a server."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from strobe.sources.postgres.definition import changed

FACTS: dict[str, Any] = {
    "root": [[1, False]],
    "table": [[1, "orders", "r", "p", "d", 2, 10, "700"]],
    "column": [
        [1, "id", False, 20, -1, 0, "", "700"],
        [2, "how", False, 50, -1, 0, "", "700"],
        [3, "spare", False, 25, -1, 100, "", "700"],
    ],
    "type": [[50, "public.moods", "b", 0, -1, 51], [51, "public.mood", "e", 0, -1, 0]],
    "label": [[60, 51, "calm", "690"], [61, 51, "glad", "690"]],
    "key": [[70, [1], False]],
    "publication": [[80, False, True, True, True, True, True, "710"]],
    "entry": [[1, 81, False, "711"]],
}
PARTITIONED: dict[str, Any] = FACTS | {
    "table": [[1, "orders", "p", "p", "d", 0, 0, "700"], [2, "p1", "r", "p", "d", 2, 20, "700"]],
    "link": [[2, 1, False, "700", True]],
}


def what(facts: dict[str, Any], path: tuple[Any, ...], value: Any, *columns: str) -> str:
    """What is said if one value, or one row, of the facts becomes another; None takes it out."""
    after = copy.deepcopy(facts)
    place = after
    for step in path[:-1]:
        place = place[step]
    if value is None:
        del place[path[-1]]
    elif isinstance(place, list) and path[-1] == len(place):
        place.append(value)
    else:
        place[path[-1]] = value
    return changed(columns or ("id", "how"), json.dumps(facts), json.dumps(after))


def test_the_same_is_no_change() -> None:
    assert changed(["id"], "x", "x") == ""


@pytest.mark.parametrize(
    ("facts", "path", "value"),
    [
        (FACTS, ("table", 0, 1), "renamed"),
        (FACTS, ("table", 0, 6), 11),
        (FACTS, ("table", 0, 7), "900"),
        (FACTS, ("table", 0, 4), "f"),
        (FACTS, ("column", 0, 7), "900"),
        (FACTS, ("column", 2), None),
        (FACTS, ("column", 3), [4, "more", False, 20, -1, 0, "", "900"]),
        (FACTS, ("label", 2), [62, 51, "sad", "900"]),
        (FACTS, ("schema",), [[90, "900"]]),
        (FACTS, ("mistaken",), ["spare"]),
        (PARTITIONED, ("table", 1, 1), "renamed"),
        (PARTITIONED, ("table", 1, 7), "900"),
        (PARTITIONED, ("table", 1, 4), "f"),
    ],
)
def test_what_is_known_to_be_harmless(facts: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    """A new file or a new row of the catalog alone, what no view uses, and what is added beside the rest."""
    assert what(facts, path, value) == ""


@pytest.mark.parametrize(
    ("facts", "path", "value", "said"),
    [
        (FACTS, ("root", 0, 0), 5, "replaced by another table"),
        (FACTS, ("root", 0, 1), True, "row security"),
        (FACTS, ("table", 0, 2), "v", "another kind"),
        (FACTS, ("table", 0, 3), "u", "UNLOGGED"),
        (FACTS, ("table", 0, 4), "n", "NOTHING"),
        (FACTS, ("table", 0, 5), 9, "access method"),
        (FACTS, ("table", 1), [9, "kid", "r", "p", "d", 2, 9, "9"], "kid"),
        (FACTS, ("column", 0), None, "column id was dropped or renamed"),
        (FACTS, ("column", 1, 0), 9, "column how is another one"),
        (FACTS, ("column", 1, 3), 25, "column how has another type"),
        (FACTS, ("type", 1, 1), "public.temper", "type public.mood was altered"),
        (FACTS, ("label", 0, 3), "900", "'calm' of type public.mood was renamed"),
        (FACTS, ("label", 0), None, "'calm'"),
        (FACTS, ("key", 0, 0), 99, "primary key"),
        (FACTS, ("key",), None, "primary key"),
        (FACTS, ("publication",), None, "publication was dropped"),
        (FACTS, ("publication", 0, 0), 99, "created again"),
        (FACTS, ("publication", 0, 3), False, "all kinds"),
        (FACTS, ("publication", 0, 6), False, "own names"),
        (FACTS, ("publication", 0, 7), "900", "for a while"),
        (FACTS, ("entry",), None, "taken out"),
        (FACTS, ("entry", 0, 1), 99, "put back"),
        (FACTS, ("entry", 0, 2), True, "row filter"),
        (FACTS, ("entry", 1), [7, 99, False, "9"], "partition of was put into the publication"),
        (FACTS, ("above",), [[1, 7, "900"]], "became a partition"),
        (FACTS, ("publication", 0), [1], "another version of Strobe"),
        (PARTITIONED, ("table", 1), None, "p1 was dropped or detached"),
        (PARTITIONED, ("table", 1, 6), 21, "p1 was truncated or rewritten"),
        (PARTITIONED, ("table", 1, 4), "n", "p1 has REPLICA IDENTITY NOTHING"),
        (PARTITIONED, ("link", 0, 3), "900", "p1 was detached and attached again"),
        (PARTITIONED, ("link", 0, 2), True, "p1 was detached"),
        (PARTITIONED, ("gone",), [7], "came, and was dropped"),
        (FACTS, ("mistaken",), ["how"], "column how was another one when"),
    ],
)
def test_everything_else_is_named(facts: dict[str, Any], path: tuple[Any, ...], value: Any, said: str) -> None:
    """Each fact alone, in words that say what happened."""
    assert said in what(facts, path, value)


def test_a_new_partition_is_harmless_if_it_was_created_as_one() -> None:
    """Otherwise it may have had rows, or its changes do not come as they should."""

    def added(born: bool = True, persistence: str = "p", identity: str = "d") -> str:
        after = copy.deepcopy(PARTITIONED)
        after["table"].append([3, "p2", "r", persistence, identity, 2, 30, "900"])
        after["link"].append([3, 1, False, "900", born])
        return changed(["id"], json.dumps(PARTITIONED), json.dumps(after))

    assert added() == added(identity="f") == ""
    assert "p2 was attached" in added(born=False)
    assert "p2 is UNLOGGED" in added(persistence="u")
    assert "p2 has REPLICA IDENTITY NOTHING" in added(identity="n")


def test_a_rewritten_file_with_a_rewritten_column() -> None:
    """Looks like ALTER COLUMN … TYPE … USING, unless no view uses the column."""
    after = copy.deepcopy(FACTS)
    after["table"][0][6] = 11
    after["column"][2][7] = "900"
    assert changed(["id", "how"], json.dumps(FACTS), json.dumps(after)) == ""
    assert changed(["spare"], json.dumps(FACTS), json.dumps(after)) == "its column spare was rewritten"


@pytest.mark.parametrize(
    ("type_", "before", "after", "file", "said"),
    [
        (1043, 24, 54, 10, ""),
        (1043, 24, -1, 10, ""),
        (1043, -1, -1, 10, ""),
        (1043, 54, 24, 10, "another type"),
        (1043, -1, 54, 10, "another type"),
        (1043, 24, 54, 11, "was rewritten"),
        (1042, 24, 54, 10, "another type"),
        (1700, 655366, 786438, 10, "another type"),
    ],
)
def test_a_varchar_that_takes_longer_texts(type_: int, before: int, after: int, file: int, said: str) -> None:
    """Its rows are as they were, if its file is; `char` pads, and a view's decimals have the digits of the column's."""
    old, new = copy.deepcopy(FACTS), copy.deepcopy(FACTS)
    old["column"][1] = [2, "how", False, type_, before, 100, "", "700"]
    new["column"][1] = [2, "how", False, type_, after, 100, "", "900"]
    new["table"][0][6] = file
    found = changed(("id", "how"), json.dumps(old), json.dumps(new))
    assert said in found if said else found == ""


def test_a_key_counts_as_used() -> None:
    """The log names old rows by it, whether a view uses it or not."""
    assert "column id" in what(FACTS, ("column", 0, 1), "number", "how")


def test_a_new_file_counts_where_the_log_may_not_have_truncate() -> None:
    """A table that is published as one of all tables, or of a schema, may have been UNLOGGED for a while."""
    assert "truncated" in what(FACTS | {"entry": []}, ("table", 0, 6), 11)


@pytest.mark.parametrize(("before", "after", "said"), [("", "x", "created"), ("x", "", "dropped")])
def test_a_table_that_is_there_only_once(before: str, after: str, said: str) -> None:
    assert said in changed(["id"], before, after)
