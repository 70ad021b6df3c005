"""The controller's side: collects reports, writes records, and says what is missing."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from harness.recording.facts import is_suite
from harness.recording.merge import Phases, collection_record
from harness.recording.provenance import run_provenance
from harness.recording.summary import write_summary
from reports.coerce import coerce, coerce_mapping
from reports.schema import RunHeader, RunTrailer, TestRecord
from reports.store import RecordWriter

__all__ = ["INCOMPLETE", "Recorder"]

INCOMPLETE = 3  # exit status when a test has no result, or its record could not be written


class Recorder:
    """Registered as a plugin in the controller only. The file is started by the first collected test of a suite, so that a run
    without any leaves the records of the last one alone."""

    def __init__(self, config: pytest.Config, directory: Path, seeds: Callable[[], dict[str, Any]]) -> None:
        self.config = config
        self.directory = directory
        self.run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}"
        self.records: list[TestRecord] = []
        self.problems: list[str] = []
        self.missing: list[str] = []
        self._seeds = seeds
        self._writer: RecordWriter | None = None
        self._expected: dict[str, None] = {}  # node ids in order
        self._phases: dict[str, Phases] = {}
        self._done: set[str] = set()
        self._lost = False

    @property
    def started(self) -> bool:
        return self._writer is not None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._expect(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self._expect(ids)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed and is_suite(report.nodeid) and report.nodeid not in self._done:
            self._start()
            self._write(collection_record(report, self.run_id))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not is_suite(report.nodeid) or report.nodeid in self._done:
            return
        phases = self._phases.setdefault(report.nodeid, Phases(report.nodeid))
        phases.add(report)
        if phases.complete:
            self._write(self._phases.pop(report.nodeid).record(self.run_id))

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Any:
        result = yield
        if self._writer is None:
            return result
        for phases in self._phases.values():
            if phases.judged:
                self._write(phases.record(self.run_id))
        self.missing = [nodeid for nodeid in self._expected if nodeid not in self._done]
        stopped = bool(session.shouldstop or session.shouldfail) or exitstatus not in (pytest.ExitCode.OK, 1)
        if (self._lost or (self.missing and not stopped)) and session.exitstatus in (pytest.ExitCode.OK, 1):
            session.exitstatus = INCOMPLETE
        self._finish(int(session.exitstatus))
        return result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._writer is not None:
            write_summary(terminalreporter, self.records, self.missing, self.problems, self._writer.path)

    def _expect(self, nodeids: Iterable[str]) -> None:
        suites = [nodeid for nodeid in nodeids if is_suite(nodeid)]
        if suites:
            self._start()
            self._expected |= dict.fromkeys(suites)

    def _start(self) -> None:
        if self._writer is not None:
            return
        header = RunHeader(
            run_id=self.run_id,
            started=_now(),
            argv=coerce(list(self.config.invocation_params.args)),
            provenance=run_provenance(self.config.rootpath),
            seeds=coerce_mapping({"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED"), **self._seeds()}),
        )
        try:
            self._writer = RecordWriter(self.directory, header)
        except OSError as error:
            raise pytest.UsageError(
                f"--records={self.directory}: {error.strerror} (records cannot be written there)"
            ) from error

    def _write(self, record: TestRecord) -> None:
        self._done.add(record.nodeid)
        self.records.append(record)
        if record.outcome == "skipped" and not record.skip_reason:
            self.problems.append(f"skipped without a reason: {record.nodeid}")
        self._append(record)

    def _append(self, line: TestRecord | RunTrailer) -> None:
        """A full disk ends the records, not the tests; the exit status tells of it."""
        assert self._writer is not None
        if self._lost:
            return
        try:
            self._writer.write(line)
        except OSError as error:
            self._lost = True
            self.problems.append(f"records are incomplete: {error.strerror}")

    def _finish(self, exit_status: int) -> None:
        trailer = RunTrailer(
            run_id=self.run_id,
            finished=_now(),
            exit_status=exit_status,
            totals=dict(sorted(Counter(record.outcome for record in self.records).items())),
            missing=self.missing,
            problems=self.problems,
        )
        self._append(trailer)
        assert self._writer is not None
        self._writer.close()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
