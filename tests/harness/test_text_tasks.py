"""The generated text tasks: every answer is right by a computation of the test's own, and no prompt is in two splits."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable

import pytest

from harness.datasets.example import Example
from harness.datasets.names import NAMES
from harness.datasets.text_tasks import TEXT_TASKS, WEIGHTS, text_task

SPLITS = ("train", "validation", "test")
NUM_SAMPLES = 2000


def samples(category: str, split: str, count: int = NUM_SAMPLES, seed: int = 0) -> list[Example]:
    rng = random.Random(f"{seed} {category} {split}")
    return [TEXT_TASKS[category](rng, split) for _ in range(count)]


def is_right_repetition(prompt: str, answer: str) -> None:
    match = re.fullmatch(r"(?:Write|Repeat|Say) (?:the (?:word|phrase) )?(.+) (\d+) times\.", prompt)
    assert match
    phrase, times = match[1], int(match[2])
    assert (20 if " " not in phrase else 10) <= times <= 60
    lines = answer.split("\n")
    totals = [int(line[line.index("(") + 1 : -1]) for line in lines]
    assert totals == [*range(10, times, 10), times]
    words = [word for word in answer.split() if not word.startswith("(")]
    assert words == phrase.split() * times
    assert len(words) + 4 * len(lines) <= 130


def is_right_copy(prompt: str, answer: str) -> None:
    assert prompt.endswith(f": {answer}")
    assert ":" not in answer
    assert 12 <= len(answer.split()) <= 45
    assert 1 <= answer.count(".") <= 3


def is_right_edit(prompt: str, answer: str) -> None:
    instruction, text = prompt.split(": ")
    patterns = (
        r"Replace (?P<old>\w+) by (?P<new>\w+)",
        r"Copy this with (?P<new>\w+) for each (?P<old>\w+)",
        r"Write (?P<new>\w+), not (?P<old>\w+)",
        r"Change the (?:name|number) (?P<old>\w+) to (?P<new>\w+)",
        r"Copy this, but (?:call|make) (?P<old>\w+) (?:a )?(?P<new>\w+)",
    )
    match = next(match for pattern in patterns if (match := re.fullmatch(pattern, instruction)))
    assert re.search(rf"\b{match['old']}\b", text)
    assert not re.search(rf"\b{match['new']}\b", text)
    assert answer == re.sub(rf"\b{match['old']}\b", match["new"], text)


def is_right_series(prompt: str, answer: str) -> None:
    numbers = [int(number) for number in re.findall(r"\d+", prompt)]
    terms = [int(term) for term in answer.split(", ")]
    if "..." in prompt:
        *given, last = numbers
        assert len(given) == 3
        terms = given + terms
    else:
        first, last, step = numbers
        assert terms[0] == first
        assert abs(terms[1] - terms[0]) == step
        assert ("down" in prompt or "subtracting" in prompt) == (last < first)
    assert len({b - a for a, b in itertools.pairwise(terms)}) == 1
    assert terms[-1] == last
    assert 6 <= len(terms) <= 24
    assert all(0 <= term <= 500 for term in terms)


def described(value: object) -> str:
    """The description of a value, from the value."""
    match value:
        case bool():
            return f"(boolean) {str(value).lower()}"
        case int():
            return f"(integer) {value}"
        case str():
            return f"(string) {value}"
        case list():
            return f"(list of {'strings' if isinstance(value[0], str) else 'integers'}) {', '.join(map(str, value))}"
        case dict():
            return "(object) with " + " and ".join(f"{key} {described(item)}" for key, item in value.items())
        case _:
            raise AssertionError(f"{value!r} has no description")


def is_right_json(prompt: str, answer: str) -> None:
    value = json.loads(answer)
    assert 2 <= len(value) <= 5
    assert answer == json.dumps(value, separators=(",", ":"))
    fields = "; ".join(f"{key} {described(item)}" for key, item in value.items())
    starts = ("Give a JSON object with ", "Write a JSON object with these fields: ", "Make JSON of this: ")
    assert prompt in [f"{start}{fields}." for start in starts]


def is_right_position(prompt: str, answer: str) -> None:
    question, text = prompt.split(": ")
    words = text.split()
    assert 5 <= len(words) <= 14
    assert len(set(words)) == len(words)
    if match := re.search(r"(\d+)(st|nd|rd|th) word", question):
        assert {"1": "st", "2": "nd", "3": "rd"}.get(match[1], "th") == match[2]
        assert text.split(" ", int(match[1]))[int(match[1]) - 1] == answer
    elif "first" in question:
        assert text.startswith(f"{answer} ")
    elif "last" in question:
        assert text.endswith(f" {answer}")
    elif match := re.match(r"How many words (?:come after|follow) (\w+) in", question):
        assert f" {text} ".partition(f" {match[1]} ")[2].count(" ") == int(answer)
    elif match := re.search(r"before (\w+) in", question):
        assert f" {answer} {match[1]} " in f" {text} "
    elif match := re.search(r"after (\w+) in", question):
        assert f" {match[1]} {answer} " in f" {text} "
    else:
        assert "reverse" in question or "backwards" in question
        assert answer.split()[::-1] == words
        assert len(words) <= 8


IS_RIGHT: dict[str, Callable[[str, str], None]] = {
    "repetition": is_right_repetition,
    "copy": is_right_copy,
    "edit": is_right_edit,
    "series": is_right_series,
    "json": is_right_json,
    "position": is_right_position,
}
assert set(IS_RIGHT) == set(TEXT_TASKS) == set(WEIGHTS)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("category", TEXT_TASKS)
def test_answers_are_right(category: str, split: str) -> None:
    for example in samples(category, split, 1000):
        IS_RIGHT[category](example.prompt, example.answer)
        assert example.category == category
        assert (example.prompt + example.answer).isascii()


@pytest.mark.parametrize("category", TEXT_TASKS)
def test_one_prompt_has_one_answer_and_one_split(category: str) -> None:
    answers = {split: {example.prompt: example.answer for example in samples(category, split)} for split in SPLITS}
    for a, b in itertools.combinations(SPLITS, 2):
        assert answers[a].keys().isdisjoint(answers[b])
    for split, known in answers.items():
        assert len(known) > 400  # the test split of repetitions has only so many
        again = samples(category, split, 300, seed=1)
        assert all(known.get(example.prompt, example.answer) == example.answer for example in again)


@pytest.mark.parametrize("split", SPLITS)
def test_text_task_is_deterministic_and_draws_every_category(split: str) -> None:
    first, second = ([text_task(rng, split) for _ in range(300)] for rng in (random.Random(5), random.Random(5)))
    assert first == second
    assert {example.category for example in first} == set(TEXT_TASKS)


def test_one_draw_is_pinned() -> None:
    """Data must not change between Python processes or versions without being noticed."""
    prompt = "How many words come after moon in: cloud train goat moon shop"
    assert text_task(random.Random(0), "test") == Example(prompt, "1", "position")


def test_names_of_a_split_are_in_no_other() -> None:
    texts = [name.text for split in SPLITS for name in NAMES[split]]
    assert len(texts) == len(set(texts))
    assert [len(NAMES[split]) for split in SPLITS] == [120, 24, 40]
    for category in ("copy", "edit", "json"):
        words = {word for example in samples(category, "test", 500) for word in re.findall(r"\w+", example.prompt)}
        assert words.isdisjoint(name.text for split in ("train", "validation") for name in NAMES[split])


@pytest.mark.parametrize("category", [*TEXT_TASKS, None])
def test_unknown_split_names_the_three(category: str | None) -> None:
    task = TEXT_TASKS[category] if category else text_task
    with pytest.raises(ValueError, match=r"train, validation and test, not 'dev'"):
        task(random.Random(0), "dev")
