"""From records to files: `index.html`, `summary.md` and `report.json`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from reports.coerce import Json, coerce
from reports.markdown import render_summary
from reports.model import Report
from reports.page import render_page
from reports.schema import to_json
from reports.tables import Matrix
from reports.verdict import requests_compared

__all__ = ["build_report", "report_json", "write_report"]

REPORT_VERSION = 1


def build_report(run_dirs: Iterable[Path | str], out_dir: Path) -> Path:
    """Build the report of one or more runs and return the path of its page. Raises RecordError when a run cannot be read."""
    return write_report(Report.of(run_dirs), out_dir)


def write_report(report: Report, out_dir: Path) -> Path:
    files = {
        "summary.md": render_summary(report),
        "report.json": json.dumps(report_json(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        "index.html": render_page(report),
    }
    out_dir.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (out_dir / name).write_text(content, encoding="utf-8")
    return out_dir / "index.html"


def report_json(report: Report) -> dict[str, Json]:
    """Everything that the page shows, and what it had to leave out, for scripts."""
    document = {
        "report_version": REPORT_VERSION,
        "verdict": report.verdict,
        "totals": report.cases["outcome"].value_counts().to_dict(),
        "requests_compared": requests_compared(report.loaded.records),
        "suites": report.suites.reset_index().to_dict("records"),
        "skipped": report.skips.to_dict("records"),
        "failures": {kind: [to_json(record) for record in records] for kind, records in report.failures.items()},
        "matrices": [_matrix(matrix) for matrix in report.matrices],
        "activity": report.activity.to_dict("records"),
        "figures": report.figures.to_dict("records"),
        "problems": report.loaded.problems,
        "runs": [
            {"path": run.path, "header": to_json(run.header), "trailer": to_json(run.trailer) if run.trailer else None}
            for run in report.loaded.runs
        ],
    }
    plain: dict[str, Json] = coerce(document)
    return plain


def _matrix(matrix: Matrix) -> dict[str, Json]:
    outcomes = {
        row: {column: matrix.cells[row, column].outcome for column in matrix.columns if (row, column) in matrix.cells}
        for row in matrix.rows
    }
    return {"test": matrix.test, "rows": matrix.row_names, "outcomes": outcomes}
