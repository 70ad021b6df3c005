"""The page: verdict first, then what failed, then the rest, each section a function from data to HTML."""

from __future__ import annotations

from importlib import resources

from reports.definitions import DEFINITIONS
from reports.failure_section import failures
from reports.html import Markup, join, tag
from reports.matrix_section import matrices
from reports.model import Report
from reports.plots import outcome_plot, slowest_plot
from reports.provenance_section import provenance
from reports.table_section import activity, figures, skips, suites
from reports.verdict import Verdict

__all__ = ["render_page"]

# Nothing may leave the page, and nothing in it may run.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def render_page(report: Report) -> str:
    sections = [
        ("Failures", failures(report)),
        ("Problems with the records", _problems(report.loaded.problems)),
        ("Suites", _suites(report)),
        ("Equivalence matrix", matrices(report)),
        ("Activity", activity(report)),
        ("Figures", figures(report)),
        ("Time", _time(report)),
        ("Skipped", skips(report)),
        ("Definitions", _pairs(DEFINITIONS)),
        ("Provenance", provenance(report)),
    ]
    shown = [(title, body) for title, body in sections if body is not None]
    css = Markup(resources.files("reports").joinpath("page.css").read_text(encoding="utf-8"))
    head = tag(
        "head",
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><meta name="referrer" content="no-referrer">'),
        tag("title", f"Lockstep: {report.verdict.line}"),
        tag("style", css),
    )
    body = tag(
        "body",
        tag("a", "Skip to the results", class_="skip-link", href="#results"),
        tag("header", tag("h1", "Lockstep report"), _verdict(report.verdict), _contents([title for title, _ in shown])),
        tag("main", *[_section(title, content) for title, content in shown], id="results"),
        tag("footer", tag("p", f"Made from the records of {len(report.loaded.runs)} run(s); nothing was typed by hand.")),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _verdict(verdict: Verdict) -> Markup:
    details = [tag("p", detail, class_="detail") for detail in verdict.details]
    return tag("div", tag("p", verdict.line, class_="line"), *details, class_=f"verdict {verdict.status}", role="status")


def _contents(titles: list[str]) -> Markup:
    return tag("nav", *[tag("a", title, href=f"#{_anchor(title)}") for title in titles], aria_label="Sections")


def _section(title: str, content: Markup) -> Markup:
    anchor = _anchor(title)
    return tag("section", tag("h2", title, id=anchor), content, aria_labelledby=anchor)


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _problems(problems: list[str]) -> Markup | None:
    return tag("ul", *[tag("li", tag("code", problem)) for problem in problems]) if problems else None


def _suites(report: Report) -> Markup | None:
    if report.cases.empty:
        return None
    return join(suites(report), _figure("Cases by outcome", outcome_plot(report.suites)))


def _time(report: Report) -> Markup | None:
    if report.cases.empty:
        return None
    return _figure("The slowest cases", slowest_plot(report.cases))


def _figure(caption: str, plot: Markup) -> Markup:
    # A region that scrolls must be reachable with the keyboard.
    return tag(
        "figure", tag("figcaption", caption), tag("div", plot, class_="plot", tabindex="0", role="region", aria_label=caption)
    )


def _pairs(pairs: tuple[tuple[str, str], ...]) -> Markup:
    return tag("dl", *[join(tag("dt", name), tag("dd", meaning)) for name, meaning in pairs], class_="pairs")
