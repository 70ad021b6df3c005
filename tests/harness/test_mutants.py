"""Mutation testing: how mutants are made and put in place, and how they are counted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FunctionType

import pytest

from harness.mutants.report import Equivalent, Result, load_equivalents, summarize, table
from harness.mutants.sources import Mutant, mutants_of, swap_code

A, B = "engine/a.py", "engine/b.py"


def result(file: str, after: str, outcome: str) -> Result:
    return Result(file, "f", "x = 1", after, outcome, "")


RESULTS = [
    result(A, "x = 2", "killed"),
    result(A, "x = 3", "timeout"),
    result(A, "x = 4", "survived"),
    result(A, "x = 5", "uncovered"),
    result(B, "x = 6", "killed"),
]


def test_the_score_counts_timeouts_as_kills_and_leaves_out_the_equivalent() -> None:
    report = summarize(RESULTS, [Equivalent(A, "f", "x = 1", "x = 4", "nobody reads x")])
    assert report.modules[A].score == 2 / 3
    assert (report.total.mutants, report.total.score) == (5, 3 / 4)
    assert [survivor.after for survivor in report.survivors] == ["x = 5"]
    assert "66.7%" in table(report).splitlines()[1]


def test_an_entry_that_no_living_mutant_matches_is_stale_where_its_file_ran() -> None:
    killed, elsewhere = Equivalent(A, "f", "x = 1", "x = 2", ""), Equivalent("engine/c.py", "f", "x = 1", "x = 4", "")
    report = summarize(RESULTS, [killed, elsewhere])
    assert report.stale == [killed]
    assert report.modules[A].equivalent == 0


def test_goals() -> None:
    report = summarize(RESULTS, [])
    assert report.missed({A: 0.5, B: 1.0}, overall=0.6) == []
    assert report.missed({A: 0.51}, overall=0.6) == ["engine/a.py: 50.0%, the goal is 51%"]
    assert report.missed({A: 0.5}, overall=0.61) == ["all: 60.0%, the goal is 61%"]
    assert report.missed({A: 0.5, "engine/c.py": 1.0}, overall=0.61) == [], "one module does not speak for all"


def test_every_equivalent_mutant_has_its_reason_and_its_line() -> None:
    entries = load_equivalents(Path("harness/mutants/equivalent.toml"))
    assert len(set(entries)) == len(entries) > 0
    for entry in entries:
        assert entry.reason.endswith("."), entry
        lines = [line.strip() for line in Path(entry.file).read_text().splitlines()]
        assert all(line in lines for line in entry.before.splitlines()), f"{entry.file} says it otherwise now: {entry.before}"


SOURCE = '''
RULE = lambda x: x > 1
LIMIT = 7


class Box:
    """A docstring."""

    @property
    def size(self) -> "int":
        return 1 + 2


def bounded(value=3):
    if value < 0:
        raise ValueError(f"negative: {value + 1}")
    assert value != 9, "nine" + "!"
    return min(
        value,
        LIMIT,
    )
'''


@pytest.fixture
def mutants(tmp_path: Path) -> list[Mutant]:
    pytest.importorskip("mutmut", reason="the extra `mutants` is not installed")
    (tmp_path / "box.py").write_text(SOURCE)
    return list(mutants_of(str(tmp_path / "box.py")))


def named(mutants: list[Mutant], after: str) -> Mutant:
    (found,) = [mutant for mutant in mutants if mutant.after == after]
    return found


def test_behaviour_is_mutated_and_messages_are_not(mutants: list[Mutant]) -> None:
    assert {mutant.function for mutant in mutants} == {"RULE", "Box.size", "bounded"}
    named(mutants, "if value <= 0:")
    named(mutants, 'assert value == 9, "nine" + "!"')
    changed = " ".join(mutant.after for mutant in mutants)
    assert not any(text in changed for text in ("negative", "XX", "docstring", "LIMIT = None", "value=4"))


def test_a_mutant_knows_the_lines_of_its_statement(mutants: list[Mutant]) -> None:
    lines = SOURCE.splitlines()
    (fewer,) = [mutant for mutant in mutants if mutant.before == "value," and not mutant.after]
    assert lines[fewer.lines.start - 1].strip() == "return min("
    assert lines[fewer.lines.stop - 2].strip() == ")"
    assert lines[named(mutants, "if value <= 0:").lines.start - 1].strip() == "if value < 0:"


@pytest.mark.parametrize(
    ("after", "ask"),
    [
        ("RULE = lambda x: x >= 1", lambda box: box.RULE(1)),
        ("return 1 - 2", lambda box: box.Box().size == -1),
        ("if value <= 0:", lambda box: _raises(box.bounded, 0)),
    ],
    ids=["lambda", "property", "function"],
)
def test_the_mutated_code_takes_the_place_of_the_imported_one(
    after: str, ask: Callable[..., bool], mutants: list[Mutant]
) -> None:
    mutant = named(mutants, after)
    spec = spec_from_file_location("box", mutant.file)
    assert spec is not None
    assert spec.loader is not None
    box = module_from_spec(spec)
    spec.loader.exec_module(box)
    functions = [box.RULE, box.Box.size.fget, box.bounded]
    assert all(isinstance(function, FunctionType) for function in functions)
    assert "box" not in sys.modules
    assert not ask(box)
    assert swap_code(mutant, functions)
    assert ask(box)


def _raises(function: Callable[..., object], value: int) -> bool:
    try:
        function(value)
    except ValueError:
        return True
    return False
