"""The pytest hooks: facts are attached where the test runs, records are written by the controller alone."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from harness.recording.facts import attach, failure_facts, is_suite, item_facts, make_sendable
from harness.recording.notes import Notes
from harness.recording.recorder import Recorder
from harness.replay import Replay, write_replay
from reports.coerce import Json

__all__ = ["RUN_SEEDS", "pytest_addoption", "pytest_configure", "pytest_runtest_makereport", "record"]

DEFAULT_DIRECTORY = "runs/latest"
RUN_SEEDS = pytest.StashKey[dict[str, Any]]()  # config.stash[RUN_SEEDS]: seeds of the whole run, for its header
_NOTES = pytest.StashKey[Notes]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("lockstep").addoption(
        "--records",
        metavar="DIR",
        default=None,
        help=f"directory for the result records (default: {DEFAULT_DIRECTORY} under the root directory; empty: none)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "tier(name): tier that the test belongs to, for its record")
    directory = _directory(config)
    if hasattr(config, "workerinput") or directory is None or config.getoption("collectonly"):
        return
    config.pluginmanager.register(Recorder(config, directory, lambda: config.stash.get(RUN_SEEDS, {})), "lockstep-recorder")


def _directory(config: pytest.Config) -> Path | None:
    """Where the records go; None for none."""
    chosen = config.getoption("--records")
    if chosen == "":
        return None
    return config.rootpath / DEFAULT_DIRECTORY if chosen is None else config.invocation_params.dir / Path(chosen)


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Notes:
    """What the test says about itself for its result record: `config`, `activity`, `figure`, `count`, `provenance`."""
    notes: Notes = request.node.stash.setdefault(_NOTES, Notes())
    return notes


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if is_suite(item.nodeid):
        if report.failed and (directory := _directory(item.config)) is not None:
            _save_replay(item, call, report, directory)
        make_sendable(report)
        facts: dict[str, Json] = item_facts(item) if report.when == "setup" else {}
        if report.when != "setup" and _NOTES in item.stash:
            facts |= item.stash[_NOTES].fields()
        if failure := failure_facts(call, report):
            facts["failure"] = failure
        attach(report, facts)
    return report


def _save_replay(item: pytest.Item, call: pytest.CallInfo[Any], report: pytest.TestReport, directory: Path) -> None:
    """A failure that carries its case leaves a file behind, and says how to run it again."""
    replay = getattr(call.excinfo.value, "replay", None) if call.excinfo is not None else None
    if not isinstance(replay, Replay):
        return
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", item.nodeid.rpartition("/")[2]).strip("-")
    path = directory / "replays" / f"{name[:120]}.json"
    try:
        write_replay(replay, path)
    except OSError as error:
        report.sections.append(("replay", f"could not be written to {path}: {error.strerror}"))
    else:
        report.sections.append(("replay", f"lockstep replay {path} --shrink"))
