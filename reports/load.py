"""Several runs as one set of records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from reports.schema import TestRecord
from reports.store import RecordError, Run, read_run

__all__ = ["Runs", "load_runs"]


@dataclass(frozen=True)
class Runs:
    runs: list[Run]
    records: list[TestRecord]
    problems: list[str]

    @property
    def complete(self) -> bool:
        return all(run.complete for run in self.runs)


def load_runs(paths: Iterable[Path | str]) -> Runs:
    """Read and merge. A test that stands in two runs of one id (a run given twice, or a copy of it) counts once."""
    runs = [read_run(path) for path in paths]
    if not runs:
        raise RecordError("no runs given")
    records: dict[tuple[str, str], TestRecord] = {}
    problems: list[str] = []
    seen: dict[str, Run] = {}
    for run in runs:
        problems += [f"{run.path}: {problem}" for problem in run.problems]
        run_id = run.header.run_id
        if run_id in seen:
            problems.append(f"{run.path}: has the run id of {seen[run_id].path}, {run_id!r}; a test of both counts once")
        seen.setdefault(run_id, run)
        for record in run.records:
            known = records.get(record.key)
            if known is None or (record.failing and not known.failing):
                records[record.key] = record
    return Runs(runs, list(records.values()), problems)
