"""The pytest side of known defects: strict xfails for the cases that an entry covers, and the entries that are out of date.

NOTE: list it before `harness.recording` in `pytest_plugins`. Wrappers of a later plugin see a report later, and the recorder
has to see the text that is written here for a fixed defect.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from harness.known_defects import DEFECTS_FILE, Case, Defect, DefectsFileError, load_defects

pytest.register_assert_rewrite("harness.recording")  # a plugin too, which pytest itself would have imported after this one
from harness.recording.facts import identity, is_suite, item_facts  # noqa: E402

__all__ = ["KnownDefects", "current_engine", "pytest_addoption", "pytest_configure", "pytest_runtest_makereport"]

_EXCUSES = pytest.StashKey[list[Defect]]()  # of an item: the entries that cover it
_WORKER_OUTPUT = "lockstep_known_defects"
_XPASS = "[XPASS(strict)]"  # what pytest begins with, and what the recorder looks for
_NARROWING = ("keyword", "markexpr", "deselect", "ignore", "ignore_glob", "lf", "pyargs")


def current_engine(config: pytest.Config | None) -> tuple[str, str]:
    """Name and version of the engine under test; without a `config`, of the one that is always there."""
    try:
        return "lockstep", metadata.version("lockstep")
    except metadata.PackageNotFoundError:  # run from a checkout that was never installed
        return "lockstep", "unknown"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("lockstep").addoption(
        "--known-defects",
        metavar="FILE",
        default=None,
        help="the known defects, whose cases are expected to fail (default: harness/known_defects.toml)",
    )


def pytest_configure(config: pytest.Config) -> None:
    chosen = config.getoption("--known-defects")
    path = DEFECTS_FILE if chosen is None else config.invocation_params.dir / Path(chosen)
    try:
        defects = load_defects(path)
    except DefectsFileError as error:
        raise pytest.UsageError(f"known defects: {error}") from error
    engine = current_engine(config)
    config.pluginmanager.register(
        KnownDefects(config, [defect for defect in defects if defect.concerns(*engine)]), "lockstep-known-defects"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Says of a fixed defect what to remove, and of a known failure which of several entries it is."""
    report = yield
    excuses = item.stash.get(_EXCUSES, [])
    if not excuses:
        return report
    if report.failed and str(report.longrepr).startswith(_XPASS):
        lines = [f"{defect.fixed_label} remove its entry from {defect.source}. It was: {defect.excuse}" for defect in excuses]
        report.longrepr = f"{_XPASS} " + "\n".join(lines)
    elif hasattr(report, "wasxfail") and call.excinfo is not None:
        own = [defect.excuse for defect in excuses if isinstance(call.excinfo.value, defect.raises)]
        report.wasxfail = "; ".join(own) or report.wasxfail
    return report


class KnownDefects:
    """Marks where tests are collected (in each worker of xdist), and fails the run where it ends (in the controller)."""

    def __init__(self, config: pytest.Config, defects: Sequence[Defect], today: Callable[[], date] = date.today) -> None:
        self.config = config
        self.defects = defects  # of the engine under test
        self.findings: dict[str, None] = {}  # in order, each once, though every worker finds them all
        self._today = today
        self._deselected: list[pytest.Item] = []
        self._not_collected: set[str] = set()  # suites with an error, or that skip themselves

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._not_collected.add(str(identity(report.nodeid)["suite"]))

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._deselected += items

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Last, so that what the tier, `-k` and others leave out was already told to `pytest_deselected`."""
        kept, deselected = _suite_items(items), _suite_items(self._deselected)
        if not self.defects or not (kept or deselected):  # a run of the unit tests alone
            return
        seen: set[str] = set()
        for item in (*deselected, *kept):
            case = _case_of(item)
            excuses = [defect for defect in self.defects if defect.covers(case)]
            if excuses:
                seen |= {defect.id for defect in excuses}
                _expect_failure(item, excuses)
        self._check_entries(seen, {str(identity(item.nodeid)["suite"]): item.path for item in (*deselected, *kept)})

    def _check_entries(self, seen: set[str], paths: dict[str, Path]) -> None:
        today = self._today()
        for defect in self.defects:
            if defect.is_expired(today):
                self._find(
                    f"{defect.id} expired on {defect.expires}: look at {defect.link} again, then remove its entry or give it "
                    f"a later `expires` ({defect.source})"
                )
            path = paths.get(defect.suite, self.config.rootpath / "suites" / f"{defect.suite}.py")
            if defect.id not in seen and defect.suite not in self._not_collected and self._is_whole(path):
                self._find(
                    f"{defect.id} covers no case of {defect.suite}: correct `suite`, `test`, `cases` or `parameters` of its "
                    f"entry, or remove it ({defect.source})"
                )

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker's findings; one that crashed has left nothing."""
        for finding in getattr(node, "workeroutput", {}).get(_WORKER_OUTPUT, []):
            self._find(finding)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Before the recorder writes its last line, which holds the exit status and the problems."""
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput[_WORKER_OUTPUT] = list(self.findings)
            return
        if not self.findings:
            return
        if session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        recorder = self.config.pluginmanager.get_plugin("lockstep-recorder")
        if recorder is not None:
            recorder.problems += [f"known defect {finding}" for finding in self.findings]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.findings:
            terminalreporter.section("known defects")
            for finding in self.findings:
                terminalreporter.line(finding, red=True)

    def _find(self, finding: str) -> None:
        self.findings[finding] = None

    def _is_whole(self, suite: Path) -> bool:
        """Whether every case of a suite's file was asked for: nothing narrows the run down, and the file or a directory above
        it is among the arguments. The tier is no matter here: what it leaves out is known case by case."""
        if any(self.config.getoption(name, None) for name in _NARROWING):
            return False
        here = self.config.invocation_params.dir
        asked = [(here / argument).resolve() for argument in self.config.args]  # that of a node id is no path above any
        return any(path == suite.resolve() or path in suite.resolve().parents for path in asked)


def _suite_items(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    return [item for item in items if is_suite(item.nodeid)]


def _case_of(item: pytest.Item) -> Case:
    """As the item's record tells of it."""
    facts: dict[str, Any] = {**identity(item.nodeid), **item_facts(item)}
    return Case.of(facts["suite"], facts["test"], facts["case_id"], facts["parameters"], facts["parameter_ids"])


def _expect_failure(item: pytest.Item, excuses: list[Defect]) -> None:
    """One mark for all entries, since pytest heeds one only; before the item's own marks, which it would heed instead."""
    item.stash[_EXCUSES] = excuses
    raises = tuple({kind: None for defect in excuses for kind in defect.raises})
    mark = pytest.mark.xfail(raises=raises, strict=True, reason="; ".join(defect.excuse for defect in excuses))
    item.add_marker(mark, append=False)
