"""Files of known defects: what is read from them, which cases an entry covers, and what is said about a bad one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from harness.errors import LogprobMismatchError, TokenMismatchError
from harness.known_defects import DEFECTS_FILE, Case, Defect, DefectsFileError, load_defects
from reports import TestRecord

Load = Callable[..., tuple[Defect, ...]]
FIELDS = {
    "id": '"vllm-1"',
    "engine": '"vllm"',
    "versions": '">=0.10,<0.12"',
    "suite": '"test_async"',
    "raises": '"TokenMismatchError"',
    "reason": '"Drafts are counted twice."',
    "link": '"https://example.org/1"',
    "since": "2026-01-15",
    "expires": "2026-07-15",
}


def entry(**changes: str | None) -> str:
    """An entry of a file; a field that is None is left out."""
    fields = {name: value for name, value in (FIELDS | changes).items() if value is not None}
    return "[[defect]]\n" + "".join(f"{name} = {value}\n" for name, value in fields.items())


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(*parts: str) -> tuple[Defect, ...]:
        path = tmp_path / "defects.toml"
        path.write_text("\n".join(parts), encoding="utf-8")
        return load_defects(path)

    return load


def case(suite: str = "test_async", test: str = "test_equal", case_id: str = "ngram-2", **parameters: str) -> Case:
    return Case(suite, test, case_id, parameters)


def test_lockstep_has_no_known_defect() -> None:
    assert load_defects(DEFECTS_FILE) == ()


def test_the_example_of_the_shipped_file_is_sound(load: Load) -> None:
    """The commented example, uncommented."""
    lines = DEFECTS_FILE.read_text(encoding="utf-8").split("\n")
    start = lines.index("# [[defect]]")
    example = [line.removeprefix("# ") for line in lines[start:] if " = " in line or "[" in line]
    (defect,) = load(*example)
    assert defect.cases == ("*-ngram-*", "*-eagle-*")
    assert defect.parameters == (("max_num_seqs", ("1", "2")),)


def test_every_field_is_read(load: Load) -> None:
    (defect,) = load(
        "# a comment",
        entry(
            test='"test_equal"',
            cases='"ngram-*"',
            raises='["TokenMismatchError", "LogprobMismatchError"]',
            parameters='{ depth = [1, "two"], greedy = true }',
        ),
    )
    assert (defect.id, defect.engine, defect.suite, defect.test) == ("vllm-1", "vllm", "test_async", "test_equal")
    assert defect.cases == ("ngram-*",)
    assert defect.raises == (TokenMismatchError, LogprobMismatchError)
    assert defect.parameters == (("depth", ("1", "two")), ("greedy", ("True",)))
    assert (defect.since, defect.expires) == (date(2026, 1, 15), date(2026, 7, 15))
    assert defect.source.endswith("defects.toml, line 2")
    assert defect.excuse == "known defect vllm-1: Drafts are counted twice. (https://example.org/1)"


@pytest.mark.parametrize(
    ("versions", "version", "concerned"),
    [
        (">=0.10,<0.12", "0.10", True),
        (">=0.10,<0.12", "0.11.2+cu128", True),
        (">=0.10,<0.12", "0.11.1rc2.dev3+g12ab", True),
        (">=0.10,<0.12", "0.12.0", False),
        (">=0.10,<0.12", "0.9.9", False),
        ("*", "3.0", True),
        ("*", "3.0.dev1", True),
        ("*", "unknown", True),
        (">=0", "unknown", False),
    ],
)
def test_versions(load: Load, versions: str, version: str, concerned: bool) -> None:
    (defect,) = load(entry(versions=f'"{versions}"'))
    assert defect.concerns("vllm", version) is concerned
    assert not defect.concerns("lockstep", version)


@pytest.mark.parametrize(
    ("narrowing", "other", "covered"),
    [
        ({}, case(), True),
        ({}, case(suite="test_golden"), False),
        ({"test": '"test_equal"'}, case(), True),
        ({"test": '"test_equa"'}, case(), False),
        ({"cases": '"ngram-*"'}, case(), True),
        ({"cases": '["eagle-*", "*-2"]'}, case(), True),
        ({"cases": '"ngram"'}, case(), False),
        ({"cases": '"NGRAM-*"'}, case(), False),
        ({"parameters": "{ depth = 2 }"}, case(depth="2", method="ngram"), True),
        ({"parameters": "{ depth = [1, 2] }"}, case(depth="2"), True),
        ({"parameters": "{ depth = 2, method = 'eagle' }"}, case(depth="2", method="ngram"), False),
        ({"parameters": "{ deep = 2 }"}, case(depth="2"), False),
        ({"parameters": "{}"}, case(), True),
    ],
)
def test_which_cases_are_covered(load: Load, narrowing: dict[str, str], other: Case, covered: bool) -> None:
    (defect,) = load(entry(**narrowing))
    assert defect.covers(other) is covered


def test_a_parameter_is_told_by_its_id_and_else_by_its_value() -> None:
    record = TestRecord(
        run_id="r",
        nodeid="suites/test_async.py::TestAll::test_equal[fast-2]",
        suite="test_async",
        test="TestAll::test_equal",
        case_id="fast-2",
        outcome="passed",
        parameters={"config": {"async": True}, "depth": 2},
        parameter_ids={"config": "fast"},
    )
    assert Case.of_record(record) == case(case_id="fast-2", config="fast", depth="2")


def test_the_day_of_expiry_is_the_first_expired_one(load: Load) -> None:
    (defect,) = load(entry())
    assert not defect.is_expired(date(2026, 7, 14))
    assert defect.is_expired(date(2026, 7, 15))


BAD_ENTRIES = [
    ({"reasons": '"x"'}, r"unknown field 'reasons'\. Did you mean 'reason'\?"),
    ({"zzz": '"x"'}, r"unknown field 'zzz'\. Known: cases, engine"),
    ({"raises": '"TokenMissmatchError"'}, r"unknown exception 'TokenMissmatchError'\. Did you mean 'TokenMismatchError'\?"),
    ({"raises": '["TokenMismatchError", "AssertionError"]'}, r"unknown exception 'AssertionError'"),
    ({"raises": '"ValidationError"'}, r"would excuse every kind of failure"),
    ({"raises": "[]"}, r"raises = \[\]: write one text or a list"),
    ({"versions": '"0.10"'}, r"versions = '0\.10' is not a PEP 440 specifier; write one such as"),
    ({"versions": '">=0.10, <"'}, r"is not a PEP 440 specifier"),
    ({"versions": '""'}, r"versions = '' is not a text"),
    ({"versions": "0.10"}, r"versions = 0\.1 is not a text; write it in quotes"),
    ({"since": '"2026-01-15"'}, r"since = '2026-01-15' is not a date; write it without quotes and time"),
    ({"expires": "2026-07-15T10:00:00"}, r"expires = '2026-07-15 10:00:00' is not a date"),
    ({"expires": "2026-01-14"}, r"expires \(2026-01-14\) does not lie after since \(2026-01-15\); write a later day"),
    ({"expires": "2026-01-15"}, r"does not lie after since"),
    ({"expires": None, "link": None}, r"missing: link, expires; an entry needs id, engine"),
    ({"id": '"a b"'}, r"id = 'a b': write letters, digits"),
    ({"id": "3"}, r"id = 3 is not a text"),
    ({"suite": '"suites/test_async.py"'}, r"suite = .*: write the module's name, without directory and suffix"),
    ({"test": '"test_equal[ngram]"'}, r"test = .*: write the function's name, without its case"),
    ({"link": '"issue 3"'}, r"link = 'issue 3': write an address"),
    ({"reason": '" "'}, r"reason = ' ' is not a text"),
    ({"cases": '""'}, r"cases = '': write one text or a list of them, none of them empty"),
    ({"cases": '["a*", ""]'}, r"none of them empty"),
    ({"cases": "[]"}, r"none of them empty"),
    ({"parameters": "3"}, r"parameters is not a table; write parameters = \{ name = value \}"),
    ({"parameters": "{ depth = [] }"}, r"parameters\.depth = \[\]: write one value or a list"),
    ({"parameters": "{ depth = { a = 1 } }"}, r"parameters\.depth = .*: write one value or a list"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_ENTRIES, ids=lambda value: None if isinstance(value, dict) else value[:30])
def test_a_bad_entry_is_named_with_what_to_write(load: Load, changes: dict[str, str | None], message: str) -> None:
    with pytest.raises(DefectsFileError, match=message) as caught:
        load("# a comment", entry(id='"fine"'), entry(**changes))
    line = 2 + len(FIELDS) + 2
    name = changes.get("id", FIELDS["id"]).strip('"')  # type: ignore[union-attr]
    where, _, _ = str(caught.value).partition(": entry 2")
    assert where.endswith(f"defects.toml, line {line}"), str(caught.value)
    assert name in str(caught.value)


def test_an_id_is_given_once(load: Load) -> None:
    with pytest.raises(
        DefectsFileError, match=r"line 12: entry 2 \('vllm-1'\): the id is taken by .*defects\.toml, line 1; give"
    ):
        load(entry(), entry())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[defects]]\n", r"defects\.toml: unknown key 'defects'\. Did you mean 'defect'\?"),
        ("[defect]\nid = 'x'\n", r"begin each entry with \[\[defect\]\]"),
        ("defect = 3\n", r"begin each entry with \[\[defect\]\]"),
        ("[[defect]]\nid = \n", r"defects\.toml: is not TOML: .*line 2"),
        ("[[defect]]\nid = 'x'\nsince = 2026-02-30\n", r"defects\.toml: is not TOML: .*line 3"),
    ],
)
def test_a_file_that_is_no_list_of_entries(load: Load, text: str, message: str) -> None:
    with pytest.raises(DefectsFileError, match=message):
        load(text)


def test_entries_whose_lines_cannot_be_told_are_still_named(load: Load) -> None:
    with pytest.raises(DefectsFileError, match=r"defects\.toml: entry 1 \('a'\): missing: engine"):
        load('defect = [{ id = "a" }]')


def test_a_header_inside_of_a_text_misleads_no_one(load: Load) -> None:
    first, second = load(entry(reason='"""one\n[[defect]]\n"""'), entry(id='"b"'))
    assert first.source == second.source
    assert first.source.endswith("defects.toml"), "no line rather than a wrong one"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DefectsFileError, match=r"none\.toml: No such file or directory; give a file"):
        load_defects(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    with pytest.raises(DefectsFileError, match=r"latin\.toml: is not UTF-8 text"):
        load_defects(tmp_path / "latin.toml")


def test_an_empty_file_is_an_empty_list(load: Load) -> None:
    assert load("") == ()
