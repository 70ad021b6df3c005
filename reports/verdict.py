"""The one line that comes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from reports.load import Runs
from reports.schema import TestRecord

__all__ = ["Verdict", "failure_kind", "judge", "requests_compared"]


@dataclass(frozen=True)
class Verdict:
    status: str  # passed, failed, incomplete, empty
    line: str
    details: list[str]


def judge(loaded: Runs) -> Verdict:
    outcomes = Counter(record.outcome for record in loaded.records)
    failing = [record for record in loaded.records if record.failing]
    details = _details(outcomes)
    if failing:
        kinds = ", ".join(f"{n} × {kind}" for kind, n in Counter(map(failure_kind, failing)).most_common())
        line = f"{len(failing)} of {len(loaded.records)} cases failed: {kinds}"
        return Verdict("failed", line, details + _incomplete(loaded))
    if not loaded.complete:
        return Verdict(
            "incomplete", f"Incomplete: {_cases(outcomes['passed'])} passed, and not all have a result", _incomplete(loaded)
        )
    if not outcomes["passed"]:
        line = f"Nothing was shown: all {_cases(len(loaded.records))} were skipped" if loaded.records else "No cases were run"
        return Verdict("empty", line, details)
    compared = requests_compared(loaded.records)
    equal = f"async equals sync in {compared:,} compared requests" if compared else "no requests were compared"
    return Verdict("passed", f"All {_cases(outcomes['passed'])} passed: {equal}", details)


def failure_kind(record: TestRecord) -> str:
    """By what failures are grouped."""
    return record.exception or record.outcome


def requests_compared(records: Iterable[TestRecord]) -> int:
    numbers = (record.counts.get("requests_compared") for record in records)
    return sum(number for number in numbers if isinstance(number, int) and not isinstance(number, bool))


def _details(outcomes: Counter[str]) -> list[str]:
    details = []
    if outcomes["skipped"]:
        details.append(f"{_cases(outcomes['skipped'])} skipped")
    if outcomes["xfailed"]:
        details.append(f"{_cases(outcomes['xfailed'])} failed as expected (known defects, injected faults)")
    return details


def _incomplete(loaded: Runs) -> list[str]:
    return [f"{run.path}: {run.problems[-1] if run.problems else 'incomplete'}" for run in loaded.runs if not run.complete]


def _cases(number: int) -> str:
    return f"{number:,} case{'' if number == 1 else 's'}"
