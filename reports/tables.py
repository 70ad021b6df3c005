"""Records as pandas tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from reports.schema import FAILING, OUTCOMES, TestRecord
from reports.verdict import requests_compared

__all__ = [
    "Matrix",
    "acceptance",
    "activity_table",
    "case_table",
    "equivalence_matrices",
    "figure_table",
    "skip_table",
    "suite_table",
]

EQUIVALENCE_SUITE = "test_async_equivalence"
SETTINGS = {"num_speculative_tokens"}  # stands beside the counters, but its sum means nothing
_WORST_FIRST = ("error", "failed", "xpassed", "xfailed", "skipped", "passed")


def case_table(records: Sequence[TestRecord]) -> pd.DataFrame:
    """One row for each record."""
    rows = [
        {
            "suite": record.suite,
            "test": record.test,
            "case": record.case_id,
            "nodeid": record.nodeid,
            "tier": record.tier,
            "outcome": record.outcome,
            "requests": requests_compared([record]),
            "seconds": record.durations.total,
            "skip_reason": (record.skip_reason or "no reason given") if record.outcome == "skipped" else "",
        }
        for record in records
    ]
    columns = ["suite", "test", "case", "nodeid", "tier", "outcome", "requests", "seconds", "skip_reason"]
    return pd.DataFrame(rows, columns=columns)


def suite_table(cases: pd.DataFrame) -> pd.DataFrame:
    """One row for each suite: cases, one column for each group of outcomes, requests compared, seconds."""
    groups = cases.groupby("suite", sort=False)
    counts = pd.crosstab(cases["suite"], cases["outcome"]).reindex(columns=list(OUTCOMES), fill_value=0)
    table = pd.DataFrame(
        {
            "cases": groups.size(),
            "passed": counts["passed"],
            "failed": counts[list(FAILING)].sum(axis=1),
            "known": counts["xfailed"],
            "skipped": counts["skipped"],
            "requests": groups["requests"].sum(),
            "seconds": groups["seconds"].sum(),
        }
    )
    return table.astype({name: int for name in table.columns if name != "seconds"}).sort_index()


def skip_table(cases: pd.DataFrame) -> pd.DataFrame:
    """suite, reason, cases."""
    skipped = cases[cases["outcome"] == "skipped"]
    return skipped.groupby(["suite", "skip_reason"]).size().reset_index(name="cases").rename(columns={"skip_reason": "reason"})


def activity_table(records: Iterable[TestRecord]) -> pd.DataFrame:
    """Totals of the counters of all tests, and in how many tests each was above zero."""
    totals: dict[str, list[float]] = {}
    for record in records:
        for name, value in _numbers(record.activity):
            if name in SETTINGS:
                continue
            total = totals.setdefault(name, [0, 0])
            total[0] += value
            total[1] += value > 0
    rows = [(name, total, int(tests)) for name, (total, tests) in totals.items()]
    return pd.DataFrame(rows, columns=["counter", "total", "cases"])


def acceptance(activity: pd.DataFrame) -> list[tuple[str, float]]:
    """Acceptance rate and length over all tests, where there were drafts."""
    totals = dict(zip(activity["counter"], activity["total"], strict=True))
    drafts, drafted = totals.get("num_drafts", 0), totals.get("num_drafted_tokens", 0)
    accepted = totals.get("num_accepted_tokens", 0)
    if not drafts or not drafted:
        return []
    return [("acceptance rate", accepted / drafted), ("acceptance length", 1 + accepted / drafts)]


def figure_table(records: Iterable[TestRecord]) -> pd.DataFrame:
    rows = [
        {
            "figure": figure.name,
            "value": figure.value,
            "unit": figure.unit or "",
            "n": figure.n,
            "interval": figure.interval,
            "threshold": figure.threshold,
            "case": f"{record.test}[{record.case_id}]" if record.case_id != record.test else record.test,
        }
        for record in records
        for figure in record.figures
    ]
    return pd.DataFrame(rows, columns=["figure", "value", "unit", "n", "interval", "threshold", "case"], dtype=object)


@dataclass(frozen=True)
class Matrix:
    """Outcomes of one test: configurations down, sampling parameters across. A cell is the worst of its records."""

    test: str
    row_names: list[str]  # the parameters that make up a row
    rows: list[str]
    columns: list[str]
    cells: dict[tuple[str, str], TestRecord]  # (row, column)


def equivalence_matrices(records: Iterable[TestRecord]) -> list[Matrix]:
    """One matrix for each test of the equivalence suite that has a parameter `sampling` and others beside it."""
    by_test: dict[str, list[tuple[TestRecord, dict[str, str]]]] = {}
    for record in records:
        if record.suite == EQUIVALENCE_SUITE:
            by_test.setdefault(record.test, []).append((record, parameter_labels(record)))
    matrices = (_matrix(test, entries) for test, entries in by_test.items())
    return [matrix for matrix in matrices if matrix is not None]


def parameter_labels(record: TestRecord) -> dict[str, str]:
    """Parameter -> what to call its value. One parameter that holds all the others (a case object) is unfolded."""
    parameters = record.parameters
    if len(parameters) == 1:
        (only,) = parameters.values()
        if isinstance(only, dict) and any(name.startswith("sampling") for name in only):
            return {name: _label(value) for name, value in only.items() if name not in ("id", "name", "label")}
    return {name: record.parameter_ids.get(name) or _label(value) for name, value in parameters.items()}


def _matrix(test: str, entries: list[tuple[TestRecord, dict[str, str]]]) -> Matrix | None:
    names = list(dict.fromkeys(name for _, labels in entries for name in labels))
    column = next((name for name in names if name.startswith("sampling")), None)
    if column is None or len(names) < 2:
        return None
    # A parameter that is the same everywhere says nothing about a row.
    varying = [name for name in names if name != column and len({labels.get(name) for _, labels in entries}) > 1]
    row_names = varying or [name for name in names if name != column]
    cells: dict[tuple[str, str], TestRecord] = {}
    for record, labels in entries:
        place = " · ".join(labels.get(name, "–") for name in row_names), labels.get(column, "–")
        cells[place] = min(cells.get(place, record), record, key=lambda each: _WORST_FIRST.index(each.outcome))
    # In order of their names: the order of records is that in which tests ended, which differs between runs.
    rows, columns = (sorted({place[axis] for place in cells}) for axis in (0, 1))
    return Matrix(test, row_names, rows, columns, cells)


def _label(value: Any) -> str:
    if isinstance(value, dict):
        for name in ("id", "name", "label"):
            if isinstance(value.get(name), str):
                return str(value[name])
        value = {name: item for name, item in value.items() if item is not None}
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _numbers(activity: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, float]]:
    """Counters, those in nested mappings and lists by their path."""
    for name, value in activity.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            yield from _numbers({str(i): item for i, item in enumerate(value)}, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{name}", value
