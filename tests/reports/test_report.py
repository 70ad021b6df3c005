"""The report says what the records say, and hostile text stays text."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest

from reports import TestRecord
from reports.build import build_report
from reports.cli import main
from reports.model import Report
from reports.tables import equivalence_matrices, parameter_labels

VOID = {"meta"}


class Page(HTMLParser):
    """Elements, attributes and text of a page; unbalanced elements are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def values(self, attribute: str) -> list[str | None]:
        return [attributes[attribute] for _, attributes in self.elements if attribute in attributes]


@pytest.fixture
def build(tmp_path: Path, made_up: SimpleNamespace):
    """(records) -> (page, directory of the report)."""

    def run(records: Iterable[TestRecord], **options: object) -> tuple[Page, Path]:
        out = build_report([made_up.write(tmp_path / "run", records, **options)], tmp_path / "out")
        return Page(out.read_text(encoding="utf-8")), out.parent

    return run


def verdict(tmp_path: Path, made_up: SimpleNamespace, records: Iterable[TestRecord], **options: object) -> tuple[str, str]:
    found = Report.of([made_up.write(tmp_path, records, **options)]).verdict
    return found.status, found.line


# --- the verdict ---------------------------------------------------------------------------------------------------------


def test_all_passed(tmp_path: Path, made_up: SimpleNamespace) -> None:
    records = [*made_up.equivalence_records(), made_up.record("s", "skipped", counts={}, skip_reason="no GPU")]
    assert verdict(tmp_path, made_up, records) == (
        "passed",
        "All 192 cases passed: async equals sync in 5,760 compared requests",
    )


def test_passing_without_a_comparison_claims_no_equality(tmp_path: Path, made_up: SimpleNamespace) -> None:
    assert verdict(tmp_path, made_up, [made_up.record(counts={})]) == ("passed", "All 1 case passed: no requests were compared")


@pytest.mark.parametrize("outcome", ["failed", "error", "xpassed"])
def test_one_failure_decides(tmp_path: Path, made_up: SimpleNamespace, outcome: str) -> None:
    records = [made_up.record("a"), made_up.record("b", outcome, exception="TokenMismatchError")]
    assert verdict(tmp_path, made_up, records) == ("failed", "1 of 2 cases failed: 1 × TokenMismatchError")


def test_known_defects_and_skips_do_not_fail_a_run_but_are_told(tmp_path: Path, made_up: SimpleNamespace) -> None:
    records = [made_up.record("a"), made_up.record("b", "xfailed"), made_up.record("c", "skipped", skip_reason="x")]
    found = Report.of([made_up.write(tmp_path, records)]).verdict
    assert found.status == "passed"
    assert found.details == ["1 case skipped", "1 case failed as expected (known defects, injected faults)"]


def test_only_skips_show_nothing(tmp_path: Path, made_up: SimpleNamespace) -> None:
    status, line = verdict(tmp_path, made_up, [made_up.record("a", "skipped", skip_reason="x")])
    assert (status, line) == ("empty", "Nothing was shown: all 1 case were skipped")


def test_an_empty_run_is_not_a_pass(tmp_path: Path, made_up: SimpleNamespace) -> None:
    assert verdict(tmp_path, made_up, []) == ("empty", "No cases were run")


@pytest.mark.parametrize(
    "trailer",
    [{"end": False}, {"missing": ["suites/test_work.py::test_it[b]"]}, {"exit_status": 2}, {"totals": {"passed": 5}}],
    ids=["no-trailer", "missing", "interrupted", "lost-records"],
)
def test_an_incomplete_run_is_not_a_pass(tmp_path: Path, made_up: SimpleNamespace, trailer: dict[str, object]) -> None:
    status, line = verdict(tmp_path, made_up, [made_up.record("a")], **trailer)
    assert (status, line) == ("incomplete", "Incomplete: 1 case passed, and not all have a result")


def test_a_run_given_twice_counts_once(tmp_path: Path, made_up: SimpleNamespace) -> None:
    run = made_up.write(tmp_path, [made_up.record("a")])
    report = Report.of([run, run])
    assert report.verdict.line == "All 1 case passed: async equals sync in 4 compared requests"
    assert "has the run id of" in report.loaded.problems[0]


def test_two_runs_are_added_up(tmp_path: Path, made_up: SimpleNamespace) -> None:
    failed = made_up.record("a", "failed", run_id="run-2", exception="WorkBoundError")
    runs = [
        made_up.write(tmp_path / "1", [made_up.record("a")]),
        made_up.write(tmp_path / "2", [failed], made_up.header("run-2", schema_version=9)),
    ]
    report = Report.of(runs)
    assert report.verdict.line == "1 of 2 cases failed: 1 × WorkBoundError"
    assert "schema version 9" in report.loaded.problems[0]


# --- tables --------------------------------------------------------------------------------------------------------------


def test_the_suite_table_counts_every_case_once(tmp_path: Path, made_up: SimpleNamespace) -> None:
    outcomes = ("passed", "passed", "failed", "error", "xpassed", "xfailed", "skipped")
    records = [made_up.record(str(i), outcome) for i, outcome in enumerate(outcomes)]
    row = Report.of([made_up.write(tmp_path, records)]).suites.loc["test_work"]
    assert dict(row.drop("seconds")) == {"cases": 7, "passed": 2, "failed": 3, "known": 1, "skipped": 1, "requests": 28}


def test_the_matrix_has_configurations_down_and_sampling_across(made_up: SimpleNamespace) -> None:
    (matrix,) = equivalence_matrices(made_up.equivalence_records())
    assert matrix.row_names == ["executor", "pool", "prefill", "drafts"]
    assert (len(matrix.rows), len(matrix.columns), len(matrix.cells)) == (24, 8, 192)
    assert matrix.rows[0] == "mp · roomy · chunked · mixed"
    assert matrix == equivalence_matrices(reversed(made_up.equivalence_records()))[0], "the order of records does not show"


def test_a_cell_shows_its_worst_record(made_up: SimpleNamespace) -> None:
    records = made_up.equivalence_records()
    other = dataclasses.replace(records[0], run_id="run-2", outcome="failed")
    (matrix,) = equivalence_matrices([records[0], other, *records[1:]])
    assert matrix.cells["uni · roomy · whole · plain", "greedy"] is other


def test_parameters_are_named_by_their_ids(made_up: SimpleNamespace) -> None:
    record = made_up.record(
        "a", parameters={"sampling": {"temperature": 0, "id": "greedy"}, "pool": 11}, parameter_ids={"pool": "tight"}
    )
    assert parameter_labels(record) == {"sampling": "greedy", "pool": "tight"}
    case = made_up.record("a", parameters={"case": {"id": "x", "sampling": "greedy", "pool": None}})
    assert parameter_labels(case) == {"sampling": "greedy", "pool": "null"}


def test_activity_adds_up_and_acceptance_follows_the_definitions(build, made_up: SimpleNamespace) -> None:
    page, out = build(made_up.equivalence_records())
    document = json.loads((out / "report.json").read_text(encoding="utf-8"))
    activity = {row["counter"]: (row["total"], row["cases"]) for row in document["activity"]}
    assert activity["num_overlapped_steps"] == (192 * 80, 192)
    assert activity["num_prefix_hits"] == (0, 0)
    assert activity["num_accepted_tokens_per_pos.1"] == (192 * 5, 192)
    assert "num_speculative_tokens" not in activity
    assert "acceptance rate 0.500, acceptance length 2.500" in page.text


# --- the page ------------------------------------------------------------------------------------------------------------


def test_the_order_of_the_page(build, made_up: SimpleNamespace) -> None:
    failed = made_up.record(
        "x", "failed", exception="TokenMismatchError", message="differs", evidence=made_up.mismatch_evidence()
    )
    skipped = made_up.record("y", "skipped", skip_reason="no GPU here")
    page, _ = build([failed, skipped, made_up.record("f", figures=made_up.figures()), *made_up.equivalence_records()])
    places = [
        page.text.index(text)
        for text in (
            "1 of 195 cases failed: 1 × TokenMismatchError\n".strip(),
            "suites/test_work.py::test_it[x]",
            "candidates: sync",
            "Requests compared",
            "executor · pool · prefill · drafts",
            "num_overlapped_steps",
            "[0.48, 0.54]",
            "no GPU here",
            "acceptance length",
            "python 3.11.7",
        )
    ]
    assert page.text.count("no GPU here") == 2, "beside its suite and in its own section"
    places.remove(page.text.index("no GPU here"))
    places.remove(page.text.index("acceptance length"))
    assert places == sorted(places)


def test_a_failing_cell_leads_to_its_evidence(build, made_up: SimpleNamespace) -> None:
    records = made_up.equivalence_records()
    records[5] = dataclasses.replace(records[5], outcome="failed", exception="TokenMismatchError", evidence={"position": 3})
    page, _ = build(records)
    assert "#failure-1" in page.values("href")
    assert page.values("id").count("failure-1") == 1


def test_every_id_is_unique_and_every_link_has_its_target(build, made_up: SimpleNamespace) -> None:
    page, _ = build([made_up.record(str(i), "failed", exception="WorkBoundError") for i in range(40)])
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {str(link).removeprefix("#") for link in page.values("href")} <= set(ids)
    assert "and 15 more of this kind" in page.text


def test_nothing_leaves_the_page_and_nothing_in_it_runs(build, made_up: SimpleNamespace) -> None:
    page, out = build([made_up.record("a", "failed", exception="WorkBoundError", message="x"), *made_up.equivalence_records()])
    names = {name for name, _ in page.elements}
    assert not names & {"script", "link", "iframe", "img", "object", "embed", "form"}
    assert {"header", "main", "nav", "footer", "section", "svg"} <= names
    assert all(str(link).startswith("#") for link in page.values("href") + page.values("xlink:href"))
    assert not page.values("src")
    text = (out / "index.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text
    assert "@import" not in text
    assert "url(http" not in text


def test_hostile_text_everywhere_stays_text(build, made_up: SimpleNamespace) -> None:
    hostile = made_up.HOSTILE
    records = [
        made_up.record(
            hostile[:200],
            "failed",
            exception=f"Error{hostile[:60]}",
            message=hostile,
            traceback=hostile,
            evidence={
                hostile[:30]: hostile,
                "context": hostile,
                "expected": [hostile],
                "candidates": {hostile[:9]: [], "b": [{"text": hostile}]},
            },
            parameters={"sampling": hostile, "pool": hostile},
            activity={hostile[:30]: 1},
        ),
        made_up.record("s", "skipped", suite=hostile[:40], skip_reason=hostile),
        made_up.record("$x^$", figures=[dataclasses.replace(made_up.figures()[0], name=hostile, unit=hostile[:30])]),
    ]
    page, out = build(records, missing=[hostile], problems=[hostile])
    assert "$x^$" in page.text, "a name is never a formula"
    assert not {"script", "img"} & {name for name, _ in page.elements}
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert "<script>alert(1)</script>" in page.text
    for text in (page.text, (out / "summary.md").read_text(encoding="utf-8")):
        assert "\\u202e" in text
        assert not set("\u202e\u202c\x1b\u200b") & set(text)
        assert "\u0301" * 4 not in text


def test_markdown_of_hostile_text_is_code(build, made_up: SimpleNamespace) -> None:
    _, out = build([made_up.record("a", "failed", exception="E", message="`` [x](http://e) | @all <b>\n# no heading")])
    (row,) = [line for line in (out / "summary.md").read_text(encoding="utf-8").splitlines() if "no heading" in line]
    assert row.endswith("| ``` `` [x](http://e) \\| @all <b> # no heading ``` |")


def test_huge_output_makes_no_huge_page(build, made_up: SimpleNamespace) -> None:
    _, out = build([made_up.record(str(i), "failed", exception="E", message="y" * 10_000_000) for i in range(3)])
    assert (out / "index.html").stat().st_size < 300_000


def test_a_report_of_the_same_records_is_the_same(build, made_up: SimpleNamespace, tmp_path: Path) -> None:
    _, out = build(made_up.equivalence_records())
    again = build_report([tmp_path / "run"], tmp_path / "again")
    assert again.read_bytes() == (out / "index.html").read_bytes()


def test_damaged_records_are_shown_as_far_as_they_go(tmp_path: Path, made_up: SimpleNamespace) -> None:
    run = made_up.write(tmp_path / "run", [made_up.record("a"), made_up.record("b")], end=False)
    file = run / "records.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    page = Page(build_report([run], tmp_path / "out").read_text(encoding="utf-8"))
    assert "Incomplete: 1 case passed" in page.text
    assert "line 3: cut short, left out" in page.text


def test_an_empty_run_still_has_a_page(build) -> None:
    page, out = build([])
    assert "No cases were run" in page.text
    assert json.loads((out / "report.json").read_text(encoding="utf-8"))["verdict"]["status"] == "empty"


# --- the command line ----------------------------------------------------------------------------------------------------


def test_the_command_prints_the_verdict_and_the_page(
    tmp_path: Path, made_up: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made_up.write(tmp_path / "run", [made_up.record("a")])
    assert main([str(run), "--json", str(tmp_path / "deep" / "r.json")]) == 0
    output = capsys.readouterr().out
    assert output.splitlines()[0] == "All 1 case passed: async equals sync in 4 compared requests"
    assert str(run / "report" / "index.html") in output
    assert json.loads((tmp_path / "deep" / "r.json").read_text(encoding="utf-8"))["requests_compared"] == 4
    assert main([str(run), "-o", str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"index.html", "summary.md", "report.json"}


def test_a_report_of_a_failed_run_is_a_success(tmp_path: Path, made_up: SimpleNamespace) -> None:
    assert main([str(made_up.write(tmp_path, [made_up.record("a", "failed")]))]) == 0


@pytest.mark.parametrize("where", ["nowhere", "empty"])
def test_unreadable_input_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str) -> None:
    (tmp_path / "empty").write_text("")
    assert main([str(tmp_path / where)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("lockstep report: ")
    assert where in error
    assert len(error.splitlines()) == 1


def test_a_directory_that_cannot_be_written_is_a_clear_error(
    tmp_path: Path, made_up: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main([str(made_up.write(tmp_path / "run", [])), "-o", str(tmp_path / "file")]) == 2
    assert "file" in capsys.readouterr().err
