"""`make costs`: runs the cost study, and writes `costs.md` and its figures."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.costs.figures import figures
from benchmarks.costs.report import page


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.costs", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs"), help="the folder to write into (default: docs)")
    out: Path = parser.parse_args().out
    (out / "figures").mkdir(parents=True, exist_ok=True)
    for name, chart in figures().items():
        (out / "figures" / name).write_text(chart.svg(), encoding="utf-8")
        print(f"Wrote {out / 'figures' / name}")
    (out / "costs.md").write_text(page(), encoding="utf-8")
    print(f"Wrote {out / 'costs.md'}")


if __name__ == "__main__":
    main()
