"""Writes scenarios: what a plan and a schedule are in the language of `scenario`, to be read, kept and replayed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strobe.algebra.schema import RelationSchema
from strobe.simulator.algorithms import Chosen, choose
from strobe.simulator.judging import Shown, transactions
from strobe.simulator.lab import Event, Plan
from strobe.simulator.notation import rows_text, update_text
from strobe.simulator.scenario import natural_sql
from strobe.simulator.telling import Teller

_WIDE = 6
"""Columns of a view on one line."""


def write(plan: Plan, schedule: Sequence[Event], algorithm: Chosen | str, *, level: str = "", title: str = "") -> str:
    """A scenario with this schedule, step by step. `level` is what it should reach: replaying it says whether it does.

    Queries are called Q1, Q2, … as they are sent. Events that the algorithm does not come to are left out.
    """
    chosen = choose(algorithm) if isinstance(algorithm, str) else algorithm
    lines = [f"# {title}"] if title else []
    for source, contents in plan.initial.items():
        lines.append(f"source {source}")
        schemas = {r.name: r for r in plan.view.relations if r.source == source}
        for relation, rows in contents.items():
            columns = [_column(schemas.get(relation), column) for column in rows.attributes]
            lines.append(f"  {relation}({', '.join(columns)}): {rows_text(rows)}")
    lines += [f"view: {_view_text(plan)}", f"algorithm: {chosen}"]
    lines += _updates(plan)
    lines.append("schedule")
    lines += _steps(plan, schedule, chosen)
    if level:
        lines.append(f"level: {level}")
    return "\n".join(lines) + "\n"


def _column(schema: RelationSchema | None, column: str) -> str:
    text = " text" if schema and schema.column(column).type == "string" else ""
    return f"{column}{text}{' key' if schema and column in schema.key else ''}"


def _updates(plan: Plan) -> Iterator[str]:
    for parts in transactions(plan):
        updates = [
            update_text({_name(plan, source, relation): rows})
            for source, step in parts.items()
            for update in step.updates
            for relation, rows in update.items()
        ]
        listed = ", ".join(updates)
        yield f"{next(iter(parts.values())).id} = {listed if len(updates) == 1 else f'<{listed}>'}"


def _name(plan: Plan, source: str, relation: str) -> str:
    """A relation's name, with its source where another has one of the same name."""
    return relation if sum(relation in contents for contents in plan.initial.values()) == 1 else f"{source}.{relation}"


def _labels(plan: Plan) -> dict[str, list[list[str]]]:
    """What a reader of the scenario will call the updates."""
    found: dict[str, list[list[str]]] = {source: [] for source in plan.steps}
    for parts in transactions(plan):
        total = sum(len(step.updates) for step in parts.values())
        number = 0
        for source, step in parts.items():
            numbers = range(number + 1, number + len(step.updates) + 1)
            found[source].append([f"{step.id}.{i}" if total > 1 else step.id for i in numbers])
            number += len(step.updates)
    return found


def _steps(plan: Plan, schedule: Sequence[Event], chosen: Chosen) -> Iterator[str]:
    teller = Teller(chosen.lab(plan), _labels(plan), Shown(plan.view))
    for event in schedule:
        if event not in teller.lab.choices():
            continue
        moment = teller.step(event)
        kind, source = event
        if kind == "receive" and not moment.name.startswith("A"):
            yield f"  receives {moment.name} from {source}"
        else:
            yield f"  {f'{source} {kind}s' if kind != 'receive' else 'receives'} {moment.name}"


def _view_text(plan: Plan) -> str:
    view = plan.view
    joined = [(o.relation.id, [c.name for c in o.relation.columns]) for o in view.occurrences]
    if view.sql == natural_sql(joined, [o.name for o in view.outputs]):
        short = " ⋈ ".join(_name(plan, o.source, o.relation.name) for o in view.occurrences)
        everything = view.sql == natural_sql(joined, [])
        return short if everything else f"Π {','.join(o.name for o in view.outputs)} ({short})"
    if view.sql:
        return "\n  ".join(line.strip() for line in view.sql.splitlines() if line.strip())
    columns = {o.attribute(c): f"{o.alias}.{c}" for o in view.occurrences for c in o.columns}
    shown = [f"{columns[output.expression]} AS {output.name}" for output in view.outputs]
    first, *others = view.occurrences
    lines = [f"SELECT {', '.join(shown[:_WIDE])}"]
    for start in range(_WIDE, len(shown), _WIDE):
        lines[-1] += ","
        lines.append(f"  {', '.join(shown[start : start + _WIDE])}")
    lines.append(f"FROM {first.relation.id} AS {first.alias}")
    for occurrence in others:
        seen = [e.seen_from(occurrence.index) for e in view.equalities if e.touches(occurrence.index)]
        on = [
            f"{view.occurrences[other].alias}.{column} = {occurrence.alias}.{own}"
            for own, other, column in seen
            if other < occurrence.index
        ]
        join = f"JOIN {occurrence.relation.id} AS {occurrence.alias}"
        lines.append(f"{join} ON {' AND '.join(on)}" if on else f"CROSS {join}")
    return "\n  ".join(lines)
