"""Suites, skips, activity and figures as HTML tables."""

from __future__ import annotations

from typing import Any

from reports.html import Markup, join, tag
from reports.model import Report
from reports.tables import acceptance
from reports.text import clip

__all__ = ["activity", "figures", "number", "skips", "suites"]

MAX_ROWS = 300  # of figures and skips; the rest is in report.json
_SUITE_COLUMNS = {
    "cases": "Cases",
    "passed": "Passed",
    "failed": "Failed",
    "known": "Known defects",
    "skipped": "Skipped",
    "requests": "Requests compared",
    "seconds": "Seconds",
}


def suites(report: Report) -> Markup | None:
    if report.cases.empty:
        return None
    reasons = report.skips.groupby("suite")["reason"].agg("; ".join) if not report.skips.empty else None
    rows = [[tag("th", suite, scope="row"), *_suite_numbers(row)] for suite, row in report.suites.iterrows()]
    total = [tag("th", "All", scope="row"), *_suite_numbers(report.suites.sum())]
    titles = ["Suite", *_SUITE_COLUMNS.values()]
    if reasons is not None:
        titles.append("Why skipped")
        for suite, row in zip(report.suites.index, rows, strict=True):
            row.append(tag("td", clip(str(reasons.get(suite, "")), 200), class_="wide"))
        total.append(tag("td"))
    return _table("Suites", titles, rows, total if len(rows) > 1 else None, numbers=set(_SUITE_COLUMNS.values()))


def _suite_numbers(row: Any) -> list[Markup]:
    cells = []
    for name in _SUITE_COLUMNS:
        value = float(row[name])
        kind = "failed-number" if name == "failed" and value else "" if value else "zero"
        text = f"{value:,.1f}" if name == "seconds" else f"{int(value):,}"
        cells.append(tag("td", text, class_=f"number {kind}".strip()))
    return cells


def skips(report: Report) -> Markup | None:
    if report.skips.empty:
        return None
    rows = [
        [
            tag("th", row.suite, scope="row"),
            tag("td", clip(str(row.reason), 600), class_="wide"),
            tag("td", row.cases, class_="number"),
        ]
        for row in report.skips.itertuples()
    ]
    return _table("Skipped", ["Suite", "Reason", "Cases"], rows, numbers={"Cases"})


def activity(report: Report) -> Markup | None:
    if report.activity.empty:
        return None
    rows = [
        [
            tag("th", tag("code", row.counter), scope="row"),
            tag("td", number(row.total), class_="number" if row.total else "number zero"),
            tag("td", number(row.cases), class_="number" if row.cases else "number zero"),
        ]
        for row in report.activity.itertuples()
    ]
    derived = [f"{name} {value:.3f}" for name, value in acceptance(report.activity)]
    note = tag("p", f"Over all cases: {', '.join(derived)}.") if derived else None
    return join(
        note,
        _table("Activity", ["Counter", "Total", "Cases above zero"], rows, numbers={"Total", "Cases above zero"}, fit=True),
    )


def figures(report: Report) -> Markup | None:
    if report.figures.empty:
        return None
    rows = [
        [
            tag("th", row.figure, scope="row"),
            tag("td", f"{number(row.value)} {row.unit}".strip(), class_="number"),
            tag("td", number(row.n), class_="number"),
            tag("td", _interval(row.interval), class_="number"),
            tag("td", number(row.threshold), class_="number"),
            tag("td", tag("code", row.case), class_="wide"),
        ]
        for row in report.figures.head(MAX_ROWS).itertuples()
    ]
    titles = ["Figure", "Value", "n", "Interval", "Threshold", "Case"]
    return join(_table("Figures", titles, rows, numbers={"Value", "n", "Interval", "Threshold"}), _more(len(report.figures)))


def number(value: Any) -> str:
    """A number for people: a dash for none, and names such as NaN as they are."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return f"{int(value):,}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.4g}"


def _interval(interval: Any) -> str:
    return f"[{', '.join(map(number, interval))}]" if isinstance(interval, list) else "–"


def _more(rows: int) -> Markup | None:
    return tag("p", f"and {rows - MAX_ROWS} more: see report.json", class_="legend") if rows > MAX_ROWS else None


def _table(
    label: str,
    titles: list[str],
    rows: list[list[Markup]],
    total: list[Markup] | None = None,
    *,
    numbers: set[str],
    fit: bool = False,
) -> Markup:
    heads = [tag("th", title, scope="col", class_="number" if title in numbers else None) for title in titles]
    foot = tag("tfoot", tag("tr", *total)) if total is not None else None
    table = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *[tag("tr", *row) for row in rows]), foot)
    return tag("div", table, class_="scroll fit" if fit else "scroll", tabindex="0", role="region", aria_label=label)
