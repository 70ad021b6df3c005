"""`lockstep report RUN... [-o DIR] [--json FILE]`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from reports.store import RecordError
from reports.text import visible

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_parser", "main"]

UNREADABLE = 2


def add_parser(subparsers: Subparsers) -> None:
    """Add `report` to a command line. `args.handler`, called with `args`, gives the exit status."""
    _add_arguments(subparsers.add_parser("report", help="a page, a summary and a JSON file from the records of runs"))


def main(argv: list[str] | None = None) -> int:
    """`python -m reports`."""
    parser = argparse.ArgumentParser(prog="python -m reports", description="A page, a summary and a JSON file from records.")
    _add_arguments(parser)
    return run_report(parser.parse_args(argv))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="directory of a run (runs/latest) or its records file"
    )
    parser.add_argument(
        "-o", "--out", type=Path, metavar="DIR", help="where the report goes (default: RUN/report of the first run)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON to FILE too")
    parser.set_defaults(handler=run_report)


def run_report(args: argparse.Namespace) -> int:
    """0 when the report was built, whatever it says; 2 when there was nothing to read or nowhere to write."""
    # NOTE: pandas and matplotlib take a second to import, which the rest of the command line need not wait for.
    from reports.build import report_json, write_report
    from reports.model import Report

    first: Path = args.runs[0]
    out: Path = args.out or (first if first.is_dir() else first.parent) / "report"
    try:
        report = Report.of(args.runs)
        page = write_report(report, out)
        if args.json is not None:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(report_json(report), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except RecordError as error:
        print(f"lockstep report: {error}", file=sys.stderr)
        return UNREADABLE
    except OSError as error:
        print(f"lockstep report: {error.filename}: {error.strerror}", file=sys.stderr)
        return UNREADABLE
    print(visible(report.verdict.line))
    for detail in report.verdict.details:
        print(f"  {visible(detail)}")
    print(f"Report: {page}")
    return 0
