"""The consistency spectrum as a picture: a table of levels, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from strobe.simulator.spectrum import LEVELS, Cell

_COLOURS = ("#c8463c", "#e8a33d", "#f2d675", "#8fc27a", "#2f8f5b")
_LIGHT = {"none", "complete"}
"""Cells so dark that what is written in them is white."""
_LEFT, _TOP, _WIDTH, _HEIGHT = 130, 60, 118, 26


def svg(cells: Sequence[Cell]) -> str:
    """A row for each algorithm, a column for each scenario, coloured from not convergent to complete."""
    algorithms = list(dict.fromkeys(cell.algorithm for cell in cells))
    scenarios = list(dict.fromkeys(cell.scenario for cell in cells))
    width = _LEFT + _WIDTH * len(scenarios) + 10
    height = _TOP + _HEIGHT * len(algorithms) + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="10" y="22" font-size="15">Consistency spectrum, found in {_total(cells)} schedules</text>',
    ]
    for place, scenario in enumerate(scenarios):
        parts.append(_text(_LEFT + _WIDTH * (place + 0.5), _TOP - 10, scenario, "middle"))
    for place, algorithm in enumerate(algorithms):
        parts.append(_text(_LEFT - 10, _TOP + _HEIGHT * (place + 0.65), algorithm, "end"))
    for cell in cells:
        x = _LEFT + _WIDTH * scenarios.index(cell.scenario)
        y = _TOP + _HEIGHT * algorithms.index(cell.algorithm)
        colour = _COLOURS[LEVELS.index(cell.level)]
        parts.append(f'<rect x="{x + 1}" y="{y + 1}" width="{_WIDTH - 2}" height="{_HEIGHT - 2}" fill="{colour}"/>')
        ink = "white" if cell.level in _LIGHT else "black"
        parts.append(_text(x + _WIDTH / 2, y + _HEIGHT * 0.65, _word(cell.level), "middle", ink))
    note = "each cell: the highest level that no explored schedule broke"
    parts += [_text(_LEFT, height - 18, note, "start", "#555"), "</svg>", ""]
    return "\n".join(parts)


def _word(level: str) -> str:
    return "not convergent" if level == "none" else level


def _total(cells: Sequence[Cell]) -> str:
    return f"{sum(cell.schedules for cell in cells):,}"


def _text(x: float, y: float, words: str, anchor: str, ink: str = "black") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{ink}">{escape(words)}</text>'
