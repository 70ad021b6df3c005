"""The summary for a CI job: short, and safe to show wherever Markdown is."""

from __future__ import annotations

from reports.model import Report
from reports.text import code_span, visible

__all__ = ["render_summary"]

MAX_FAILURES = 20
_MARKS = {"passed": "✅", "failed": "❌", "incomplete": "⚠️", "empty": "⚠️"}


def render_summary(report: Report) -> str:
    lines = [f"# {_MARKS[report.verdict.status]} {_plain(report.verdict.line)}", ""]
    lines += [f"- {code_span(detail)}" for detail in report.verdict.details]
    lines += [*_failures(report), *_suites(report), *_skips(report)]
    if report.loaded.problems:
        lines += [
            "",
            "## Problems with the records",
            "",
            *[f"- {code_span(problem)}" for problem in report.loaded.problems[:MAX_FAILURES]],
        ]
    return "\n".join(lines) + "\n"


def _failures(report: Report) -> list[str]:
    if not report.failures:
        return []
    lines = ["", "## Failures", "", "| kind | case | message |", "|---|---|---|"]
    failing = [(kind, record) for kind, records in report.failures.items() for record in records]
    lines += [
        f"| {code_span(kind)} | {code_span(record.nodeid)} | {code_span(record.message or '')} |"
        for kind, record in failing[:MAX_FAILURES]
    ]
    if len(failing) > MAX_FAILURES:
        lines += ["", f"and {len(failing) - MAX_FAILURES} more: see the page"]
    return lines


def _suites(report: Report) -> list[str]:
    if report.cases.empty:
        return []
    lines = ["", "## Suites", "", "| suite | cases | passed | failed | known defects | skipped | requests compared | seconds |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|--:|")
    for suite, row in report.suites.iterrows():
        numbers = [f"{int(row[name]):,}" for name in ("cases", "passed", "failed", "known", "skipped", "requests")]
        lines.append(f"| {code_span(str(suite))} | {' | '.join(numbers)} | {float(row['seconds']):,.1f} |")
    return lines


def _skips(report: Report) -> list[str]:
    if report.skips.empty:
        return []
    rows = [f"- {row.cases} of {code_span(str(row.suite))}: {code_span(str(row.reason))}" for row in report.skips.itertuples()]
    return ["", "## Skipped", "", *rows]


def _plain(line: str) -> str:
    """The verdict as a heading. It holds names of exception classes, which a plugin may choose."""
    return "".join(f"\\{character}" if character in r"\`*_[]<>#|&@" else character for character in visible(line))
