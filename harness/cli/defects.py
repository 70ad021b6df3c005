"""`lockstep defects`: the known defects, whether they are in force, and what the last runs made of their cases."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from harness.known_defects import DEFECTS_FILE, Case, Defect, load_defects
from reports import RECORDS_FILE, RecordError, Run, TestRecord, read_run

__all__ = ["add_parser"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("defects", help="list the known defects, and what became of them", description=__doc__)
    parser.add_argument("--file", type=Path, default=DEFECTS_FILE, help="another list than the one that comes with Lockstep")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="DIR", help="where the directories of runs lie (default: runs)"
    )
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    # NOTE: this brings pytest, which no other command needs.
    from harness.known_defects_plugin import current_engine

    defects = load_defects(arguments.file)
    if not defects:
        print("No known defects: every case has to pass.")
        return 0
    engine, version = current_engine(None)
    runs = _read_runs(arguments.runs)
    print(f"{len(defects)} known defect{'s' if len(defects) > 1 else ''}; this is {engine} {version}")
    for defect in defects:
        test = f"::{defect.test}" if defect.test else ""
        print(f"\n{defect.id}: {_state(defect, engine, version, date.today())}")
        print(f"  {defect.reason} {defect.link}")
        print(f"  {defect.engine} {defect.versions or '*'}, {defect.suite}{test}, {_names(defect)}")
        print(f"  since {defect.since}, expires {defect.expires} ({defect.source})")
        print(f"  {_outcomes(defect, runs, arguments.runs)}")
    return 0


def _state(defect: Defect, engine: str, version: str, today: date) -> str:
    if not defect.concerns(engine, version):
        return "other engine/version"
    return "expired" if defect.is_expired(today) else "active"


def _names(defect: Defect) -> str:
    return " or ".join(kind.__name__ for kind in defect.raises)


def _read_runs(directory: Path) -> list[Run]:
    """Newest first. A run that cannot be read is named and left out."""
    runs = []
    for path in (directory / RECORDS_FILE, *sorted(directory.glob(f"*/{RECORDS_FILE}"))):
        if path.exists():
            try:
                runs.append(read_run(path))
            except RecordError as error:
                print(f"left out: {error}", file=sys.stderr)
    return sorted(runs, key=lambda run: run.header.started, reverse=True)


def _outcomes(defect: Defect, runs: Sequence[Run], directory: Path) -> str:
    """Of the newest run that has a case of the suite."""
    for run in runs:
        records = [record for record in run.records if record.suite == defect.suite]
        if records:
            counts = {name: sum(test(defect, record) for record in records) for name, test in _TESTS.items()}
            return f"{run.path.parent}: {', '.join(f'{number} {name}' for name, number in counts.items())}"
    return f"no run of {defect.suite} in {directory}"


def _is_xfailed(defect: Defect, record: TestRecord) -> bool:
    return record.outcome == "xfailed" and defect.label in (record.xfail_reason or "")


def _is_xpassed(defect: Defect, record: TestRecord) -> bool:
    return record.outcome == "xpassed" and defect.fixed_label in (record.message or "")


def _is_failed(defect: Defect, record: TestRecord) -> bool:
    """Another exception than the known one. pytest keeps no reason of such a failure, so the entry is held against the case."""
    return record.outcome in ("failed", "error") and record.engine == defect.engine and defect.covers(Case.of_record(record))


_TESTS = {"xfailed": _is_xfailed, "xpassed": _is_xpassed, "failed": _is_failed}
