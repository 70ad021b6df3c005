"""The section "lockstep" at the end of a run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from reports.schema import OUTCOMES, TestRecord

__all__ = ["write_summary"]

MAX_LINES = 10


def write_summary(
    terminal: pytest.TerminalReporter,
    records: Sequence[TestRecord],
    missing: Sequence[str],
    problems: Sequence[str],
    path: Path,
) -> None:
    terminal.section("lockstep")
    suites = {record.suite: None for record in records}
    for suite in suites:
        own = [record for record in records if record.suite == suite]
        outcomes = Counter(record.outcome for record in own)
        terminal.line(f"{suite:<32} {', '.join(f'{outcomes[name]} {name}' for name in OUTCOMES if outcomes[name])}")
    for name, number in Counter(record.exception or record.outcome for record in records if record.failing).most_common():
        terminal.line(f"{number} × {name}", red=True)
    _list(terminal, "no result", missing)
    _list(terminal, "problem", problems)
    compared = sum(_number(record.counts.get("requests_compared")) for record in records)
    terminal.line(f"{compared} requests compared; records: {_shown(path)}")


def _list(terminal: pytest.TerminalReporter, title: str, lines: Sequence[str]) -> None:
    for line in lines[:MAX_LINES]:
        terminal.line(f"{title}: {line}", red=True)
    if len(lines) > MAX_LINES:
        terminal.line(f"{title}: and {len(lines) - MAX_LINES} more", red=True)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _shown(path: Path) -> str:
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)
