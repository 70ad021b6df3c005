"""What became of the mutants: scores by module, goals, and equivalent mutants as data."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Equivalent", "Result", "Summary", "load_equivalents", "summarize", "table"]


@dataclass(frozen=True)
class Equivalent:
    """A mutant that no test can tell from the original. One of several lines is named by all of them."""

    file: str
    function: str
    before: str
    after: str
    reason: str


@dataclass(frozen=True)
class Result:
    file: str
    function: str
    before: str
    after: str
    outcome: str
    """killed, timeout, survived or uncovered"""
    diff: str

    @property
    def lives(self) -> bool:
        return self.outcome in ("survived", "uncovered")


@dataclass
class Summary:
    """One module, or all."""

    mutants: int = 0
    killed: int = 0
    timeouts: int = 0
    survived: int = 0
    equivalent: int = 0

    @property
    def score(self) -> float:
        judged = self.mutants - self.equivalent
        return (self.killed + self.timeouts) / judged if judged else 1.0

    def add(self, result: Result, equivalent: bool) -> None:
        self.mutants += 1
        self.killed += result.outcome == "killed"
        self.timeouts += result.outcome == "timeout"
        self.survived += result.lives and not equivalent
        self.equivalent += equivalent


@dataclass
class Report:
    modules: dict[str, Summary] = field(default_factory=dict)
    total: Summary = field(default_factory=Summary)
    survivors: list[Result] = field(default_factory=list)
    stale: list[Equivalent] = field(default_factory=list)
    """Entries that no living mutant of the files that ran matches."""

    def missed(self, goals: Mapping[str, float], overall: float) -> list[str]:
        """A module that did not run is not judged; nor is the whole by one module."""
        missed = [
            f"{file}: {self.modules[file].score:.1%}, the goal is {goal:.0%}"
            for file, goal in goals.items()
            if file in self.modules and self.modules[file].score < goal
        ]
        if goals.keys() <= self.modules.keys() and self.total.score < overall:
            missed.append(f"all: {self.total.score:.1%}, the goal is {overall:.0%}")
        return missed


def load_equivalents(path: Path) -> list[Equivalent]:
    return [Equivalent(**entry) for entry in tomllib.loads(path.read_text()).get("mutant", [])]


def summarize(results: Sequence[Result], equivalents: Sequence[Equivalent]) -> Report:
    report = Report()
    known = {_key(entry): entry for entry in equivalents}
    used: set[tuple[str, str, str, str]] = set()
    for result in results:
        equivalent = result.lives and _key(result) in known
        if equivalent:
            used.add(_key(result))
        elif result.lives:
            report.survivors.append(result)
        report.modules.setdefault(result.file, Summary()).add(result, equivalent)
        report.total.add(result, equivalent)
    report.stale = [entry for key, entry in known.items() if entry.file in report.modules and key not in used]
    return report


def _key(mutant: Equivalent | Result) -> tuple[str, str, str, str]:
    return mutant.file, mutant.function, mutant.before, mutant.after


def table(report: Report) -> str:
    lines = [f"{'module':30}{'mutants':>9}{'killed':>9}{'timeout':>9}{'survived':>10}{'equivalent':>12}{'score':>9}"]
    for name, row in [*report.modules.items(), ("all", report.total)]:
        lines.append(
            f"{name:30}{row.mutants:>9}{row.killed:>9}{row.timeouts:>9}{row.survived:>10}{row.equivalent:>12}{row.score:>9.1%}"
        )
    return "\n".join(lines)
