"""Known defects in a run: strict xfails, and what fails the run, with one process and with two; `lockstep defects` after it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.known_defects import load_defects
from harness.known_defects_plugin import KnownDefects, current_engine
from reports import Run, TestRecord, read_run

ROOT = Path(__file__).parents[2]
PLAIN, XDIST = (), ("-n", "2")
# hypothesis takes most of the time that such a small run needs.
SETTINGS = """\
[pytest]
strict = true
addopts = ["-ra", "--import-mode=importlib", "-p", "no:hypothesispytest", "-p", "no:anyio"]
"""
# The root conftest's own line, since the order of the two plugins matters.
(PLUGINS,) = (line for line in (ROOT / "conftest.py").read_text().splitlines() if line.startswith("pytest_plugins = "))
CONFTEST = f"""\
import pytest

from harness.tiers import is_selected

{PLUGINS}


def pytest_collection_modifyitems(config, items):
    left = [item for item in items if not is_selected(item, "default")]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]
"""
SUITE = """\
import pytest

from harness.errors import LogprobMismatchError, TokenMismatchError

KINDS = {"tokens": TokenMismatchError, "logprobs": LogprobMismatchError}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", ["tokens", "logprobs", None], ids=["tokens", "logprobs", "fine"])
def test_equal(kind, depth):
    if kind is not None:
        raise KINDS[kind]("they differ")


@pytest.mark.tier("nightly")
def test_long():
    pass


@pytest.mark.xfail(reason="its own mark")
def test_marked():
    raise LogprobMismatchError("they differ")
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
        return {record.case_id: record for record in self.run.records}

    def outcomes(self, outcome: str) -> set[str]:
        return {record.case_id for record in self.run.records if record.outcome == outcome}

    @property
    def section(self) -> list[str]:
        """The lines of the section "known defects"."""
        lines = iter(self.output.splitlines())
        for line in lines:
            if line.startswith("=") and line.strip("= ") == "known defects":
                break
        section = []
        for line in lines:
            if line.startswith("="):
                break
            section.append(line)
        return section


Project = Callable[..., Done]


def entry(name: str, **changes: str) -> str:
    fields = {
        "id": f'"{name}"',
        "engine": '"lockstep"',
        "versions": '"*"',
        "suite": '"test_some"',
        "raises": '"TokenMismatchError"',
        "reason": '"Some reason."',
        "link": '"https://example.org/1"',
        "since": "2026-01-01",
        "expires": "2999-01-01",
    } | changes
    return "[[defect]]\n" + "".join(f"{field} = {value}\n" for field, value in fields.items())


TOKENS = entry("tokens", cases='"tokens-*"')
EXCUSED = (TOKENS, entry("logprobs", raises='"LogprobMismatchError"', parameters='{ kind = "logprobs" }'))
MARKED = entry("marked", test='"test_marked"', raises='"LogprobMismatchError"')
EXPIRED = entry("old", test='"test_marked"', raises='"LogprobMismatchError"', since="2025-01-01", expires="2025-06-01")
UNMATCHED = entry("stray", cases='"medusa-*"')


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """(entries, *arguments) -> what a run of a small project with these known defects left."""
    (tmp_path / "suites").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_unit.py").write_text("def test_unit():\n    pass\n")
    (tmp_path / "suites" / "test_some.py").write_text(SUITE)
    (tmp_path / "suites" / "test_other.py").write_text("def test_other():\n    pass\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.toml").write_text(SETTINGS)

    def run(entries: tuple[str, ...], *arguments: str) -> Done:
        (tmp_path / "defects.toml").write_text("\n".join(entries))
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "LOCKSTEP_"))}
        environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "--known-defects=defects.toml", *(arguments or ("suites",))]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False)
        return Done(done.returncode, done.stdout + done.stderr, tmp_path)

    return run


both = pytest.mark.parametrize("workers", [PLAIN, XDIST], ids=["plain", "xdist"])


@both
def test_known_failures_are_excused(project: Project, workers: tuple[str, ...]) -> None:
    done = project((*EXCUSED, MARKED), "suites", *workers)
    assert done.exit_status == 0, done.output
    assert done.outcomes("xfailed") == {"tokens-1", "tokens-2", "logprobs-1", "logprobs-2", "test_marked"}
    assert done.outcomes("passed") == {"fine-1", "fine-2", "test_other"}
    reason = "known defect {}: Some reason. (https://example.org/1)"
    assert done.by_case["tokens-1"].xfail_reason == reason.format("tokens")
    assert done.by_case["logprobs-1"].xfail_reason == reason.format("logprobs")
    assert done.by_case["test_marked"].xfail_reason == reason.format("marked"), "the entry comes before the suite's own mark"
    assert done.by_case["tokens-1"].exception == "TokenMismatchError"
    assert not done.section
    assert "PytestAssertRewriteWarning" not in done.output


@both
def test_another_exception_still_fails(project: Project, workers: tuple[str, ...]) -> None:
    done = project((entry("all", test='"test_equal"', parameters='{ kind = ["tokens", "logprobs"] }'),), "suites", *workers)
    assert done.exit_status == 1
    assert done.outcomes("xfailed") == {"tokens-1", "tokens-2", "test_marked"}
    assert done.outcomes("failed") == {"logprobs-1", "logprobs-2"}
    assert done.by_case["logprobs-1"].exception == "LogprobMismatchError"


def test_an_entry_is_stricter_than_the_mark_of_a_suite(project: Project) -> None:
    done = project((entry("marked", test='"test_marked"'),), "suites/test_some.py::test_marked")
    assert done.outcomes("failed") == {"test_marked"}, "the mark alone would excuse any exception"


@both
def test_a_fixed_defect_fails_and_says_what_to_remove(project: Project, workers: tuple[str, ...]) -> None:
    done = project((*EXCUSED, entry("gone", cases='"fine-1"')), "suites", *workers)
    assert done.exit_status == 1
    assert done.outcomes("xpassed") == {"fine-1"}
    assert done.outcomes("passed") == {"fine-2", "test_other"}
    text = "[XPASS(strict)] known defect gone is fixed: remove its entry from defects.toml, line 25. It was: known defect gone:"
    assert text in done.output
    record = done.by_case["fine-1"]
    assert record.exception == "XPASS(strict)"
    assert record.message is not None
    assert record.message.startswith(text), "the recorder sees the text too"


def test_two_entries_on_one_case(project: Project) -> None:
    """Each excuses its own exception, and the record names the one that it was."""
    second = entry("second", test='"test_equal"', raises='"LogprobMismatchError"', cases='["tokens-*", "logprobs-*", "fine-2"]')
    done = project((TOKENS, second, MARKED))
    assert done.outcomes("xfailed") == {"tokens-1", "tokens-2", "logprobs-1", "logprobs-2", "test_marked"}
    assert str(done.by_case["tokens-1"].xfail_reason).startswith("known defect tokens: ")
    assert "second" not in str(done.by_case["tokens-1"].xfail_reason)
    assert done.outcomes("xpassed") == {"fine-2"}


@both
def test_an_expired_entry_fails_the_run_once(project: Project, workers: tuple[str, ...]) -> None:
    done = project((*EXCUSED, EXPIRED), "suites", *workers)
    assert done.exit_status == 1
    assert not done.outcomes("failed"), "its cases are still told from new failures"
    expected = (
        "old expired on 2025-06-01: look at https://example.org/1 again, then remove its entry or give it a later `expires`"
    )
    assert done.section == [f"{expected} (defects.toml, line 25)"]
    assert done.run.trailer is not None
    assert done.run.trailer.exit_status == 1
    assert done.run.trailer.problems == [f"known defect {done.section[0]}"]


@both
def test_an_entry_that_covers_nothing_fails_a_whole_run(project: Project, workers: tuple[str, ...]) -> None:
    done = project((*EXCUSED, UNMATCHED), "suites", *workers)
    assert done.exit_status == 1
    assert not done.outcomes("failed")
    expected = "stray covers no case of test_some: correct `suite`, `test`, `cases` or `parameters` of its entry, or remove it"
    assert done.section == [f"{expected} (defects.toml, line 25)"]


@pytest.mark.parametrize(
    ("arguments", "whole"),
    [
        (("suites/test_some.py",), True),
        (("tests", "suites/test_some.py"), True),
        (("suites/../suites",), True),
        ((".",), True),
        (("suites/test_other.py",), False),
        (("suites/test_some.py::test_equal",), False),
        (("suites/test_some.py::test_equal[tokens-1]", "suites/test_other.py"), False),
        (("suites", "-k", "equal"), False),
        (("suites", "-m", "not tier"), False),
        (("suites", "--deselect", "suites/test_some.py::test_marked"), False),
        (("suites", "--ignore", "suites/test_some.py"), False),
        (("tests",), False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_a_whole_run_is(project: Project, arguments: tuple[str, ...], whole: bool) -> None:
    done = project((*EXCUSED, UNMATCHED), *arguments)
    assert done.exit_status == (1 if whole else 0), done.output
    assert len(done.section) == (1 if whole else 0)


@both
def test_a_part_of_a_suite_finds_nothing_in_workers_either(project: Project, workers: tuple[str, ...]) -> None:
    assert project((*EXCUSED, UNMATCHED), "suites/test_some.py::test_equal", *workers).exit_status == 0


def test_a_suite_that_is_not_there_covers_nothing(project: Project) -> None:
    done = project((*EXCUSED, entry("typo", suite='"test_sme"')))
    assert done.exit_status == 1
    assert done.section[0].startswith("typo covers no case of test_sme")


def test_a_case_that_the_tier_leaves_out_is_covered(project: Project) -> None:
    assert project((*EXCUSED, entry("long", test='"test_long"'))).exit_status == 0


@both
def test_a_suite_that_skips_itself_is_not_collected(project: Project, tmp_path: Path, workers: tuple[str, ...]) -> None:
    (tmp_path / "suites" / "test_some.py").write_text("import pytest\n\npytest.skip('no GPU', allow_module_level=True)\n")
    done = project((UNMATCHED,), "suites", *workers)
    assert done.exit_status == 0, done.output


def test_the_unit_tests_alone_do_not_fail_with_the_calendar(project: Project) -> None:
    done = project((EXPIRED,), "tests")
    assert (done.exit_status, done.section) == (0, [])


@pytest.mark.parametrize("changes", [{"engine": '"vllm"'}, {"versions": '">=99"'}], ids=["engine", "version"])
def test_entries_of_other_engines_and_versions_do_nothing(project: Project, changes: dict[str, str]) -> None:
    others = [
        entry("a", cases='"fine-*"', **changes),
        entry("b", cases='"x"', since="2025-01-01", **changes | {"expires": "2025-02-01"}),
    ]
    done = project((*EXCUSED, *others))
    assert done.exit_status == 0, done.output


@both
def test_a_bad_file_stops_the_run(project: Project, workers: tuple[str, ...]) -> None:
    done = project((entry("a", raises='"TokenMissmatchError"'),), "suites", *workers)
    assert done.exit_status == pytest.ExitCode.USAGE_ERROR
    assert (
        "known defects: defects.toml, line 1: entry 1 ('a'): unknown exception 'TokenMissmatchError'. Did you mean"
        in done.output
    )


def test_today_can_be_given(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    (tmp_path / "defects.toml").write_text(entry("a", expires="2026-03-01"))

    class Item:
        nodeid, name, path = "suites/test_elsewhere.py::test_x", "test_x", tmp_path / "test_elsewhere.py"

        def get_closest_marker(self, name: str) -> None:
            return None

    items: Any = [Item()]
    for today, number in ((date(2026, 2, 28), 0), (date(2026, 3, 1), 1)):
        plugin = KnownDefects(pytestconfig, load_defects(tmp_path / "defects.toml"), today=lambda today=today: today)
        plugin.pytest_collection_modifyitems(items)
        assert len([finding for finding in plugin.findings if "expired" in finding]) == number


def test_defects_command_without_any(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["defects"]) == 0
    assert capsys.readouterr().out == "No known defects: every case has to pass.\n"


def test_defects_command(project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """States of the entries, and what the newest run that has the suite made of them."""
    entries = (
        entry("all", test='"test_equal"', cases='"*-1"'),
        EXPIRED,
        entry("other", engine='"vllm"', versions='">=0.10"'),
        entry("never", suite='"test_never"'),
    )
    project((), "suites", "--records=runs/older")
    project(entries)
    project(entries, "suites/test_other.py", "--records=runs/newer")
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "records.jsonl").write_text("")
    file, runs = str(tmp_path / "defects.toml"), str(tmp_path / "runs")
    assert main(["defects", "--file", file, "--runs", runs]) == 0
    printed = capsys.readouterr()
    engine, version = current_engine(None)
    head, *blocks = printed.out.split("\n\n")
    assert head == f"4 known defects; this is {engine} {version}"
    shown = {block.partition(":")[0]: block.splitlines() for block in blocks}
    assert shown["all"] == [
        "all: active",
        "  Some reason. https://example.org/1",
        "  lockstep *, test_some::test_equal, TokenMismatchError",
        f"  since 2026-01-01, expires 2999-01-01 ({file}, line 1)",
        f"  {runs}/latest: 1 xfailed, 1 xpassed, 1 failed",
    ]
    assert shown["old"][0] == "old: expired"
    assert shown["old"][-1] == f"  {runs}/latest: 1 xfailed, 0 xpassed, 0 failed"
    assert shown["other"][0] == "other: other engine/version"
    assert "  vllm >=0.10, test_some, TokenMismatchError" in shown["other"]
    assert shown["other"][-1].endswith("0 xfailed, 0 xpassed, 0 failed"), "they are another engine's records"
    assert shown["never"][-1] == f"  no run of test_never in {runs}"
    assert "left out: " in printed.err
    assert "broken/records.jsonl: the file is empty" in printed.err


def test_defects_command_with_a_bad_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "defects.toml").write_text("[[defects]]\n")
    assert main(["defects", "--file", str(tmp_path / "defects.toml")]) == 2
    assert "unknown key 'defects'. Did you mean 'defect'?" in capsys.readouterr().err
