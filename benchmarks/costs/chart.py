"""Small charts as SVG: lines and points over linear or logarithmic axes, with a legend beside them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 820, 430
LEFT, RIGHT, TOP, BOTTOM = 84, 232, 48, 60
FONT = "font-family='Helvetica, Arial, sans-serif'"
INK, FAINT = "#222222", "#dddddd"

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """A line, marks, or both: one entry of the legend."""

    name: str
    colour: str
    line: Sequence[Point] = ()
    marks: Sequence[Point] = ()
    marker: str = "circle"
    """`circle`, `square`, `triangle`, `diamond` or `cross`."""


@dataclass(frozen=True)
class Axis:
    label: str
    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value is, from 0 at the low end to 1 at the high end."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        if not self.log:
            step = _step(self.high - self.low)
            first, last = math.ceil(self.low / step), math.floor(self.high / step + 1e-9)
            return [number * step for number in range(first, last + 1)]
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        steps = (1, 2, 5) if self.high / self.low < 10**3.5 else (1,)
        return [s * 10.0**d for d in decades for s in steps if self.low <= s * 10.0**d <= self.high]


def _step(span: float) -> float:
    """A round number of which five to ten fit into a span."""
    size = 10.0 ** math.floor(math.log10(span / 5))
    return next(s * size for s in (1, 2, 5, 10) if span / (s * size) <= 10)


@dataclass(frozen=True)
class Chart:
    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    note: str = ""
    """What lines and marks are, above the legend."""

    def svg(self) -> str:
        return "\n".join(self._parts()) + "\n"

    def _parts(self) -> Iterator[str]:
        yield (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' "
            f"height='{HEIGHT}' {FONT} font-size='12' fill='{INK}'>"
        )
        yield f"<title>{escape(self.title)}</title>"
        yield f"<rect width='{WIDTH}' height='{HEIGHT}' fill='#ffffff'/>"
        yield f"<text x='{LEFT}' y='26' font-size='15' font-weight='bold'>{escape(self.title)}</text>"
        yield from self._axes()
        yield (
            f"<clipPath id='plot'><rect x='{LEFT}' y='{TOP}' width='{WIDTH - LEFT - RIGHT}' "
            f"height='{HEIGHT - TOP - BOTTOM}'/></clipPath>"
        )
        for one in self.series:
            if one.line:
                yield self._line(one)
        for one in self.series:
            yield from (_marker(one, *self._at(p)) for p in one.marks if self._inside(p))
        yield from self._legend()
        yield "</svg>"

    def _at(self, point: Point) -> Point:
        x = LEFT + self.x.place(point[0]) * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - self.y.place(point[1]) * (HEIGHT - TOP - BOTTOM)
        return round(x, 1), round(y, 1)

    def _inside(self, point: Point) -> bool:
        return self.x.low <= point[0] <= self.x.high and self.y.low <= point[1] <= self.y.high

    def _axes(self) -> Iterator[str]:
        right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
        for tick in self.x.ticks():
            at, _ = self._at((tick, self.y.low))
            yield f"<line x1='{at}' y1='{TOP}' x2='{at}' y2='{bottom}' stroke='{FAINT}'/>"
            yield f"<text x='{at}' y='{bottom + 18}' text-anchor='middle'>{_number(tick)}</text>"
        for tick in self.y.ticks():
            _, at = self._at((self.x.low, tick))
            yield f"<line x1='{LEFT}' y1='{at}' x2='{right}' y2='{at}' stroke='{FAINT}'/>"
            yield f"<text x='{LEFT - 8}' y='{at + 4}' text-anchor='end'>{_number(tick)}</text>"
        yield (
            f"<rect x='{LEFT}' y='{TOP}' width='{right - LEFT}' height='{bottom - TOP}' fill='none' stroke='{INK}'/>"
        )
        middle = (LEFT + right) / 2, (TOP + bottom) / 2
        yield f"<text x='{middle[0]}' y='{HEIGHT - 16}' text-anchor='middle'>{escape(self.x.label)}</text>"
        turned = f"transform='translate(20 {middle[1]}) rotate(-90)'"
        yield f"<text {turned} text-anchor='middle'>{escape(self.y.label)}</text>"

    def _line(self, one: Series) -> str:
        points = " ".join(f"{x},{y}" for x, y in (self._at(p) for p in one.line))
        look = f"fill='none' stroke='{one.colour}' stroke-width='1.8'"
        return f"<polyline points='{points}' {look} clip-path='url(#plot)'/>"

    def _legend(self) -> Iterator[str]:
        x, y = WIDTH - RIGHT + 18, TOP + 10
        if self.note:
            yield f"<text x='{x}' y='{y + 2}' font-style='italic'>{escape(self.note)}</text>"
            y += 24
        for one in self.series:
            if one.line:
                yield f"<line x1='{x}' y1='{y}' x2='{x + 28}' y2='{y}' stroke='{one.colour}' stroke-width='1.8'/>"
            if one.marks:
                yield _marker(one, x + 14, y)
            yield f"<text x='{x + 36}' y='{y + 4}'>{escape(one.name)}</text>"
            y += 22


def _marker(one: Series, x: float, y: float) -> str:
    look = f"fill='#ffffff' stroke='{one.colour}' stroke-width='1.6'"
    if one.marker == "circle":
        return f"<circle cx='{x}' cy='{y}' r='4' {look}/>"
    if one.marker == "square":
        return f"<rect x='{round(x - 3.6, 1)}' y='{round(y - 3.6, 1)}' width='7.2' height='7.2' {look}/>"
    shapes = {
        "triangle": ((0, -4.8), (4.6, 3.6), (-4.6, 3.6)),
        "diamond": ((0, -5), (5, 0), (0, 5), (-5, 0)),
    }
    if one.marker in shapes:
        corners = " ".join(f"{round(x + dx, 1)},{round(y + dy, 1)}" for dx, dy in shapes[one.marker])
        return f"<polygon points='{corners}' {look}/>"
    return f"<path d='M{x - 4} {y - 4}l8 8m0 -8l-8 8' {look}/>"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 or value == 0 else f"{value:g}"
