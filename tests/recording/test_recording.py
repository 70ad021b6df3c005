"""Each test of a suite has exactly one record, with one process and with two, however it ended."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from harness import errors
from reports import Durations, Figure, TestRecord

Project = Callable[..., Any]
Runs = dict[str, Any]
KINDS = [name for name in errors.__all__ if name != "ValidationError"]


@pytest.fixture(params=["plain", "xdist"])
def done(request: pytest.FixtureRequest, every_outcome: Runs) -> Any:
    return every_outcome[request.param]


def test_records_do_not_depend_on_the_number_of_workers(every_outcome: Runs) -> None:
    def comparable(name: str) -> dict[str, TestRecord]:
        records = every_outcome[name].run.records
        # Where it ran, how long it took, and in which directory are what may differ.
        assert {record.worker for record in records} == ({"main"} if name == "plain" else {"main", "gw0", "gw1"}), name
        return {record.nodeid: dataclasses.replace(record, run_id="", worker="", durations=Durations()) for record in records}

    plain, xdist = comparable("plain"), comparable("xdist")
    assert plain.keys() == xdist.keys()
    assert len(plain) == len(KINDS) + 17
    for nodeid, record in plain.items():
        assert record == xdist[nodeid]


def test_outcomes(done: Any) -> None:
    outcomes = {case: record.outcome for case, record in done.by_case.items() if not case.startswith("test_fails")}
    assert outcomes == {
        "suites/test_module.py": "skipped",
        "test_passes[mp-greedy]": "passed",
        "test_passes[mp-hot]": "passed",
        "test_hostile": "failed",
        "test_assertion": "failed",
        "test_long_message": "failed",
        "test_broken_message": "failed",
        "test_skips": "skipped",
        "test_skips_without_a_reason": "skipped",
        "test_known_defect": "xfailed",
        "test_known_defect_that_is_gone": "xpassed",
        "test_another_defect": "failed",
        "test_expected_in_the_body": "xfailed",
        "test_setup_error": "error",
        "test_teardown_error": "error",
        "test_subtests": "failed",
        "test_wrong_figure": "failed",
    }
    assert done.exit_status == 1


def test_what_a_test_says_about_itself(done: Any) -> None:
    record = done.by_case["test_passes[mp-hot]"]
    assert (record.suite, record.test, record.case_id, record.tier) == ("test_all", "test_passes", "mp-hot", "real")
    assert record.parameters == {"executor": {"backend": "mp"}, "sampling": "hot"}
    assert record.parameter_ids == {"executor": "mp", "sampling": "hot"}
    assert record.config == {"async_scheduling": True, "path": "a/b", "rule": None}
    assert record.activity == {"num_steps": 7, "per_pos": [2, 3, 1], "finished": {"stop": 2, "length": 2}}
    assert record.figures == [Figure("rate", 0.5, n=10, interval=[0.25, "NaN"], threshold=0.5, unit="1")]
    assert record.counts == {"requests_compared": 17}
    assert record.provenance == {"prompts": "ab12", "seeds": [1, 2, 3]}
    assert record.durations.total > 0
    assert record.exception is None


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_failure_comes_with_its_evidence(done: Any, kind: str) -> None:
    record = done.by_case[f"test_fails[{kind}]"]
    assert (record.outcome, record.exception) == ("failed", kind)
    assert record.message == f"{kind}: first line\nsecond line"
    assert "raise getattr(errors, kind)" in record.traceback
    assert record.evidence == {
        "case": "c",
        "request": "r1",
        "position": 3,
        "expected": [0, 1, 2],
        "actual": {"text": "ff"},
        "candidates": {"sync": [[1, -0.5]]},
    }
    assert record.counts == {"requests_compared": 2}, "what was counted before the failure is kept"


def test_hostile_text_is_kept(done: Any) -> None:
    record = done.by_case["test_hostile"]
    assert record.evidence["expected"] == "<script>\x00\x1b[31m\u202e\\ud800" + "e\u0301" * 5
    assert record.message.startswith("texts differ: <script>\x00")


def test_messages(done: Any) -> None:
    cases = done.by_case
    assert cases["test_assertion"].exception == "AssertionError"
    assert cases["test_assertion"].message.startswith("assert (1 + 1) == 3")
    assert cases["test_long_message"].message.endswith("\n11\n... (88 more lines)")
    assert cases["test_broken_message"].message == "<no message: its __str__ raises RuntimeError>"
    assert "takes" in cases["test_wrong_figure"].message or "figure 'rate'" in cases["test_wrong_figure"].message


def test_errors_outside_of_the_body(done: Any) -> None:
    setup, teardown = done.by_case["test_setup_error"], done.by_case["test_teardown_error"]
    assert (setup.exception, setup.message) == ("OSError", "no disk")
    assert (teardown.exception, teardown.evidence) == ("ResourceLeakError", {"blocks": 3})
    assert teardown.activity == {"late": 1}, "what is noted in a teardown counts"


def test_a_subtest_tells_of_itself(done: Any) -> None:
    record = done.by_case["test_subtests"]
    assert (record.exception, record.evidence) == ("WorkBoundError", {"rows": 9})


def test_known_defects(done: Any) -> None:
    cases = done.by_case
    known = cases["test_known_defect"]
    assert (known.exception, known.evidence, known.xfail_reason) == ("TokenMismatchError", {"position": 4}, "issue 1")
    gone = cases["test_known_defect_that_is_gone"]
    assert (gone.exception, gone.message) == ("XPASS(strict)", "[XPASS(strict)] issue 2")
    assert cases["test_another_defect"].evidence == {"slots": [1, 2]}
    assert cases["test_expected_in_the_body"].xfail_reason == "issue 4"


def test_skips_carry_their_reason(done: Any) -> None:
    cases = done.by_case
    assert cases["test_skips"].skip_reason == "no checkpoint"
    assert cases["suites/test_module.py"].skip_reason == "needs a GPU"
    assert cases["test_skips_without_a_reason"].skip_reason == ""
    assert done.run.trailer.problems == ["skipped without a reason: suites/test_all.py::test_skips_without_a_reason"]


def test_header_and_trailer(done: Any) -> None:
    run = done.run
    facts = run.header.provenance
    assert run.header.argv[0] == "suites"
    assert run.header.seeds == {"PYTHONHASHSEED": "5"}
    assert facts["environment"] == {"LOCKSTEP_MARK": "x", "OMP_NUM_THREADS": "1"}
    assert facts["versions"]["pytest"] == pytest.__version__
    assert facts["cores"] >= 1
    assert {record.run_id for record in run.records} == {run.header.run_id}
    assert run.trailer.exit_status == 1
    assert run.trailer.missing == []
    assert sum(run.trailer.totals.values()) == len(run.records)
    assert run.complete


def test_the_summary_is_short(done: Any) -> None:
    section = done.output.partition(" lockstep ===")[2].partition("short test summary info")[0]
    assert "test_all " in section
    assert "2 passed" in section
    assert "3 × ResourceLeakError" in section
    assert "requests compared; records: runs/latest/records.jsonl" in section
    assert f"{2 * 17 + 2 * len(KINDS)} requests compared" in section
    assert len(section.splitlines()) < 35


# --- what can go wrong ---------------------------------------------------------------------------------------------------

CRASH = """\
import os, time

def test_before(): pass

def test_crash():
    os._exit(9)

def test_after(): pass
"""


def test_a_worker_that_dies_is_an_error_of_the_test_that_it_ran(project: Project) -> None:
    done = project({"test_crash.py": CRASH}, "suites", "-n", "2")
    assert {case: record.outcome for case, record in done.by_case.items()} == {
        "test_before": "passed",
        "test_crash": "error",
        "test_after": "passed",
    }
    record = done.by_case["test_crash"]
    assert record.exception == "WorkerCrash"
    assert "crashed while running" in record.message
    assert record.suite == "test_crash"
    assert done.exit_status == 1


def test_a_process_that_dies_leaves_the_results_before(project: Project) -> None:
    done = project({"test_crash.py": CRASH})
    assert done.exit_status == 9
    assert {case: record.outcome for case, record in done.by_case.items()} == {"test_before": "passed"}
    assert not done.run.complete


LOST = """\
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    return True if "lost" in item.name else None
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["plain", "xdist"])
def test_a_test_without_a_result_fails_the_run(project: Project, workers: tuple[str, ...]) -> None:
    suite = "def test_kept(): pass\n\ndef test_lost(): pass\n"
    done = project({"test_a.py": suite, "suites/conftest.py": LOST}, "suites", *workers)
    assert done.exit_status == 3
    assert done.run.trailer.missing == ["suites/test_a.py::test_lost"]
    assert done.run.trailer.exit_status == 3
    assert "no result: suites/test_a.py::test_lost" in done.output


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["plain", "xdist"])
def test_a_run_that_stops_early_names_what_it_did_not_run(project: Project, workers: tuple[str, ...]) -> None:
    suite = "def test_a(): assert 0\n\ndef test_b(): pass\n\ndef test_c(): pass\n\ndef test_d(): pass\n"
    done = project({"test_a.py": suite}, "suites", "-x", *workers)
    assert done.exit_status in (1, 2)
    assert "suites/test_a.py::test_d" in done.run.trailer.missing
    assert not done.run.complete


def test_a_module_that_cannot_be_imported_is_an_error(project: Project) -> None:
    done = project({"test_bad.py": "import nothing_of_this_name\n", "test_ok.py": "def test_ok(): pass\n"})
    record = done.by_case["suites/test_bad.py"]
    assert (record.outcome, record.exception) == ("error", "CollectionError")
    assert "nothing_of_this_name" in record.message


def test_only_suites_are_recorded_and_others_leave_the_last_records_alone(project: Project) -> None:
    done = project({"test_a.py": "def test_a(): pass\n", "tests/test_b.py": "def test_b(record): record.count('x')\n"}, ".")
    assert list(done.by_case) == ["test_a"]
    before = (done.directory / "runs" / "latest" / "records.jsonl").read_bytes()
    done.again("tests")
    done.again("suites", "--collect-only")
    assert (done.directory / "runs" / "latest" / "records.jsonl").read_bytes() == before


def test_records_go_where_the_option_says(project: Project) -> None:
    suite = {"test_a.py": "def test_a(): pass\n"}
    done = project(suite, "suites", "--records=elsewhere/deep")
    assert (done.directory / "elsewhere" / "deep" / "records.jsonl").exists()
    assert not (done.directory / "runs").exists()
    done.again("suites", "--records=")
    assert not (done.directory / "runs").exists()


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["plain", "xdist"])
def test_a_place_that_cannot_be_written_is_a_clear_error(project: Project, workers: tuple[str, ...]) -> None:
    done = project({"test_a.py": "def test_a(): pass\n"}, "suites", "--records=conftest.py", *workers)
    assert done.exit_status != 0
    assert "records cannot be written there" in done.output
    assert "INTERNALERROR" not in done.output


def test_a_full_disk_ends_the_records_not_the_tests(project: Project) -> None:
    conftest = """\
import errno
from reports.store import RecordWriter

pytest_plugins = ["harness.recording"]
real = RecordWriter.write

def write(self, line):
    if getattr(line, "case_id", "") == "test_b":
        raise OSError(errno.ENOSPC, "No space left on device")
    real(self, line)

RecordWriter.write = write
"""
    suite = "def test_a(): pass\n\ndef test_b(): pass\n\ndef test_c(): pass\n"
    done = project({"test_a.py": suite, "./conftest.py": conftest})
    assert done.exit_status == 3
    assert "3 passed" in done.output
    assert "records are incomplete: No space left on device" in done.output
    assert list(done.by_case) == ["test_a"]


def test_the_seeds_of_a_run_are_in_its_header(project: Project) -> None:
    conftest = """\
from harness.recording import RUN_SEEDS

pytest_plugins = ["harness.recording"]

def pytest_configure(config):
    config.stash[RUN_SEEDS] = {"engine": 7}
"""
    done = project({"test_a.py": "def test_a(): pass\n", "./conftest.py": conftest})
    assert done.run.header.seeds == {"PYTHONHASHSEED": "5", "engine": 7}


def test_every_line_is_one_object(done: Any) -> None:
    content = (done.directory / "runs" / "latest" / "records.jsonl").read_bytes()
    kinds = [json.loads(line)["kind"] for line in content.splitlines()]
    assert kinds[0] == "run"
    assert kinds[-1] == "end"
    assert set(kinds[1:-1]) == {"test"}
