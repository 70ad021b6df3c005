"""The equivalence matrix: coloured, and lettered for those who do not see the colours."""

from __future__ import annotations

from reports.html import Markup, join, tag
from reports.model import Report
from reports.schema import TestRecord
from reports.tables import Matrix
from reports.text import one_line

__all__ = ["matrices"]

LETTERS = {
    "passed": ("P", "passed"),
    "failed": ("F", "failed"),
    "error": ("E", "error outside of the test's body"),
    "xpassed": ("U", "passed unexpectedly"),
    "xfailed": ("K", "known defect"),
    "skipped": ("S", "skipped"),
}


def matrices(report: Report) -> Markup | None:
    if not report.matrices:
        return None
    records = [record for matrix in report.matrices for record in matrix.cells.values()]
    present = {record.outcome for record in records}
    legend = [f"{letter} {meaning}" for outcome, (letter, meaning) in LETTERS.items() if outcome in present]
    if len(records) < sum(len(matrix.rows) * len(matrix.columns) for matrix in report.matrices):
        legend.append("an empty cell was not run")
    return join(tag("p", ", ".join(legend), class_="legend"), *[_matrix(report, matrix) for matrix in report.matrices])


def _matrix(report: Report, matrix: Matrix) -> Markup:
    corner = tag("th", " · ".join(matrix.row_names), class_="corner", scope="col")
    columns = [tag("th", tag("span", one_line(name, 60)), scope="col") for name in matrix.columns]
    rows = [
        tag(
            "tr",
            tag("th", one_line(row, 120), scope="row"),
            *[_cell(report, matrix.cells.get((row, column))) for column in matrix.columns],
        )
        for row in matrix.rows
    ]
    table = tag("table", tag("thead", tag("tr", corner, *columns)), tag("tbody", *rows), class_="matrix")
    return join(
        tag("h3", matrix.test), tag("div", table, class_="scroll fit", tabindex="0", role="region", aria_label=matrix.test)
    )


def _cell(report: Report, record: TestRecord | None) -> Markup:
    if record is None:
        return tag("td", tag("span", "not run", class_="hidden"))
    letter, meaning = LETTERS[record.outcome]
    text = join(tag("span", letter, aria_hidden="true"), tag("span", meaning, class_="hidden"))
    anchor = report.anchors.get(record.key)
    return tag(
        "td",
        tag("a", text, href=f"#{anchor}") if anchor else text,
        class_=record.outcome,
        title=f"{record.case_id}: {meaning}",
    )
