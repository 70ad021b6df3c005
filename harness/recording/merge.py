"""One record from the reports of a test's phases."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from harness.recording.facts import attached, first_lines, identity
from reports.coerce import coerce
from reports.schema import TestRecord, from_json

__all__ = ["Phases", "collection_record"]

CRASH = "WorkerCrash"
NO_REASON = {"", "Skipped", "unconditional skip"}  # what pytest says when a skip has none


@dataclass
class Phases:
    """The reports of one node id so far."""

    nodeid: str
    reports: list[pytest.TestReport] = field(default_factory=list)

    def add(self, report: pytest.TestReport) -> None:
        self.reports.append(report)

    @property
    def complete(self) -> bool:
        return any(report.when not in ("setup", "call") for report in self.reports)

    @property
    def judged(self) -> bool:
        """Whether there is a result, even if the teardown never came (the run was interrupted)."""
        return self.complete or any(report.when == "call" or not report.passed for report in self.reports)

    def record(self, run_id: str) -> TestRecord:
        fields: dict[str, Any] = {"run_id": run_id, "nodeid": self.nodeid, **identity(self.nodeid)}
        for report in self.reports:
            fields |= {name: value for name, value in attached(report).items() if name != "failure"}
        fields["outcome"] = self._outcome()
        fields |= self._failure()
        fields["durations"] = {
            when: sum(report.duration for report in self._own_reports() if report.when == when)
            for when in ("setup", "call", "teardown")
        }
        fields["skip_reason"] = next((skip_reason(report) for report in self.reports if is_skip(report)), None)
        fields["xfail_reason"] = next((report.wasxfail for report in self.reports if hasattr(report, "wasxfail")), None)
        fields["worker"] = getattr(self.reports[-1], "worker_id", "main")
        problems: list[str] = []
        record = from_json(TestRecord, fields, problems)
        assert record is not None, f"record of {self.nodeid}: {'; '.join(problems)}"
        return record

    def _own_reports(self) -> list[pytest.TestReport]:
        """Without those of subtests, which come beside the phases and are told by their context."""
        return [report for report in self.reports if not hasattr(report, "context")]

    def _outcome(self) -> str:
        reports = self._own_reports()
        for report in reports:
            if report.failed and report.when != "call":
                return "error"
        for report in reports:
            if report.failed:
                return "xpassed" if str(report.longrepr).startswith("[XPASS(strict)]") else "failed"
        for report in reports:
            if hasattr(report, "wasxfail"):
                return "xfailed" if report.skipped else "xpassed"
            if report.skipped:
                return "skipped"
        return "passed"

    def _failure(self) -> dict[str, Any]:
        """What is told of the exception: the first one, so a subtest's rather than its parent's count of them."""
        for report in self.reports:
            if is_crash(report):
                text = str(report.longrepr)
                return {"exception": CRASH, "message": coerce(first_lines(text)), "traceback": coerce(text)}
        failures = [failure for report in self.reports if (failure := attached(report).get("failure"))]
        return dict(failures[0]) if failures else {}


def collection_record(report: pytest.CollectReport, run_id: str) -> TestRecord:
    """A module that could not be collected, or that skips itself as a whole: its tests must not vanish silently."""
    text = coerce(report.longreprtext)
    outcome = "skipped" if report.skipped else "error"
    return TestRecord(
        run_id=run_id,
        nodeid=report.nodeid,
        outcome=outcome,
        exception=None if report.skipped else "CollectionError",
        message=None if report.skipped else first_lines("\n".join(text.splitlines()[-3:])),
        traceback=None if report.skipped else text,
        skip_reason=skip_reason(report) if report.skipped else None,
        **identity(report.nodeid),
    )


def is_crash(report: pytest.TestReport) -> bool:
    """xdist's report for the test in which a worker died."""
    return str(report.when) == "???"


def is_skip(report: pytest.TestReport) -> bool:
    return report.skipped and not hasattr(report, "wasxfail")


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The reason, or an empty string."""
    longrepr = report.longrepr
    text = str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr or "")
    reason = text.removeprefix("Skipped: ").strip().removesuffix("Skipped:").strip()
    return "" if reason in NO_REASON else str(coerce(reason))
