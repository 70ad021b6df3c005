"""Failures grouped by kind of exception, each with its message and evidence."""

from __future__ import annotations

from reports.evidence import Block, evidence_blocks, evidence_facts
from reports.html import Markup, join, tag
from reports.model import Report
from reports.schema import TestRecord
from reports.text import clip

__all__ = ["failures"]

SHOWN_PER_KIND = 25  # the rest is in report.json
OPEN_PER_KIND = 3  # with their evidence open
MAX_MESSAGE = 4_000
MAX_TRACEBACK = 12_000


def failures(report: Report) -> Markup | None:
    if not report.failures:
        return None
    return join(*[_kind(report, kind, records) for kind, records in report.failures.items()])


def _kind(report: Report, kind: str, records: list[TestRecord]) -> Markup:
    shown = [
        _failure(record, report.anchors[record.key], is_open=i < OPEN_PER_KIND)
        for i, record in enumerate(records[:SHOWN_PER_KIND])
    ]
    more = len(records) - SHOWN_PER_KIND
    rest = tag("p", f"and {more} more of this kind: see report.json", class_="legend") if more > 0 else None
    return join(tag("h3", f"{kind} ({len(records)})"), *shown, rest)


def _failure(record: TestRecord, anchor: str, *, is_open: bool) -> Markup:
    details = [_block(block) for block in evidence_blocks(record.evidence)]
    facts = _facts([(name, value) for name, value in evidence_facts(record.evidence) if value != record.case_id])
    evidence = join(facts, *details) if facts or details else None
    if evidence is not None:
        evidence = tag("details", tag("summary", "Evidence"), evidence, open="" if is_open else None)
    return tag(
        "article",
        tag("h4", tag("code", record.nodeid)),
        tag("pre", clip(record.message, MAX_MESSAGE)) if record.message else None,
        evidence,
        tag("details", tag("summary", "Traceback"), tag("pre", clip(record.traceback, MAX_TRACEBACK)))
        if record.traceback
        else None,
        tag("details", tag("summary", "How to run it again"), tag("pre", _replay(record))),
        class_="failure",
        id=anchor,
    )


def _facts(facts: list[tuple[str, str]]) -> Markup | None:
    if not facts:
        return None
    return tag("dl", *[tag("div", tag("dt", name), tag("dd", tag("code", value))) for name, value in facts], class_="facts")


def _block(block: Block) -> Markup:
    if not block.is_main:
        texts = [join(tag("p", label, class_="label") if label else None, _text(text)) for label, text in block.columns]
        return tag("details", tag("summary", block.title), *texts)
    if len(block.columns) == 1:
        return join(tag("p", block.title, class_="label"), _text(block.columns[0][1]))
    sides = [
        tag("div", tag("p", ": ".join(filter(None, (block.title, label))), class_="label"), _text(text))
        for label, text in block.columns
    ]
    return tag("div", *sides, class_="sides")


def _text(text: str) -> Markup:
    return tag("pre", text, tabindex="0")


def _replay(record: TestRecord) -> str:
    quoted = "'" + record.nodeid.replace("'", "'\"'\"'") + "'"
    tier = "" if record.tier == "default" else f" --tier={record.tier}"
    return f"python -m pytest {quoted}{tier} --records="
