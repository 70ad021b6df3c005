"""One pytest session for all mutants: the tests run once under coverage, then in a fork for each mutant."""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import _lru_cache_wrapper
from itertools import accumulate
from pathlib import Path
from types import FunctionType

import pytest
from _pytest.runner import runtestprotocol

from harness.mutants.sources import Mutant, swap_code

__all__ = ["MutantSession", "Outcome"]

SECONDS_OF_OWN_TESTS, SECONDS_OF_OTHER_TESTS = 40.0, 12.0
"""A mutant meets the tests of its module, then others, the quickest first, as many as take this long without it. CPU time, so
that the choice does not depend on what else the machine does."""
MEMORY = 6 << 30
NO_CHANGE = 77
Outcome = str
"""killed, timeout, survived, uncovered"""


@dataclass(eq=False)
class MutantSession:
    """A pytest plugin that replaces the loop over the tests."""

    files: list[str]
    mutants: Iterable[Mutant]
    num_processes: int
    report: Callable[[Mutant, Outcome], None]
    _items: dict[str, pytest.Item] = field(default_factory=dict)
    _seconds: dict[str, float] = field(default_factory=dict)
    _tests_of_line: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    _failed: bool = False

    @staticmethod
    def pytest_configure() -> None:
        from hypothesis import Phase, settings

        # The same examples for every mutant, and none made smaller: only whether a test fails is asked.
        settings.register_profile("mutants", derandomize=True, database=None, phases=[Phase.explicit, Phase.generate])
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            return False  # a file that cannot be imported: pytest says which
        self._items = {item.nodeid: item for item in session.items}
        self._run_without_mutant()
        if self._failed:
            raise session.Interrupted("tests fail without any mutant")
        if not self._tests_pass_in_a_fork():
            raise session.Interrupted("tests fail in a fork without any mutant: every mutant would seem to be killed")
        self._run_mutants()
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed |= report.failed

    def _run_without_mutant(self) -> None:
        from coverage import Coverage

        files = [str(Path(file).resolve()) for file in self.files]
        coverage = Coverage(data_file=None, include=files, config_file=False)
        coverage.start()
        items = list(self._items.values())
        for item, following in zip(items, [*items[1:], None], strict=True):
            coverage.switch_context(item.nodeid)
            start = time.process_time()
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            self._seconds[item.nodeid] = time.process_time() - start
        coverage.stop()
        data = coverage.get_data()
        self._tests_of_line = {file: data.contexts_by_lineno(path) for file, path in zip(self.files, files, strict=True)}
        _forget_caches()

    def _tests_pass_in_a_fork(self) -> bool:
        """Those that stand first with some file: they see all of the mutants."""
        everything = [Mutant(file, "", range(10_000), "", "") for file in self.files]
        tests = list(dict.fromkeys(test for mutant in everything for test in self._tests_for(mutant)[:20]))
        pid = os.fork()
        if not pid:
            self._be(None, tests, [])
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    def _run_mutants(self) -> None:
        functions = [f for f in gc.get_objects() if type(f) is FunctionType]
        running: dict[int, Mutant] = {}
        for mutant in self.mutants:
            tests = self._tests_for(mutant)
            if not tests:
                self.report(mutant, "uncovered")
                continue
            while len(running) >= self.num_processes:
                self._await_one(running)
            sys.stdout.flush()
            pid = os.fork()
            if not pid:
                self._be(mutant, tests, functions)
            running[pid] = mutant
        while running:
            self._await_one(running)

    def _await_one(self, running: dict[int, Mutant]) -> None:
        pid, status = os.wait()
        if pid not in running:
            return  # what a test has left behind
        mutant, code = running.pop(pid), os.waitstatus_to_exitcode(status)
        if code != NO_CHANGE:
            timed_out = code in (-signal.SIGALRM, -signal.SIGPROF)
            self.report(mutant, "timeout" if timed_out else "killed" if code else "survived")

    def _tests_for(self, mutant: Mutant) -> list[str]:
        by_line = self._tests_of_line[mutant.file]
        covering = {test for line in mutant.lines for test in by_line.get(line, ()) if test}
        own = {test for test in covering if _is_own(test, mutant.file)}
        return self._quickest(own, SECONDS_OF_OWN_TESTS) + self._quickest(covering - own, SECONDS_OF_OTHER_TESTS)

    def _quickest(self, tests: set[str], limit: float) -> list[str]:
        ordered = sorted(tests, key=lambda test: (self._seconds[test], test))
        totals = accumulate(self._seconds[test] for test in ordered)
        return [test for test, total in zip(ordered, totals, strict=True) if total <= limit or test == ordered[0]]

    def _be(self, mutant: Mutant | None, tests: list[str], functions: list[FunctionType]) -> None:
        """In the fork: run the tests until one fails, and never return."""
        code = 1  # whatever goes wrong from here on is a mutant's fault
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            is_changed = mutant is None or swap_code(mutant, functions)
            code = int(any(map(self._fails, tests, [*tests[1:], None]))) if is_changed else NO_CHANGE
        finally:
            os._exit(code)

    def _fails(self, test: str, following: str | None) -> bool:
        # CPU time for a loop that never ends, time by the clock for a wait; nothing in the code under test can catch these.
        signal.setitimer(signal.ITIMER_PROF, 5 + 5 * self._seconds[test])
        signal.alarm(60 + int(10 * self._seconds[test]))
        next_item = self._items[following] if following else None
        return any(report.failed for report in runtestprotocol(self._items[test], log=False, nextitem=next_item))


def _is_own(test: str, file: str) -> bool:
    """The scenarios are everybody's own: nothing kills more in a second."""
    module = "drafter" if "/drafters/" in file else Path(file).stem
    return test.startswith("harness/mutants/") or module in test.partition("::")[0]


def _forget_caches() -> None:
    """A mutant of a cached function must run again."""
    for found in gc.get_objects():
        if type(found) is _lru_cache_wrapper and str(getattr(found, "__module__", "")).startswith("engine."):
            found.cache_clear()
