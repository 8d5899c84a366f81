"""Random SELECT statements over a few relations, nested at will, that a view may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from strobe.algebra.schema import RelationSchema

KINDS = {
    "bigint": "number",
    "int": "number",
    "decimal": "exact",
    "double": "fraction",
    "string": "text",
    "date": "date",
}


@dataclass(frozen=True)
class Written:
    """A query and the kinds of its columns, by their names."""

    sql: str
    columns: Mapping[str, str]


class Statements:
    """Each column of each query has a name of its own, so that names are never ambiguous."""

    def __init__(self, random: Random, relations: Mapping[str, RelationSchema]) -> None:
        self.random = random
        self.relations = relations
        self.names = 0

    def name(self, letter: str = "c") -> str:
        self.names += 1
        return f"{letter}{self.names}"

    def statement(self, depth: int) -> str:
        return self.query(depth).sql

    def query(self, depth: int) -> Written:
        made: list[Callable[[int], Written]] = [self.plain, self.joined, self.grouped, self.windowed, self.united]
        made += [self.filtered, self.distinct, self.exploded, self.joined, self.grouped, self.within, self.scalar]
        return self.random.choice(made if depth > 0 else [self.plain])(depth - 1)

    def source(self, depth: int) -> tuple[str, dict[str, str]]:
        """Something in FROM, and its columns as they are written there."""
        alias = self.name("t")
        if depth <= 0 or self.random.random() < 0.3:
            relation = self.random.choice(list(self.relations.values()))
            columns = {f"{alias}.{c.name}": KINDS[c.type.split("(", 1)[0]] for c in relation.columns}
            return f"{relation.id} {alias}", columns
        inner = self.query(depth)
        return f"({inner.sql}) {alias}", {f"{alias}.{name}": kind for name, kind in inner.columns.items()}

    def items(self, columns: Mapping[str, str], most: int = 4) -> tuple[str, dict[str, str]]:
        chosen = self.random.sample(list(columns), min(len(columns), self.random.randint(1, most)))
        texts, kinds = [], {}
        for column in chosen:
            name, (text, kind) = self.name(), self.computed(column, columns[column])
            texts.append(f"{text} AS {name}")
            kinds[name] = kind
        return ", ".join(texts), kinds

    def computed(self, column: str, kind: str) -> tuple[str, str]:
        if self.random.random() < 0.7:
            return column, kind
        return {
            "number": (f"{column} + 1", kind),
            "exact": (f"coalesce({column}, 0.5)", kind),
            "fraction": (f"-{column}", kind),
            "text": (f"upper({column})", kind),
            "date": (f"coalesce({column}, DATE '2020-02-02')", kind),
        }[kind]

    def condition(self, columns: Mapping[str, str]) -> str:
        column = self.random.choice(list(columns))
        kind = columns[column]
        made = [f"{column} IS NOT NULL", f"{column} IS NULL"]
        if kind in ("number", "exact", "fraction"):
            made += [f"{column} > 1", f"{column} <= 2 OR {column} IS NULL"]
        elif kind == "text":
            made += [f"{column} = 'a'", f"{column} <> 'b'", f"lower({column}) LIKE 'a%'"]
        return self.random.choice(made)

    def equality(self, left: Mapping[str, str], right: Mapping[str, str]) -> str:
        pairs = [(a, b) for a, kind in left.items() for b, other in right.items() if kind == other]
        if not pairs:
            return "true"
        a, b = self.random.choice(pairs)
        sign = self.random.choice(("=", "=", "=", "<=>", "<"))
        rest = self.random.choice(("", "", f" AND {self.condition(left)}", f" AND {self.condition(right)}"))
        return f"{a} {sign} {b}{rest}"

    def where(self, columns: Mapping[str, str]) -> str:
        return f" WHERE {self.condition(columns)}" if self.random.random() < 0.3 else ""

    def plain(self, depth: int) -> Written:
        source, columns = self.source(depth)
        items, kinds = self.items(columns, 6)
        return Written(f"SELECT {items} FROM {source}{self.where(columns)}", kinds)

    def within(self, depth: int) -> Written:
        """A query that names another in WITH and uses it twice."""
        name, inner = self.name("w"), self.query(depth)
        a, b = self.name("t"), self.name("t")
        left = {f"{a}.{c}": kind for c, kind in inner.columns.items()}
        right = {f"{b}.{c}": kind for c, kind in inner.columns.items()}
        items, kinds = self.items(left | right)
        join = self.random.choice(("JOIN", "LEFT JOIN"))
        joined = f"{name} {a} {join} {name} {b} ON {self.equality(left, right)}"
        sql = f"WITH {name} AS ({inner.sql}) SELECT {items} FROM {joined}"
        return Written(f"SELECT * FROM ({sql}) {self.name('t')}", kinds)

    def joined(self, depth: int) -> Written:
        (left, a), (right, b) = self.source(depth), self.source(depth - 1)
        kind = self.random.choice(
            ("JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN")
        )
        columns = a if kind in ("LEFT SEMI JOIN", "LEFT ANTI JOIN") else a | b
        items, kinds = self.items(columns)
        return Written(
            f"SELECT {items} FROM {left} {kind} {right} ON {self.equality(a, b)}{self.where(columns)}", kinds
        )

    def filtered(self, depth: int) -> Written:
        """EXISTS, IN and their negations."""
        (outer, a), (inner, b) = self.source(depth), self.source(depth - 1)
        items, kinds = self.items(a)
        same = [(x, y) for x, kind in a.items() for y, other in b.items() if kind == other]
        made = [f"EXISTS (SELECT 1 FROM {inner} WHERE {self.equality(b, a)})"]
        made.append(f"NOT EXISTS (SELECT * FROM {inner} WHERE {self.equality(a, b)} AND {self.condition(b)})")
        if same:
            x, y = self.random.choice(same)
            made.append(f"{x} IN (SELECT {y} FROM {inner})")
            made.append(f"{x} IS NOT NULL AND {x} NOT IN (SELECT {y} FROM {inner} WHERE {y} IS NOT NULL)")
        return Written(f"SELECT {items} FROM {outer} WHERE {self.random.choice(made)}", kinds)

    def scalar(self, depth: int) -> Written:
        """Scalar subqueries, as items and in conditions."""
        (outer, a), (inner, b) = self.source(depth), self.source(depth - 1)
        items, kinds = self.items(a)
        text, kinds[name := self.name()] = self.aggregate(b)
        raw = [(x, y) for x, kind in a.items() for y, other in b.items() if kind == other == "number"]
        where = self.where(b)
        if raw and self.random.random() < 0.6 and "(" not in inner:
            x, y = self.random.choice(raw)
            where += (" AND " if where else " WHERE ") + f"({x} = {y})"
            if " OR " in where:
                where = f" WHERE {x} = {y}"
        condition = f" WHERE {self.condition(a)}" if self.random.random() < 0.3 else ""
        if self.random.random() < 0.4:
            condition = f" WHERE (SELECT count(*) FROM {inner}{where}) > 1"
        return Written(f"SELECT {items}, (SELECT {text} FROM {inner}{where}) AS {name} FROM {outer}{condition}", kinds)

    def united(self, depth: int) -> Written:
        source, columns = self.source(depth)
        items, kinds = self.items(columns)
        other, more = self.source(depth - 1)
        second = []
        for kind in kinds.values():
            fit = [c for c, k in more.items() if k == kind]
            second.append(self.random.choice(fit) if fit else "NULL")
        how = self.random.choice(("UNION ALL", "UNION ALL", "UNION"))
        sql = f"SELECT {items} FROM {source} {how} SELECT {', '.join(second)} FROM {other}{self.where(more)}"
        return Written(sql, kinds)

    def distinct(self, depth: int) -> Written:
        source, columns = self.source(depth)
        items, kinds = self.items(columns)
        return Written(f"SELECT DISTINCT {items} FROM {source}", kinds)

    def aggregate(self, columns: Mapping[str, str]) -> tuple[str, str]:
        column = self.random.choice(list(columns))
        kind = columns[column]
        made = [
            (f"min({column})", kind),
            (f"max({column})", kind),
            (f"count({column})", "number"),
            ("count(*)", "number"),
        ]
        made.append((f"count(DISTINCT {column})", "number"))
        made.append((f"count(*) FILTER (WHERE {self.condition(columns)})", "number"))
        if kind in ("number", "exact", "fraction"):
            made += [(f"sum({column})", kind), (f"avg({column})", "exact" if kind == "exact" else "fraction")]
            other = self.random.choice(list(columns))
            made.append((f"max_by({other}, {column})", columns[other]))
        return self.random.choice(made)

    def grouped(self, depth: int) -> Written:
        source, columns = self.source(depth)
        by = self.random.sample(list(columns), min(len(columns), self.random.randint(0, 2)))
        texts, kinds = [], {}
        for column in by:
            texts.append(f"{column} AS {(name := self.name())}")
            kinds[name] = columns[column]
        for _ in range(self.random.randint(0 if by else 1, 3)):
            text, kind = self.aggregate(columns)
            texts.append(f"{text} AS {(name := self.name())}")
            kinds[name] = kind
        having = f" HAVING {self.random.choice(['count(*) > 1', list(kinds)[-1] + ' IS NOT NULL'])}"
        having = having if self.random.random() < 0.3 else ""
        group = f" GROUP BY {', '.join(by)}" if by else ""
        return Written(f"SELECT {', '.join(texts)} FROM {source}{self.where(columns)}{group}{having}", kinds)

    def windowed(self, depth: int) -> Written:
        source, columns = self.source(depth)
        items, kinds = self.items(columns)
        column, name = self.random.choice(list(columns)), self.name()
        made = [
            ("row_number()", "number"),
            ("rank()", "number"),
            ("dense_rank()", "number"),
            (f"lag({column})", columns[column]),
        ]
        made += [(f"count({column})", "number"), ("ntile(2)", "number"), (f"first_value({column})", columns[column])]
        numbers = [c for c, kind in columns.items() if kind in ("number", "exact", "fraction")]
        if numbers:
            chosen = self.random.choice(numbers)
            made.append((f"sum({chosen})", columns[chosen]))
        text, kinds[name] = self.random.choice(made)
        spec = self.random.choice(
            ("PARTITION BY {p} ORDER BY {o}", "PARTITION BY {p} ORDER BY {o} DESC NULLS LAST", "ORDER BY {o}")
        )
        spec = spec.format(p=self.random.choice(list(columns)), o=self.random.choice(list(columns)))
        if text.startswith(("sum", "count")) and self.random.random() < 0.5:
            spec += " ROWS BETWEEN 1 PRECEDING AND CURRENT ROW"
        qualify = f" QUALIFY {name} IS NOT NULL" if self.random.random() < 0.3 else ""
        return Written(
            f"SELECT {items}, {text} OVER ({spec}) AS {name} FROM {source}{self.where(columns)}{qualify}", kinds
        )

    def exploded(self, depth: int) -> Written:
        source, columns = self.source(depth)
        texts = [c for c, kind in columns.items() if kind == "text"]
        if not texts:
            return self.plain(depth)
        view, made = self.random.choice(("LATERAL VIEW", "LATERAL VIEW OUTER")), self.name()
        items, kinds = self.items(columns | {made: "text"})
        generator = f"explode(split({self.random.choice(texts)}, ''))"
        return Written(f"SELECT {items} FROM {source} {view} {generator} {self.name('t')} AS {made}", kinds)
