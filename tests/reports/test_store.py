"""What is written is read again, and damage costs only what is damaged."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from reports import RECORDS_FILE, SCHEMA_VERSION, RecordError, RecordWriter, read_run


def lines(directory: Path) -> list[str]:
    return (directory / RECORDS_FILE).read_text(encoding="utf-8").splitlines(keepends=True)


def rewrite(directory: Path, content: str | bytes) -> Path:
    data = content if isinstance(content, bytes) else content.encode()
    (directory / RECORDS_FILE).write_bytes(data)
    return directory


def test_what_is_written_is_read_again(tmp_path: Path, made_up: SimpleNamespace) -> None:
    records = [
        made_up.record("a", figures=made_up.figures(), config={"x": [1, None]}, activity={"num_steps": 3}),
        made_up.record(
            "b", "failed", exception="TokenMismatchError", message=made_up.HOSTILE, evidence=made_up.mismatch_evidence()
        ),
        made_up.record("c", "skipped", skip_reason="no checkpoint"),
    ]
    run = read_run(made_up.write(tmp_path, records))
    assert run.records == records
    assert run.header == made_up.header()
    assert run.problems == []
    assert run.complete
    assert run == read_run(tmp_path / RECORDS_FILE), "a directory and its file are the same run"


def test_a_new_run_replaces_the_old_records_in_one_step(tmp_path: Path, made_up: SimpleNamespace) -> None:
    made_up.write(tmp_path, [made_up.record("old")])
    writer = RecordWriter(tmp_path, made_up.header("run-2"))
    assert len(lines(tmp_path)) == 1, "the header is there at once, the old records are gone"
    writer.write(made_up.record("new", run_id="run-2"))
    writer.close()
    assert [record.case_id for record in read_run(tmp_path).records] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == [RECORDS_FILE]


def test_lines_are_one_object_each_whatever_the_text_holds(tmp_path: Path, made_up: SimpleNamespace) -> None:
    made_up.write(tmp_path, [made_up.record("a", message="one\ntwo\r\n\u2028\x85three", evidence={"x": "\ud800"})])
    assert [json.loads(line)["kind"] for line in (tmp_path / RECORDS_FILE).read_bytes().splitlines()] == ["run", "test", "end"]


@pytest.mark.parametrize("cut", [1, 30, 100])
def test_a_last_line_that_was_cut_is_left_out(tmp_path: Path, made_up: SimpleNamespace, cut: int) -> None:
    made_up.write(tmp_path, [made_up.record("a"), made_up.record("b")], end=False)
    content = (tmp_path / RECORDS_FILE).read_bytes()
    run = read_run(rewrite(tmp_path, content[: -cut - 1]))
    assert [record.case_id for record in run.records] == ["a"]
    assert run.problems == ["line 3: cut short, left out", "the run did not finish: no trailer"]
    assert not run.complete


def test_a_run_without_a_trailer_did_not_finish(tmp_path: Path, made_up: SimpleNamespace) -> None:
    run = read_run(made_up.write(tmp_path, [made_up.record()], end=False))
    assert run.problems == ["the run did not finish: no trailer"]
    assert not run.complete


def test_damage_in_the_middle_is_named_by_its_line(tmp_path: Path, made_up: SimpleNamespace) -> None:
    content = lines(made_up.write(tmp_path, [made_up.record("a"), made_up.record("b")]))
    run = read_run(rewrite(tmp_path, content[0] + "\x00garbage\n" + "".join(content[2:])))
    assert [record.case_id for record in run.records] == ["b"]
    assert run.problems == ["line 2: not a JSON object, left out", "the trailer counts 2 results, 1 could be read"]


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_file_is_an_error(tmp_path: Path, content: str) -> None:
    with pytest.raises(RecordError, match="the file is empty"):
        read_run(rewrite(tmp_path, content))


def test_a_file_of_something_else_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no records in it"):
        read_run(rewrite(tmp_path, b"\x7fELF\x00\n[1, 2]\n"))


def test_a_missing_file_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="--records=DIR"):
        read_run(tmp_path)


def test_records_without_a_header_are_read(tmp_path: Path, made_up: SimpleNamespace) -> None:
    content = lines(made_up.write(tmp_path, [made_up.record("a")]))
    run = read_run(rewrite(tmp_path, "".join(content[1:])))
    assert len(run.records) == 1
    assert run.header.run_id == "run-1"
    assert "no run header" in run.problems[0]


def test_another_schema_version_is_read_as_far_as_it_is_known(tmp_path: Path, made_up: SimpleNamespace) -> None:
    head = made_up.header(schema_version=SCHEMA_VERSION + 1)
    run = read_run(made_up.write(tmp_path, [made_up.record("a")], head))
    assert len(run.records) == 1
    assert run.problems == [
        f"line 1: schema version {SCHEMA_VERSION + 1}, this program knows {SCHEMA_VERSION}; what it knows was read"
    ]


def test_unknown_fields_are_kept_aside_and_written_back(tmp_path: Path, made_up: SimpleNamespace) -> None:
    record = dataclasses.replace(made_up.record("a"), extra={"joules": 5})
    run = read_run(made_up.write(tmp_path, [record]))
    assert run.records == [record]
    assert run.problems == ["line 2: unknown fields: joules"]
    assert run.complete


def test_a_field_of_the_wrong_type_costs_that_field_only(tmp_path: Path, made_up: SimpleNamespace) -> None:
    content = lines(made_up.write(tmp_path, [made_up.record("a")]))
    broken = json.loads(content[1]) | {"durations": "long", "counts": 3, "outcome": "exploded"}
    run = read_run(rewrite(tmp_path, content[0] + json.dumps(broken) + "\n" + content[2]))
    (record,) = run.records
    assert (record.outcome, record.counts, record.durations.total) == ("error", {}, 0)
    assert len(run.problems) == 3


def test_a_record_without_what_identifies_it_is_left_out(tmp_path: Path, made_up: SimpleNamespace) -> None:
    content = lines(made_up.write(tmp_path, [made_up.record("a")]))
    broken = {name: value for name, value in json.loads(content[1]).items() if name != "nodeid"}
    run = read_run(rewrite(tmp_path, content[0] + json.dumps(broken) + "\n" + content[2]))
    assert run.records == []
    assert run.problems[:2] == ["line 2: field 'nodeid' is missing", "line 2: left out"]
    assert not run.complete


@pytest.mark.parametrize("outcomes", [("failed", "passed"), ("passed", "failed")])
def test_of_two_records_of_one_test_the_failing_one_counts(
    tmp_path: Path, made_up: SimpleNamespace, outcomes: tuple[str, str]
) -> None:
    run = read_run(made_up.write(tmp_path, [made_up.record("a", outcome) for outcome in outcomes]))
    assert [record.outcome for record in run.records] == ["failed"]
    assert "a second record of suites/test_work.py::test_it[a]; the failing one counts" in run.problems[0]


@pytest.mark.parametrize(("run_id", "said"), [("run-1", "the same run id"), ("run-2", "another run id")])
def test_two_runs_in_one_file_are_noticed(tmp_path: Path, made_up: SimpleNamespace, run_id: str, said: str) -> None:
    first = lines(made_up.write(tmp_path / "1", [made_up.record("a")]))
    second = lines(made_up.write(tmp_path / "2", [made_up.record("b", run_id=run_id)], made_up.header(run_id)))
    run = read_run(rewrite(tmp_path, "".join(first + second)))
    assert len(run.records) == 2
    assert said in run.problems[0]


def test_a_header_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, made_up: SimpleNamespace) -> None:
    made_up.write(tmp_path, [made_up.record("old")])
    (tmp_path / RECORDS_FILE).unlink()
    (tmp_path / RECORDS_FILE).mkdir()
    with pytest.raises(OSError):
        RecordWriter(tmp_path, made_up.header())
    assert [path.name for path in tmp_path.iterdir()] == [RECORDS_FILE]
