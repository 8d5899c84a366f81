"""`make bench`, second part: how much load a coordinator bears. See `measure` for what is measured."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

from benchmarks.load.measure import Plan, measure  # after the tests' PostgreSQL server can be found


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.load", description=__doc__)
    usual = Plan()
    parser.add_argument("--levels", default=",".join(usual.levels), help="comma-separated, as all lists here")
    parser.add_argument("--orders", type=int, default=usual.orders, help="rows of the largest table")
    parser.add_argument("--backlogs", type=numbers, default=usual.backlogs, help="transactions that wait for a start")
    parser.add_argument("--rates", type=numbers, default=usual.rates, help="transactions/s at which waits are measured")
    parser.add_argument("--seconds", type=int, default=usual.seconds, help="of each such rate")
    parser.add_argument("--probes", type=int, default=usual.probes, help="of rates, to find the highest that is borne")
    parser.add_argument("--probe-seconds", type=int, default=usual.probe_seconds, help="of each such probe")
    parser.add_argument("--from-rate", type=int, default=usual.from_rate, help="the first that is probed")
    parser.add_argument("--patience", type=int, default=usual.patience, help="seconds that draining may take")
    parser.add_argument("--without-recompute", action="store_true", help="do not recompute the view beside it")
    parser.add_argument("--quick", action="store_true", help="a few seconds of each: whether it works at all")
    parser.add_argument("--out", type=Path, help="a file for the tables, in Markdown")
    given = parser.parse_args()
    levels, recompute = tuple(given.levels.split(",")), not given.without_recompute
    plan = Plan(
        *(levels, given.orders, given.backlogs, given.rates, given.seconds),
        *(given.probes, given.probe_seconds, given.from_rate, given.patience, recompute),
    )
    if given.quick:
        plan = replace(Plan.quick(), levels=levels, recompute=recompute)
    measure(plan, "python -m benchmarks.load " + " ".join(sys.argv[1:]), given.out)


if __name__ == "__main__":
    main()
