"""Calls that look at many rows, or make rows: aggregates, window functions and generators.

Here is which of them a view may hold, and in which words Spark is asked for them: where Spark's own answer depends on
the order in which it happens to meet the rows, the words say an order. The same words go into what is recomputed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import TokenType

from strobe.algebra.sql_functions import AGGREGATES, GENERATORS, WINDOWS, words
from strobe.algebra.sql_grammar import closing, split, top
from strobe.algebra.sql_names import Parts
from strobe.algebra.sql_text import Span, Text
from strobe.algebra.sql_types import base, exact, fractional
from strobe.errors import UserError


@dataclass(frozen=True)
class Call:
    """A call of one of these functions, as it is written."""

    name: str
    span: Span
    arguments: tuple[Span, ...]
    distinct: bool = False
    star: bool = False
    filter: Span | None = None
    nulls: str = ""
    """IGNORE NULLS, with a blank before it."""
    over: Span | None = None
    """What is in the parentheses after OVER."""
    window: str = ""
    """The name after OVER, in lower case."""

    @property
    def windowed(self) -> bool:
        return self.over is not None or bool(self.window)


@dataclass(frozen=True)
class Specification:
    """What is in the parentheses after OVER."""

    partition: tuple[Span, ...]
    order: tuple[Span, ...]
    frame: Span | None
    end: int
    """The token after the last one to sort by."""


KEPT = words("""
    array_agg avg bit_and bit_or bit_xor bool_and bool_or collect_list collect_set count count_if every max max_by mean
    median min min_by percentile sum
""")
"""The aggregates of a view."""

_TIES = words("row_number ntile lag lead first first_value last last_value nth_value")
"""The window functions whose result depends on the order among rows that their ORDER BY calls equal."""
_UNFRAMED = words("row_number ntile lag lead")
_FIRSTS = words("first first_value")
_CHOICES = words("first first_value last last_value any_value mode")

_SUM = (
    "aggregate(sort_array(collect_list({d}CAST({0} AS DOUBLE)){s}), CAST(NULL AS DOUBLE), "
    "(a, v) -> coalesce(a, 0D) + v)"
)
_MEAN = (
    "aggregate(sort_array(collect_list({d}CAST({0} AS DOUBLE)){s}), named_struct('s', 0D, 'n', 0D), "
    "(a, v) -> named_struct('s', a.s + v, 'n', a.n + 1D), a -> CASE WHEN a.n > 0D THEN a.s / a.n END)"
)
_WHOLE_MEAN = "try_divide(CAST(sum({d}CAST({0} AS DECIMAL(20,0))){s} AS DOUBLE), count({d}{0}){s})"
_SORTED = "sort_array({n}({d}{0}){s})"
_EXTREME = "{n}({d}{0}, CASE WHEN ({1}) IS NOT NULL THEN struct({1}, {0}) END){s}"
_EVERYTHING = "BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
_SLOT = re.compile(r"\{(\w)\}")


def calls(text: Text, span: Span) -> Iterator[Call]:
    """The calls in a span, without those inside of others."""
    i = span.start
    while i < span.end:
        if _query(text, i):
            i = closing(text, i)
        elif found := _call(text, span, i):
            yield found
            i = found.span.end - 1
        i += 1


def _query(text: Text, i: int) -> bool:
    return text.type(i) == TokenType.L_PAREN and text.word(i + 1) in ("SELECT", "WITH")


def _call(text: Text, span: Span, i: int) -> Call | None:
    if not text.is_name(i) or text.type(i + 1) != TokenType.L_PAREN or i + 1 >= span.end:
        return None
    if i > span.start and text.type(i - 1) in (TokenType.DOT, TokenType.ALIAS, TokenType.DCOLON):
        return None
    name = text.tokens[i].text.lower()
    if name in ("any", "some") or not _closed(text, i + 1, span.end):
        return None
    end = closing(text, i + 1)
    distinct = text.word(i + 2) == "DISTINCT"
    inside = Span(i + 3 if distinct else i + 2, end)
    star = text.type(inside.start) == TokenType.STAR and inside.end == inside.start + 1
    arguments = () if star or inside.start >= inside.end else tuple(split(text, inside))
    at, nulls, filtered = end + 1, "", None
    if at < span.end and text.word(at) in ("IGNORE", "RESPECT") and text.word(at + 1) == "NULLS":
        nulls, at = (" IGNORE NULLS" if text.word(at) == "IGNORE" else ""), at + 2
    if at < span.end and text.word(at) == "WITHIN":
        fix = "Write percentile(x, 0.5) for percentile_cont, and array_join(array_agg(x), ',') for listagg."
        raise text.unsupported(at, "WITHIN GROUP", fix)
    if at < span.end and text.word(at) == "FILTER" and text.type(at + 1) == TokenType.L_PAREN:
        close = closing(text, at + 1)
        if text.word(at + 2) != "WHERE" or at + 3 >= close:
            raise text.refuse(at, "FILTER needs a condition", "Write FILTER (WHERE condition).")
        filtered, at = Span(at + 3, close), close + 1
    over, window = None, ""
    if at < span.end and text.word(at) == "OVER":
        if text.type(at + 1) == TokenType.L_PAREN:
            close = closing(text, at + 1)
            over, at = Span(at + 2, close), close + 1
        elif text.is_name(at + 1) and at + 1 < span.end:
            window, at = text.tokens[at + 1].text.lower(), at + 2
    if over is None and not window and name not in AGGREGATES | WINDOWS | GENERATORS:
        return None
    return Call(name, Span(i, at), arguments, distinct, star, filtered, nulls, over, window)


def _closed(text: Text, opening: int, end: int) -> bool:
    return closing(text, opening) < end


def specification(text: Text, span: Span) -> Specification:
    """What the text after OVER says."""
    at, partition, order = span.start, Span(0, 0), Span(0, 0)
    stops = [i for i in top(text, span) if _starts(text, i)]
    stops.append(span.end)
    frame: Span | None = None
    end = span.start
    if stops[0] != at:
        raise text.refuse(at, "this window cannot be read", "Write OVER (PARTITION BY … ORDER BY …).")
    for start, stop in itertools.pairwise(stops):
        word = text.word(start)
        if word in ("PARTITION", "DISTRIBUTE"):
            partition = Span(start + 1, stop)
        elif word in ("ORDER", "SORT"):
            order = Span(start + 1, stop)
        elif frame is None:
            frame = Span(start, span.end)
        if frame is None:
            end = stop
    return Specification(_parts(text, partition), _parts(text, order), frame, end)


def _parts(text: Text, span: Span) -> tuple[Span, ...]:
    return tuple(split(text, span)) if span.start < span.end else ()


def _starts(text: Text, i: int) -> bool:
    word = text.word(i)
    if word in ("ROWS", "RANGE"):
        return text.word(i + 1) in ("BETWEEN", "UNBOUNDED", "CURRENT") or text.type(i + 1) == TokenType.NUMBER
    return text.type(i) in (
        TokenType.PARTITION_BY,
        TokenType.ORDER_BY,
        TokenType.DISTRIBUTE_BY,
        TokenType.SORT_BY,
    )


def check(text: Text, call: Call) -> None:
    """Refuses the calls that no view keeps."""
    at = call.span.start
    if call.name in GENERATORS:
        fix = f"Write LATERAL VIEW {call.name}(…) t AS x after FROM, or the call alone as one item of SELECT."
        raise text.unsupported(at, f"the generator {call.name}() inside an expression", fix)
    known = KEPT | (_TIES | WINDOWS if call.windowed else frozenset())
    if call.name in WINDOWS and not call.windowed:
        raise text.refuse(at, f"{call.name}() needs OVER", "Write OVER (PARTITION BY … ORDER BY …) after it.")
    if call.name not in known:
        raise _refuse(text, call)
    if call.windowed and (call.filter or call.distinct):
        fix = "Write a CASE expression as the argument." if call.filter else "Count them in a subquery with GROUP BY."
        word = "FILTER" if call.filter else "DISTINCT"
        raise text.unsupported(at, f"{word} in a window function", fix)


def _refuse(text: Text, call: Call) -> UserError:
    if call.name in _CHOICES:
        fix = "Write min(x), max(x), or max_by(x, y) with what decides."
        return text.unsupported(call.span.start, f"{call.name}(), which takes a value by chance,", fix)
    if call.windowed and call.name not in AGGREGATES:
        fix = "Use Spark's aggregates and window functions (docs/sql.md lists them)."
        return text.unsupported(call.span.start, f"{call.name}() as a window", fix)
    fix = "Keep what it is computed from, and apply it when you read the view (docs/sql.md lists what is kept)."
    return text.unsupported(call.span.start, f"the aggregate {call.name}()", fix)


def sensitive(text: Text, call: Call, spec: Specification) -> bool:
    """Whether its result depends on the order among ties."""
    if call.name in _TIES and not spec.order:
        fix = "Write ORDER BY after PARTITION BY, inside OVER (…)."
        raise text.refuse(call.span.start, f"{call.name}() needs an order", fix)
    if call.name in _UNFRAMED:
        return True
    rows = spec.frame is not None and text.word(spec.frame.start) == "ROWS"
    if rows:
        return not _whole(text, spec.frame) or call.name in _TIES
    if call.name not in _TIES:
        return False
    if _whole(text, spec.frame) or (call.name in _FIRSTS and _from_start(text, spec.frame)):
        return True
    fix = "Write ROWS BETWEEN UNBOUNDED PRECEDING AND …, which is certain about rows that the order calls equal."
    raise text.unsupported(call.span.start, f"{call.name}() over a RANGE frame, which is the default,", fix)


def _whole(text: Text, frame: Span | None) -> bool:
    return frame is not None and _words(text, frame)[1:] == _EVERYTHING.split()


def _from_start(text: Text, frame: Span | None) -> bool:
    return frame is None or "UNBOUNDED PRECEDING" in " ".join(_words(text, frame)[1:4])


def _words(text: Text, span: Span) -> list[str]:
    return [text.word(i) for i in range(span.start, span.end)]


def template(text: Text, call: Call, types: Sequence[str | None]) -> tuple[str, str | None]:
    """The words for an aggregate, and the type of its result: `{0}` its first argument, `{d}` its DISTINCT, `{n}` its
    name, `{s}` what follows the call."""
    plain = "{n}({d}" + ", ".join(f"{{{i}}}" for i in range(len(types))) + "){s}"
    first = types[0] if types else None
    if call.star:
        return "{n}(*){s}", "bigint"
    if call.name in ("sum", "avg", "mean") and len(types) == 1:
        if not exact(first) and not fractional(first):
            fix = "Write CAST(… AS DECIMAL(p,s)), CAST(… AS BIGINT) or CAST(… AS DOUBLE) around its argument."
            raise text.refuse(call.span.start, f"the type of the argument of {call.name}() is not certain here", fix)
        if call.name == "sum":
            return (
                (_SUM, "double") if fractional(first) else (plain, "decimal" if base(first) == "decimal" else "bigint")
            )
        if fractional(first):
            return _MEAN, "double"
        return (plain, "decimal") if base(first) == "decimal" else (_WHOLE_MEAN, "double")
    if call.name in ("array_agg", "collect_list", "collect_set") and len(types) == 1:
        return _SORTED, None
    if call.name in ("max_by", "min_by") and len(types) == 2:
        return _EXTREME, first
    results = {"count": "bigint", "count_if": "bigint", "min": first, "max": first, "lag": first, "lead": first}
    results |= dict.fromkeys(("row_number", "rank", "dense_rank", "ntile"), "int")
    results |= dict.fromkeys((*_FIRSTS, "last", "last_value", "nth_value"), first)
    results |= dict.fromkeys(("bool_and", "bool_or", "every"), "boolean")
    results |= dict.fromkeys(("percent_rank", "cume_dist", "median"), "double")
    return plain, results.get(call.name)


def filled(words_: str, slots: Mapping[str, Parts]) -> Parts:
    """A template with its slots filled."""
    parts: list[object] = []
    for i, piece in enumerate(_SLOT.split(words_)):
        parts += slots[piece] if i % 2 else [piece]
    return tuple(p for p in parts if p != "")  # type: ignore[misc]
