"""All that a page, a summary or a script may want to know of some runs, computed once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from reports import tables
from reports.load import Runs, load_runs
from reports.schema import TestRecord
from reports.verdict import Verdict, failure_kind, judge

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    loaded: Runs
    verdict: Verdict

    @classmethod
    def of(cls, paths: Iterable[Path | str]) -> Report:
        """Raises RecordError when a run cannot be read at all."""
        loaded = load_runs(paths)
        return cls(loaded, judge(loaded))

    @cached_property
    def cases(self) -> pd.DataFrame:
        return tables.case_table(self.loaded.records)

    @cached_property
    def suites(self) -> pd.DataFrame:
        return tables.suite_table(self.cases)

    @cached_property
    def skips(self) -> pd.DataFrame:
        return tables.skip_table(self.cases)

    @cached_property
    def matrices(self) -> list[tables.Matrix]:
        return tables.equivalence_matrices(self.loaded.records)

    @cached_property
    def activity(self) -> pd.DataFrame:
        return tables.activity_table(self.loaded.records)

    @cached_property
    def figures(self) -> pd.DataFrame:
        return tables.figure_table(self.loaded.records)

    @cached_property
    def failures(self) -> dict[str, list[TestRecord]]:
        """By kind, the most frequent first."""
        groups: dict[str, list[TestRecord]] = {}
        for record in self.loaded.records:
            if record.failing:
                groups.setdefault(failure_kind(record), []).append(record)
        return dict(sorted(groups.items(), key=lambda group: -len(group[1])))

    @cached_property
    def anchors(self) -> dict[tuple[str, str], str]:
        """Key of a failing record -> the anchor of its evidence on the page."""
        failing = [record for group in self.failures.values() for record in group]
        return {record.key: f"failure-{number}" for number, record in enumerate(failing, start=1)}
