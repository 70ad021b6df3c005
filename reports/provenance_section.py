"""Where each run comes from."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import Any

from reports.html import Markup, join, tag
from reports.model import Report
from reports.store import Run

__all__ = ["provenance", "wall_seconds"]


def provenance(report: Report) -> Markup:
    return join(*[_run(run) for run in report.loaded.runs])


def wall_seconds(run: Run) -> float | None:
    """From the start to the end of a run, or None when either is unknown."""
    try:
        started, finished = (
            datetime.fromisoformat(text) for text in (run.header.started, run.trailer.finished if run.trailer else "")
        )
        return (finished - started).total_seconds()
    except (ValueError, TypeError):
        return None


def _run(run: Run) -> Markup:
    header, facts = run.header, run.header.provenance
    seconds = wall_seconds(run)
    pairs: list[tuple[str, Any]] = [
        ("records", run.path),
        ("started", header.started),
        ("took", None if seconds is None else f"{seconds:,.1f} s"),
        ("exit status", run.trailer.exit_status if run.trailer else "did not finish"),
        ("command", f"pytest {shlex.join(header.argv)}"),
        ("schema version", header.schema_version),
        *[(name, _shown(value)) for name, value in facts.items()],
        ("seeds", _shown(header.seeds)),
    ]
    rows = [join(tag("dt", name), tag("dd", tag("code", value))) for name, value in pairs if value not in (None, "")]
    return join(tag("h3", f"Run {header.run_id}"), tag("dl", *rows, class_="pairs"))


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(item)}" for name, item in value.items() if item not in (None, "", [], {}))
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
