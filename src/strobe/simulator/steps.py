"""What a step of a schedule means: the events of the laboratory. It has to be what really comes next.

Where the warehouse is to receive something that its source has not yet executed or evaluated, the source does so just
before.
"""

from __future__ import annotations

from strobe.errors import UserError
from strobe.messages import Answer
from strobe.simulator.lab import Event
from strobe.simulator.scenario import Happening
from strobe.simulator.telling import Teller


def meaning(teller: Teller, step: Happening) -> list[Event]:
    """The events of a step; the last is what it names."""
    if not step.what:
        event = (step.verb, step.source)
        if event not in teller.lab.choices():
            raise _wrong(step, f"{step.source} has nothing to {step.verb} now", "Leave the step out.")
        return [event]
    if step.verb == "execute":
        return _execute(teller, step)
    if step.verb == "evaluate":
        return _evaluate(teller, step)
    return _receive_answer(teller, step) if step.what.startswith("A") else _receive_update(teller, step)


def _execute(teller: Teller, step: Happening) -> list[Event]:
    lab = teller.lab
    next_ = {s: steps[lab.executed[s]] for s, steps in lab.plan.steps.items() if lab.executed[s] < len(steps)}
    found = [s for s in next_ if step.source in ("", s) and step.what in _step_names(teller, s, lab.executed[s])]
    if len(found) == 1:
        return [("execute", found[0])]
    if found:
        raise _parts(step, found, f"{found[0]} executes {step.what}")
    could = ", ".join(f"{source} {s.id}" for source, s in next_.items()) or "nothing is left"
    raise _wrong(step, f"{step.what} is not what a source executes next", f"Next in order: {could}.")


def _step_names(teller: Teller, source: str, number: int) -> set[str]:
    labels = teller.labels[source][number]
    return {teller.lab.plan.steps[source][number].id, *(labels if len(labels) == 1 else ())}


def _evaluate(teller: Teller, step: Happening) -> list[Event]:
    query = teller.queries.get(step.what)
    if query is None:
        raise _wrong(step, f"no query {step.what} has been sent", _queries_there(teller))
    waiting = teller.lab.queries[query.source]
    if not waiting or waiting[0].id != query.id:
        if query in waiting:
            fix = f"Queries are evaluated in order: first {teller.named(waiting[0].id)}."
            raise _wrong(step, f"{step.what} is not the next query of {query.source}", fix)
        raise _wrong(step, f"{step.what} has been evaluated already", "Leave the step out.")
    return [("evaluate", query.source)]


def _receive_answer(teller: Teller, step: Happening) -> list[Event]:
    name = f"Q{step.what[1:]}"
    query = teller.queries.get(name)
    if query is None:
        raise _wrong(step, f"there is no {step.what}: no query {name} has been sent", _queries_there(teller))
    channel, waiting = teller.lab.channels[query.source], teller.lab.queries[query.source]
    if query not in waiting and not any(isinstance(m, Answer) and m.id == query.id for m in channel):
        raise _wrong(step, f"{step.what} has been received already", "Leave the step out.")
    if channel:
        first = channel[0]
        if isinstance(first, Answer) and first.id == query.id:
            return [("receive", query.source)]
        sent = f"A{teller.named(first.id)[1:]}" if isinstance(first, Answer) else _next_report(teller, query.source)
        fix = f"Receive {sent} first: messages keep order."
        raise _wrong(step, f"{query.source} sent {sent} before {step.what}", fix)
    if waiting[0].id != query.id:
        fix = f"Receive A{teller.named(waiting[0].id)[1:]} first."
        raise _wrong(step, f"{step.what} is not the next answer of {query.source}", fix)
    return [("evaluate", query.source), ("receive", query.source)]


def _receive_update(teller: Teller, step: Happening) -> list[Event]:
    lab = teller.lab
    found: list[list[Event]] = []
    later: list[str] = []
    for source, reports in teller.reports.items():
        rest = reports[teller.heard(source) :]
        if step.source not in ("", source) or not any(step.what in report.names for report in rest):
            continue
        channel = lab.channels[source]
        if step.what not in rest[0].names or (channel and isinstance(channel[0], Answer)):
            first = channel[0] if channel else None
            later.append(f"A{teller.named(first.id)[1:]}" if isinstance(first, Answer) else rest[0].name)
        else:
            found.append([("receive", source)] if channel else [("execute", source), ("receive", source)])
    if len(found) == 1:
        return found[0]
    if found:
        sources = [events[-1][1] for events in found]
        raise _parts(step, sources, f"receives {step.what} from {sources[0]}")
    if later:
        raise _wrong(step, f"{step.what} is not what comes next", f"Receive {later[0]} first: messages keep order.")
    known = [r.name for source, reports in teller.reports.items() for r in reports[teller.heard(source) :]]
    raise _wrong(step, f"there is no {step.what} to receive", f"To come: {', '.join(known) or 'no updates'}.")


def _next_report(teller: Teller, source: str) -> str:
    return teller.reports[source][teller.heard(source)].name


def _queries_there(teller: Teller) -> str:
    return f"Sent so far: {', '.join(teller.queries) or 'none'}."


def _wrong(step: Happening, message: str, fix: str) -> UserError:
    return UserError(message, where=step.line.where, fix=fix)


def _parts(step: Happening, sources: list[str], better: str) -> UserError:
    return _wrong(step, f"{step.what} has parts at {' and '.join(sources)}", f"Write `{better}`.")
