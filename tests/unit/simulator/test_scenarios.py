"""Scenarios: the papers' examples with all their printed states, the language, and runs made minimal."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from paths import ROOT

from strobe.auditor.levels import satisfies
from strobe.cli.main import main
from strobe.errors import UserError
from strobe.managers.eca import Eca
from strobe.managers.registry import ALGORITHMS, keys
from strobe.managers.strobe import Strobe
from strobe.simulator.algorithms import choose
from strobe.simulator.explorer import random_schedule
from strobe.simulator.judging import Levels
from strobe.simulator.lab import Event, Lab, Plan
from strobe.simulator.minimal import minimal
from strobe.simulator.plans import SCENARIOS, Shape, random_plan
from strobe.simulator.scenario_reader import load, read, read_schedule
from strobe.simulator.scenario_text import write
from strobe.simulator.specimens import SPECIMENS
from strobe.simulator.trial import Outcome, carry_out

EXAMPLES = sorted((ROOT / "examples" / "papers").glob("*.scenario"))


def failed(outcome: Outcome) -> list[str]:
    return [f"{check.where}: {check.text}; {check.found}" for check in outcome.checks if not check.holds]


# The papers' examples.


def test_every_example_of_the_papers_has_a_scenario() -> None:
    """All that have a single view and events: Example 6 of the ECA paper is about costs."""
    wanted = {f"eca-{n}" for n in (1, 2, 3, 4, 5, 7, 8, 9)} | {f"strobe-{n}" for n in range(1, 8)}
    assert wanted <= {file.stem for file in EXAMPLES}


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_examples_go_as_printed(file: Path) -> None:
    """Every query, answer and state that the papers print, step by step, and the level in the end."""
    outcome = carry_out(load(file))
    assert outcome.checks and failed(outcome) == []


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_algorithms_are_right_on_the_printed_schedules(file: Path) -> None:
    """Whatever goes wrong in an example: on its schedule, everything that promises a level keeps it."""
    scenario = load(file)
    several = len(scenario.plan.view.sources) > 1
    parts = any(step.part_of for steps in scenario.plan.steps.values() for step in steps)
    updates = any(len(step.updates) > 1 for steps in scenario.plan.steps.values() for step in steps)
    where = "global" if parts else "source-local" if several and updates else "single updates"
    where = where if several else "transactions" if updates else "single source"
    for name, algorithm in ALGORITHMS.items():
        if keys not in algorithm.lacks or keys(scenario.plan.view) is None:
            wanted = algorithm.reaches[where].replace("none", "inconsistent")
            outcome = carry_out(scenario, choose(name))
            assert satisfies(outcome.finding.level, wanted), f"{name}: {outcome.finding}"


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_no_expectation_is_empty(file: Path) -> None:
    """Each expectation of the examples, made false, is found to be false."""
    text = file.read_text(encoding="utf-8")
    spoiled = 0
    for line in text.splitlines():
        for part in line.split(";"):
            wrong = _spoiled(part.strip())
            if wrong and not part.lstrip().startswith(("#", "U", "T")):
                spoiled += 1
                lie = text.replace(line, line.replace(part.strip(), wrong), 1)
                assert failed(carry_out(read(lie))), f"{part.strip()} -> {wrong}"
    assert spoiled


def _spoiled(expectation: str) -> str:
    """The same with another value."""
    match expectation.split("=")[0].split("(")[0].split():
        case ["sends", "nothing"]:
            return "sends Q77"
        case ["sends", *_]:
            return f"{expectation} + [7] ⋈ {re.findall(r'r[123]', expectation)[0]}" if "r" in expectation else ""
        case ["finally:", *_]:
            return "finally: ([77])"
        case ["UQS"]:
            return "UQS = {Q77}"
        case ["pending"]:
            return expectation.split("=")[0] + "= {}"
        case ["queue"]:
            return "queue = <U1, U2, U3>"
        case ["AL"]:
            return "AL = <insert(MV, [77])>"
        case [word] if word in ("view", "MV", "COLLECT", "Δ") or re.fullmatch(r"A[\d.]+", word):
            return f"{word} = ([77])"
        case [*_, "receives", _] if "=" in expectation:
            return f"{expectation.split('=')[0]} = ([77])"
    return ""


def test_examples_catch_a_pending_that_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    insert = Strobe._insert
    monkeypatch.setattr(Strobe, "_insert", lambda self, result, _pending: insert(self, result, ()))
    wrong = {file.stem for file in EXAMPLES if not carry_out(load(file)).ok}
    assert wrong == {"strobe-3", "strobe-5-passing", "eca-5-slip-corrected"}


def test_examples_catch_eca_without_compensation(monkeypatch: pytest.MonkeyPatch) -> None:
    from strobe.managers import eca

    substituted = eca.substituted
    monkeypatch.setattr(eca, "substituted", lambda v, term, u: () if term else substituted(v, term, u))
    wrong = {file.stem for file in EXAMPLES if _breaks(file)}
    assert {"eca-2-eca", "eca-3-eca", "eca-4", "eca-7", "eca-8", "eca-9"} <= wrong


def test_examples_catch_an_install_that_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """ECA that installs every answer, and G-Strobe that does not wait for the other parts."""
    monkeypatch.setattr(Strobe, "_parts_missing", lambda _: False)
    assert not carry_out(load(ROOT / "examples/papers/strobe-5-g-strobe.scenario")).ok
    monkeypatch.setattr(Eca, "_install", _install_at_once)
    assert not carry_out(load(ROOT / "examples/papers/eca-4.scenario")).ok


def _install_at_once(self: Eca) -> list[object]:
    out: list[object] = []
    for collect in self._collects:
        out.append(collect.actions(self.view))
        collect.parts = []
    return out


def _breaks(file: Path) -> bool:
    try:
        return not carry_out(load(file)).ok
    except UserError:  # a query that the schedule names was never sent
        return True


# The language.

SMALL = """
source x
  r1(W, X): [1,2]
  r2(X, Y)
view: Π W (r1 ⋈ r2)
algorithm: eca
U1 = insert(r2, [2,3])
U2 = insert(r1, [4,2])
"""


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", 0, "no relation"),
        (SMALL.replace("algorithm: eca\n", ""), 0, "no algorithm"),
        (SMALL.replace("algorithm: eca", "algorithm: magic"), 6, "no algorithm 'magic'"),
        (SMALL.replace("algorithm: eca", "algorithm: strobe"), 6, "it needs keys"),
        (SMALL.replace("algorithm: eca", "algorithm: sweep at best"), 6, "no level 'best'"),
        (SMALL.replace("r2(X, Y)", "r2(X, X)"), 4, "second column X"),
        (SMALL.replace("r2(X, Y)", "r1(X, Y)"), 4, "second relation r1"),
        (SMALL.replace("[1,2]", "[1,2,3]"), 3, "2 columns, the tuple has 3"),
        (SMALL.replace("[1,2]", "[1,]"), 3, "']' is no value"),
        (SMALL.replace("[1,2]", "['a',2]"), 8, "r1.W holds text"),
        (SMALL.replace("r1 ⋈ r2", "r1 ⋈ r3"), 5, "no relation r3"),
        (SMALL.replace("Π W", "Π Z"), 5, "unknown column Z"),
        (SMALL.replace("Π W (r1 ⋈ r2)", "SELECT upper(W) AS w FROM x.r1"), 5, "only Spark"),
        (SMALL.replace("insert(r2", "upsert(r2"), 7, "'upsert' is no update"),
        (SMALL.replace("U2 = insert(r1, [4,2])", "U2 = delete(r1, [4,2])"), 8, "not in r1"),
        (SMALL.replace("U2 =", "U1 ="), 8, "cannot be called U1"),
        (SMALL.replace("U2 =", "Q2 ="), 8, "cannot be called Q2"),
        (SMALL.replace("r1(W, X)", "r1(W, X key)"), 8, "the same key"),
        (SMALL + "level: best", 9, "no level 'best'"),
        (SMALL + "schedule: at night", 9, "no schedule"),
        (SMALL + "schedule\n  dances U1", 10, "is no step"),
        (SMALL + "schedule\n  y executes U1", 10, "no source y"),
        (SMALL + "schedule\n  x executes U2", 10, "not what a source executes next"),
        (SMALL + "schedule\n  receives U2", 10, "Receive U1 first"),
        (SMALL + "schedule\n  receives U1\n  receives U1", 11, "no U1 to receive"),
        (SMALL + "schedule\n  receives A1", 10, "no query Q1 has been sent"),
        (SMALL + "schedule\n  evaluate x", 10, "nothing to evaluate"),
        (SMALL + "schedule\n  receives U1\n  x executes U2\n  receives A1", 12, "x sent U2 before A1"),
        (SMALL + "schedule\n  receives U1\n  receives U2\n  x evaluates Q2", 12, "first Q1"),
        (SMALL + "schedule\n  receives U1\n    hopes = 3", 11, "'hopes' is nothing to expect"),
        (SMALL + "schedule\n  receives U1\n    sends Q1 = V<U7>", 11, "no update U7"),
        (SMALL + "schedule\n  receives U1\n    sends Q1 = Π_Y(r1)", 11, "the view shows W, not Y"),
        (SMALL + "schedule\n  receives U1\n    UQS = Q1", 11, "no list"),
        (SMALL + "schedule\n  receives U1: view = ([1]", 10, "no ')'"),
        (SMALL + "magic: 1", 9, "begins no line"),
        (SMALL + "algorithm: lca", 9, "a second algorithm"),
    ],
)
def test_mistakes_are_pointed_at(text: str, line: int, problem: str) -> None:
    """The line, what is wrong, and what to do instead."""
    with pytest.raises(UserError) as caught:
        carry_out(read(text, "some.scenario"))
    assert caught.value.where.startswith(f"some.scenario:{line}" if line else "some.scenario")
    assert problem in str(caught.value) and caught.value.fix


def test_a_schedule_that_is_left_out_is_in_order() -> None:
    """Each transaction happens when the one before has come to rest, in the order of the file; parts together."""
    scenario = read(
        """
        source x
          r1(A key, B): [1,2]
        source y
          r2(B, C key)
        view: r1 ⋈ r2
        algorithm: t-strobe
        second = insert(r2, [2,3])
        first = <delete(r1, [1,2]), insert(r2, [2,4])>
        finally: ∅
        """.replace("\n        ", "\n")
    )
    outcome = carry_out(scenario)
    assert outcome.ok and outcome.finding.level == "complete"
    assert outcome.worst[:4] == (("execute", "y"), ("receive", "y"), ("evaluate", "x"), ("receive", "x"))
    assert outcome.worst[4:6] == (("execute", "x"), ("execute", "y"))


def test_conditions_modifications_and_text() -> None:
    """A view in SQL, seen through its condition; a modification is one update, and text is a value."""
    outcome = carry_out(
        read(
            """
source x
  people(id key, name, boss): [1,'Ada',1] [2,'Bob; # it''s',1]
view: SELECT p.name AS who, b.name AS boss
  FROM x.people AS p JOIN x.people AS b ON p.boss = b.id
  WHERE p.id > 1
algorithm: lca
U1 = modify(people, [1,'Ada',1], [1,'Eve',2])
initially: (['Bob; # it''s','Ada'])
schedule
  receives U1
  receives A1
    view = (['Bob; # it''s','Eve'])
level: complete
"""
        )
    )
    assert failed(outcome) == []


def test_steps_need_no_names() -> None:
    """The laboratory's own events; whatever the schedule leaves happens in order."""
    scenario = read(
        SMALL + "schedule\n  execute x\n  receive x\n    sends Q1\n  execute x\n  evaluate x\n  receive x\n"
    )
    outcome = carry_out(scenario)
    kinds = [kind for kind, _ in outcome.worst]
    assert outcome.ok and kinds == [
        "execute",
        "receive",
        "execute",
        "evaluate",
        "receive",
        "receive",
        "evaluate",
        "receive",
    ]


def test_all_schedules_and_random_ones() -> None:
    eca = read(SMALL + "level: strong")
    every = carry_out(eca, schedule=read_schedule("all", ""))
    assert every.ok and every.all_seen and sum(every.levels.values()) == 10
    some = carry_out(eca, schedule=read_schedule("all up to 3", ""))
    assert not some.all_seen and sum(some.levels.values()) == 3
    once, again = (carry_out(eca, schedule=read_schedule("random:5", "")) for _ in range(2))
    assert once.worst == again.worst and once.ok


def test_the_level_of_many_runs_is_that_of_the_worst() -> None:
    """`not` asks for one run that breaks a level; anything else is asked of all runs."""
    text = SMALL.replace("eca", "conventional") + "schedule: all\nlevel: "
    assert carry_out(read(text + "inconsistent, not convergent")).ok
    assert not carry_out(read(text + "convergent")).ok
    assert not carry_out(read(SMALL + "schedule: all\nlevel: strong, not convergent")).ok


def test_a_schedule_is_kept_under_another_algorithm() -> None:
    """Its steps mean what they meant; what the algorithm does not come to is left out, and nothing is expected."""
    scenario = load(ROOT / "examples/papers/eca-2.scenario")
    outcome = carry_out(scenario, choose("lca"))
    assert outcome.finding.level == "complete" and outcome.checks == []
    assert outcome.worst == carry_out(scenario).worst


# Writing, and minimal runs.


@pytest.mark.parametrize("name", [*ALGORITHMS, *SPECIMENS])
def test_what_is_written_is_read_as_the_same(name: str) -> None:
    """Any plan and schedule, written down, read and carried out, goes through the same states."""
    for seed in range(6):
        rng = random.Random(f"{seed} {name}")
        shape = Shape(rng.choice([(0, 1), (0, 1, 2), (0, 0, 1), (0, 1, 0)]))
        plan = random_plan(rng, rng.choice(SCENARIOS), shape, 3)
        lab = choose(name).lab(plan)
        schedule = random_schedule(lab, rng)
        outcome = carry_out(read(write(plan, schedule, name)))
        assert outcome.worst == schedule, seed
        assert outcome.teller and outcome.teller.lab.states == lab.states, seed
        assert outcome.finding.level == Levels().level(lab)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_examples_can_be_written(file: Path) -> None:
    scenario = load(file)
    outcome = carry_out(scenario)
    text = write(scenario.plan, outcome.worst, scenario.algorithm, level=", ".join(scenario.levels))
    again = carry_out(read(text))
    assert again.worst == outcome.worst and again.finding.level == outcome.finding.level and again.ok


def _broken(name: str, scenario: str, wanted: str) -> tuple[Plan, tuple[Event, ...], Callable[[Lab], bool]]:
    """A run that does not reach a level, and what tells so."""
    levels = Levels()

    def fails(lab: Lab) -> bool:
        return not satisfies(levels.level(lab), wanted)

    for seed in range(1000):
        rng = random.Random(seed)
        plan = random_plan(rng, scenario, Shape(), 4)
        lab = choose(name).lab(plan)
        schedule = random_schedule(lab, rng)
        if fails(lab):
            return plan, schedule, fails
    raise AssertionError("nothing fails")


@pytest.mark.parametrize(
    ("name", "scenario", "wanted", "transactions", "events"),
    [
        ("conventional", "single source", "convergent", 2, 8),
        ("eca-key-printed", "single source", "convergent", 2, 6),
        ("strobe", "transactions", "weak", 1, 5),
        ("t-strobe", "global", "strong", 1, 8),
        ("rv-printed", "global", "strong", 1, 16),
    ],
)
def test_failures_are_made_minimal(name: str, scenario: str, wanted: str, transactions: int, events: int) -> None:
    """Four transactions shrink to the one or two that matter; always the same; and the result still fails."""
    found, long, fails = _broken(name, scenario, wanted)
    plan, schedule = minimal(found, long, choose(name).lab, fails)
    assert (plan, schedule) == minimal(found, long, choose(name).lab, fails)
    assert len({step.id for steps in plan.steps.values() for step in steps}) <= transactions
    assert len(schedule) <= events
    assert not carry_out(read(write(plan, schedule, name, level=wanted))).ok


# The command.


def _simulate(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["simulate", *map(str, arguments)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_the_command_prints_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _simulate(capsys, ROOT / "examples/papers/strobe-3.scenario")
    assert code == 0
    for line in (
        "6. warehouse receives U2 from x",
        "sends Q1.2 to z = [1,2,3] ⋈ r3",
        "pending(Q1.2) = {U2}",
        "AL = <key_delete(MV, U2)>",
        "level: complete, because",
    ):
        assert line in out


def test_the_command_says_what_was_not_as_expected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, and the line of the file; as text and as a document."""
    file = tmp_path / "wrong.scenario"
    file.write_text(SMALL + "schedule\n  receives U1\n    UQS = {}\nlevel: strong\n", encoding="utf-8")
    code, out, _ = _simulate(capsys, file)
    assert code == 1 and f"not as expected: {file}:11: UQS = {{}}; but UQS = {{Q1}}" in out
    code, out, _ = _simulate(capsys, file, "--json")
    document = json.loads(out)
    assert code == 1 and document["format"] == 1 and not document["ok"] and document["level"] == "complete"
    assert [check["expected"] for check in document["failed"]] == ["UQS = {}"]


def test_the_command_refuses_with_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _simulate(capsys, tmp_path / "none.scenario")[0] == 2
    file = tmp_path / "bad.scenario"
    file.write_text("source x\n  r1(A: [1]\n", encoding="utf-8")
    code, _, err = _simulate(capsys, file)
    assert code == 2 and f"{file}:2" in err
    file.write_text(SMALL, encoding="utf-8")
    assert _simulate(capsys, file, "--algorithm", "magic")[0] == 2
    assert _simulate(capsys, file, "--schedule", "sometimes")[0] == 2


def test_a_broken_level_is_printed_as_a_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `--schedule all` or a random schedule finds can be kept in a file and replayed."""
    file, found = tmp_path / "wanted.scenario", tmp_path / "found.scenario"
    file.write_text(SMALL.replace("eca", "conventional") + "level: strong\n", encoding="utf-8")
    assert _simulate(capsys, file)[0] == 0
    code, out, _ = _simulate(capsys, file, "--schedule", "all", "--json")
    document = json.loads(out)
    assert code == 1 and document["levels"] == {"inconsistent": 8, "complete": 2}
    found.write_text(document["smallest"], encoding="utf-8")
    assert _simulate(capsys, found)[0] == 1
    assert _simulate(capsys, found, "--algorithm", "eca")[0] == 0


def test_the_example_of_the_manual(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/scenarios.md shows a scenario, and what is printed of it."""
    text = (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")
    scenario, printed = re.findall(r"```(?:text)?\n(.*?)```", text, flags=re.DOTALL)[:2]
    file = tmp_path / "example.scenario"
    file.write_text(scenario, encoding="utf-8")
    code, out, _ = _simulate(capsys, file)
    assert code == 0 and out.strip() == printed.strip()
