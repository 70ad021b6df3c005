"""Grading: strict extraction, floors, and comparisons answer by answer."""

from __future__ import annotations

import pytest

from harness.accuracy import (
    Accuracy,
    assert_at_least,
    assert_same_answers,
    extract_answer,
    judge,
    shots,
)
from harness.datasets.word_problems import fixed_split
from harness.errors import AccuracyError, FeatureNotExercisedError

ASKED = fixed_split()[:20]
FLOOR = {"value": 0.9, "n": 1000, "origin": "measured here"}


def graded(num_wrong: int = 0, label: str = "a", shift: int = 1) -> Accuracy:
    """The worked answers, the first `num_wrong` of them off by `shift`."""
    texts = [problem.answer if i >= num_wrong else f"#### {problem.value + shift}" for i, problem in enumerate(ASKED)]
    return judge(label, ASKED, texts)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("She has <<4+3=7>>7 pens.\n#### 7", 7),
        ("#### 1,234", 1234),
        ("#### -5", -5),
        ("#### 7\n#### 8", 7),
        ("She has 7 pens.", None),
        ("The answer is #### 7", None),
        ("#### 7 pens", None),
        ("#### seven", None),
        ("####7", None),
        ("", None),
    ],
)
def test_only_a_line_of_its_own_counts(text: str, value: int | None) -> None:
    assert extract_answer(text) == value


def test_the_worked_answers_are_all_right() -> None:
    accuracy = graded()
    assert (accuracy.num_right, accuracy.n, accuracy.rate) == (20, 20, 1.0)
    assert sum(part.n for part in accuracy.by_steps().values()) == 20
    assert accuracy.where("held out", held_out=True).n == 10


def test_a_missing_text_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        judge("short", ASKED, ["#### 1"] * 19)


def test_below_the_floor_names_what_was_wrong() -> None:
    assert_at_least(graded(2), FLOOR, case="fine")
    with pytest.raises(AccuracyError, match=r"17 of 20 right, 85.0%.*the floor is 90.0% \(n = 1000; measured here\)") as raised:
        assert_at_least(graded(3), FLOOR, case="low")
    wrong = raised.value.evidence["wrong"]
    assert [item["index"] for item in wrong] == [0, 1, 2]
    assert wrong[0]["answered"] == wrong[0]["right"] + 1


def test_discordant_answers_are_listed_also_where_both_are_wrong() -> None:
    same = assert_same_answers(graded(1), graded(1), case="same")
    assert (same.both, same.neither, same.only_first, same.only_second) == (19, 1, 0, 0)
    with pytest.raises(AccuracyError, match="2 of 20 problems differently") as raised:
        assert_same_answers(graded(0), graded(2, label="b"), case="two")
    assert [item["index"] for item in raised.value.evidence["discordant"]] == [0, 1]
    with pytest.raises(AccuracyError, match="1 of 20"):
        assert_same_answers(graded(1), graded(1, shift=2), case="both wrong, differently")


def test_nothing_compared_is_a_failure() -> None:
    empty = Accuracy("none", ())
    with pytest.raises(FeatureNotExercisedError):
        assert_same_answers(empty, empty, case="empty")
    with pytest.raises(FeatureNotExercisedError):
        assert_at_least(empty, FLOOR, case="empty")
    with pytest.raises(ValueError, match="different problems"):
        assert_same_answers(graded(), Accuracy("other", graded().answers[::-1]), case="order")


def test_shots_are_training_problems() -> None:
    assert len({problem.question for problem in shots(3)} - {problem.question for problem in ASKED}) == 3
