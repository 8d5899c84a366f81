"""`docs/costs.md`: the tables, and the text around them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from string import Template

from benchmarks.costs.example6 import LAYOUTS as TUPLES
from benchmarks.costs.example6 import Example
from benchmarks.costs.figures import FEW, LAYOUTS, MANY, SIZES, P, cost
from benchmarks.costs.formulas import (
    CASES,
    Curves,
    Parameters,
    bytes_many,
    bytes_three,
    crossing,
    io_indexed,
    io_nested,
    messages_eca,
    messages_rv,
)
from benchmarks.costs.meter import Counts
from benchmarks.costs.study import SEEDS, carry_out, crossover
from benchmarks.costs.workload import SCHEDULES, Workload, measured, plain_order
from strobe.managers.registry import ALGORITHMS

TEMPLATE = Path(__file__).parent / "page.md"
RUNS = 100
BIG_RUNS = 50
BIG = Workload(rows=40, values=10)

PROTOTYPE = {
    "conventional": ("2.00 / 2.00 / 2.00", "3.61 / 3.58 / 3.59"),
    "eca": ("2.00 / 2.00 / 2.00", ""),
    "lca": ("2.00 / 2.00 / 2.00", ""),
    **dict.fromkeys(("strobe", "t-strobe", "g-strobe"), ("1.22", "2.16 / 2.15 / 2.15")),
    "c-strobe": ("1.22 / 1.91 / 2.14", "2.16 / 2.96 / 3.02"),
    "sweep": ("3.64", "3.61 / 3.61 / 3.64"),
    "sweep, strong": ("", "3.61 / 1.66 / 1.33"),
    "nested-sweep": ("", "3.61 / 1.42 / 1.13"),
}
"""Messages per transaction of the prototype: one source, three sources."""


def page() -> str:
    """The whole page."""
    at30 = Example(k=30)
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        seeds=SEEDS,
        messages=_messages(),
        small=f"{_least_size('ECA best'):g} and {_least_size('ECA worst'):g}",
        bytes_by_size=_by_size(),
        bytes_by_updates=_by_updates("paper_bytes", "k", MANY, lambda k: bytes_many(P, k)),
        raw_by_updates=_raw(),
        indexed=_by_updates("indexed", "k", FEW, lambda k: io_indexed(P, k)),
        nested=_by_updates("nested", "k", FEW, lambda k: io_nested(P, k)),
        crossovers=_crossovers(),
        three=_number(cost("paper_bytes", "ECA worst", Example(layout="joining"))),
        terms_joining=_number(cost("terms", "ECA worst", replace(at30, layout="joining"))),
        terms_random=_number(cost("terms", "ECA worst", replace(at30, layout="random"))),
        bytes_joining=_number(cost("paper_bytes", "ECA worst", replace(at30, layout="joining"))),
        bytes_random=_number(cost("paper_bytes", "ECA worst", replace(at30, layout="random"))),
        bytes_best=_number(cost("paper_bytes", "ECA best", replace(at30, layout="random"))),
        rv_worst=f"{cost('paper_bytes', 'RV worst', Example(k=12)) / bytes_many(P, 12)['RV worst']:.1%}",
        nested_best=f"{crossing(lambda k: io_nested(P, k), 'ECA best'):.1f}",
        nested_outer=_outer_crossing(),
        always=_number(1 + 3 * P.J * (P.C - 1)),
        worst_indexed=crossover("ECA worst", "joining", "indexed", against="RV worst"),
        worst_nested=crossover("ECA worst", "joining", "nested", against="RV worst"),
        layouts=_layouts(),
        rows=Workload().rows,
        runs=RUNS,
        algorithms=_algorithms(),
        transactions=_transactions(),
        big_rows=BIG.rows,
        big_values=BIG.values,
        big_runs=BIG_RUNS,
        grouping=_grouping(),
        order=_order(),
        copies=_copies(),
        itself=_itself(),
    )


def table(head: Sequence[str], rows: Iterable[Sequence[object]], names: int = 1) -> str:
    """A table of which the first columns are names, and the others numbers."""
    lines = [head, ["---"] * names + ["---:"] * (len(head) - names), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 or value == round(value) else f"{value:,.1f}"


def _beside(measured: float, printed: float) -> str:
    return f"{_number(measured)} ({_number(printed)})"


# Example 6.


def _messages() -> str:
    k = 12
    example = Example(k=k, layout="joining")
    rows = [
        (f"RV, s = {s}", _beside(carry_out(example, "rv", every=s).messages, messages_rv(k, s))) for s in (1, 3, 5, k)
    ]
    for case, schedule in (("ECA best", "calm"), ("ECA worst", "burst"), ("ECA random", "random")):
        rows.append((case, _beside(carry_out(example, "eca", schedule).messages, messages_eca(k))))
    return table(("", "M"), rows)


def _least_size(case: str) -> float:
    """The C at which the printed curves of Figure 6.2 cross."""
    return bytes_three(P)[case] / bytes_three(Parameters(C=1))["RV best"]


def _by_size() -> str:
    rows = []
    for c in SIZES:
        printed = bytes_three(Parameters(C=c))
        found = [cost("paper_bytes", case, Example(C=c, layout=LAYOUTS[case])) for case in CASES]
        rows.append([c, *(_beside(f, printed[case]) for f, case in zip(found, CASES, strict=True))])
    return table(("C", *CASES), rows)


def _by_updates(name: str, label: str, over: Sequence[int], printed: Callable[[float], Curves]) -> str:
    rows = []
    for k in over:
        cells = [
            _beside(cost(name, case, Example(k=k, layout=LAYOUTS[case])), printed(float(k))[case]) for case in CASES
        ]
        rows.append([k, *cells, _number(cost(name, "ECA worst", Example(k=k, layout="random")))])
    return table((label, *CASES, "ECA worst, random tuples"), rows)


def _raw() -> str:
    rows = [[k, *(_number(cost("bytes", case, Example(k=k, layout="random"))) for case in CASES)] for k in MANY]
    return table(("k", *CASES), rows)


def _crossovers() -> str:
    rows = []
    for what, name, printed, cases in (
        ("B", "paper_bytes", lambda k: bytes_many(P, k), _said("100", "30")),
        ("B", "paper_bytes", None, [("ECA random", "joining", "in between"), ("ECA worst", "random", "")]),
        ("B in raw rows", "bytes", None, [("ECA best", "random", ""), ("ECA worst", "random", "")]),
        ("IO, Scenario 1", "indexed", lambda k: io_indexed(P, k), _said("3", "3")),
        ("IO, Scenario 2", "nested", lambda k: io_nested(P, k), _said("below 8", "above 5")),
        ("IO, Scenario 2, all reads", "nested_outer", None, _said("", "")),
    ):
        for case, tuples, said in cases:
            at = f"{crossing(printed, case):.1f}" if printed else ""
            rows.append((what, case, tuples, said, at, crossover(case, tuples, name)))
    return table(("cost", "case", "tuples", "the paper says", "formulas", "measured"), rows, names=3)


def _said(best: str, worst: str) -> list[tuple[str, str, str]]:
    return [("ECA best", LAYOUTS["ECA best"], best), ("ECA worst", LAYOUTS["ECA worst"], worst)]


def _outer_crossing() -> str:
    """Where RV once and ECA's best case, which is linear, cross in Scenario 2 if all reads count."""
    k = 12
    once, best = (cost("nested_outer", case, Example(k=k)) for case in ("RV best", "ECA best"))
    return f"{once / (best / k):.2f}"


def _layouts() -> str:
    names = ("terms", "paper_bytes", "bytes", "indexed", "nested")
    rows = []
    for case in ("ECA best", "ECA worst"):
        for tuples in TUPLES:
            example = Example(k=30, layout=tuples)
            rows.append([f"{case}, {tuples}", *(_number(cost(name, case, example)) for name in names)])
    return table(("", "terms", "B", "B in raw rows", "IO, Scenario 1", "IO, Scenario 2"), rows)


# All algorithms, and options.


def _each(name: str, level: str, workload: Workload) -> list[Counts]:
    found = [measured(name, level, workload, schedule, RUNS) for schedule in SCHEDULES]
    return [counts for counts in found if counts is not None]


def _algorithms() -> str:
    rows = []
    for name, level in _levels():
        shown = f"{name}, strong" if level == "strong" else name
        cells = []
        for sources, said in zip(("xxx", "xyz"), PROTOTYPE.get(shown, ("", "")), strict=True):
            found = _each(name, level, Workload(sources))
            cells += [
                _slashes(c.messages for c in found) + (f" ({said})" if said else ""),
                _slashes((c.rows for c in found), 1),
            ]
        rows.append([shown, *cells])
    head = ("one source: messages", "rows", "three sources: messages", "rows")
    return table(("", *head), rows)


def _levels() -> list[tuple[str, str]]:
    found = [(name, "complete") for name in ALGORITHMS]
    return [found[0], ("sweep", "strong"), *found[1:]]


def _transactions() -> str:
    rows = []
    for name in ("sweep", "nested-sweep", "eca", "strobe", "t-strobe", "c-strobe", "c-tstrobe"):
        cells = []
        for sources in ("xxx", "xyz"):
            found = _each(name, "complete", Workload(sources, updates=3))
            cells += [_slashes(c.messages for c in found), _slashes((c.rows for c in found), 1)]
        rows.append([name, *cells])
    return table(("", "one source: messages", "rows", "three sources: messages", "rows"), rows)


def _slashes(values: Iterable[float], digits: int = 2) -> str:
    return " / ".join(f"{value:.{digits}f}" for value in values) or "refused"


def _big(name: str, workload: Workload, schedule: str = "random", *, one_by_one: bool = False) -> str:
    counts = measured(name, "complete", workload, schedule, BIG_RUNS, one_by_one=one_by_one)
    return f"{counts.messages:.2f} · {counts.rows:.1f}" if counts else "refused"


def _grouping() -> str:
    rows = []
    for name in ("sweep", "strobe", "c-strobe", "conventional"):
        for schedule in SCHEDULES:
            cells = [
                _big(name, replace(BIG, sources=sources), schedule, one_by_one=alone)
                for sources in ("xxx", "xxy")
                for alone in (False, True)
            ]
            rows.append([f"{name}, {schedule}", *cells])
    return table(("", "one source, grouped", "one by one", "two sources, grouped", "one by one"), rows)


def _order() -> str:
    rows = []
    for name in ("sweep", "strobe", "c-strobe"):
        cheapest = _big(name, BIG)
        with plain_order():
            rows.append([name, cheapest, _big(name, BIG)])
    return table(("", "cheapest first", "in the order of the view"), rows)


def _copies() -> str:
    rows = []
    for name in ("sweep", "strobe", "c-strobe", "eca", "rv"):
        for sources, where in (("xxx", "one source"), ("xyz", "three sources")):
            workload = replace(BIG, sources=sources)
            copies: list[tuple[str, ...]] = [(), (f"{sources[0]}.r0",), (f"{sources[1]}.r1",)]
            if ALGORITHMS[name].refusal(workload.plan(0).view) is None:
                rows.append([f"{name}, {where}", *(_big(name, replace(workload, copies=c)) for c in copies)])
    return table(("", "no copy", "of R0", "of R1"), rows)


def _itself() -> str:
    rows = []
    for name in ("strobe", "c-strobe"):
        for sources, where in (("xxx", "one source"), ("xyz", "three sources")):
            joined = replace(BIG, sources=sources, by_key=True, values=BIG.rows)
            rows.append([f"{name}, {where}", *(_big(name, replace(joined, asks_view=asks)) for asks in (False, True))])
    return table(("", "the source only", "the view first"), rows)
