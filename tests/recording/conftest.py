"""Small projects with suites of their own, run by a pytest of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from reports import Run, TestRecord, read_run

ROOT = Path(__file__).parents[2]
# hypothesis takes most of the time that such a small run needs.
SETTINGS = """\
[pytest]
strict = true
addopts = ["-ra", "--import-mode=importlib", "-p", "no:hypothesispytest", "-p", "no:anyio"]
"""


@dataclass(frozen=True)
class Done:
    exit_status: int
    output: str
    directory: Path

    @property
    def run(self) -> Run:
        return read_run(self.directory / "runs" / "latest")

    @property
    def by_case(self) -> dict[str, TestRecord]:
        return {record.nodeid.partition("::")[2] or record.nodeid: record for record in self.run.records}

    def again(self, *arguments: str) -> Done:
        return run_pytest(self.directory, *arguments)


def make_project(directory: Path, suites: dict[str, str]) -> Path:
    (directory / "suites").mkdir(parents=True)
    (directory / "tests").mkdir()
    (directory / "conftest.py").write_text('pytest_plugins = ["harness.recording"]\n')
    (directory / "pytest.toml").write_text(SETTINGS)
    for name, text in suites.items():
        path = directory / name if "/" in name else directory / "suites" / name
        path.write_text(text)
    return directory


def run_pytest(directory: Path, *arguments: str) -> Done:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "LOCKSTEP_", "OMP_"))}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "LOCKSTEP_MARK": "x", "PYTHONHASHSEED": "5"}
    command = [sys.executable, "-m", "pytest", *(arguments or ("suites",))]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return Done(done.returncode, done.stdout + done.stderr, directory)


@pytest.fixture
def project(tmp_path: Path) -> Callable[..., Done]:
    """(suites, *arguments) -> what a run of them left."""

    def run(suites: dict[str, str], *arguments: str) -> Done:
        return run_pytest(make_project(tmp_path / "project", suites), *arguments)

    return run


@pytest.fixture(scope="session")
def every_outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    """The same suite of every outcome, run in one process and in two workers."""
    text = (Path(__file__).parent / "every_outcome.py").read_text(encoding="utf-8")
    runs = {}
    for name, arguments in (("plain", ()), ("xdist", ("-n", "2"))):
        directory = make_project(
            tmp_path_factory.mktemp(name) / "project", {"test_all.py": text, "test_module.py": MODULE_SKIP}
        )
        runs[name] = run_pytest(directory, "suites", *arguments)
    return runs


MODULE_SKIP = 'import pytest\n\npytest.skip("needs a GPU", allow_module_level=True)\n'
