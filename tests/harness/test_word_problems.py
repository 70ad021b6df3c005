"""Word problems: right answers, splits that share nothing, the same problems everywhere."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter

import pytest

from harness.datasets.mixture import DRILL, drill, examples
from harness.datasets.names import NAMES, made_up_name, with_made_up_names
from harness.datasets.word_problems import FAMILIES, SPLITS, WordProblem, digest, fixed_split, fresh_problems, problems
from harness.datasets.word_problems.moves import MAX_VALUE

SAMPLES = 3000
EQUATION = re.compile(r"<<(\d+)([-+*/])(\d+)=(\d+)>>(\d+)")


def sample(split: str, seed: int = 1, n: int = SAMPLES, **options: bool) -> list[WordProblem]:
    return list(itertools.islice(problems(seed, split, **options), n))


@pytest.fixture(scope="module")
def by_split() -> dict[str, list[WordProblem]]:
    return {split: sample(split) for split in SPLITS}


def check_equations(answer: str) -> list[int]:
    """Every line but the last holds one true equation; gives their results."""
    *lines, last = answer.split("\n")
    results = []
    for line in lines:
        ((left, sign, right, result, repeated),) = EQUATION.findall(line)
        a, b = int(left), int(right)
        assert result == repeated
        assert {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[sign] == int(result)
        assert max(a, b, int(result)) <= MAX_VALUE
        results.append(int(result))
    assert last == f"#### {results[-1]}"
    return results


@pytest.mark.parametrize("split", SPLITS)
def test_answers_are_right_and_follow_from_the_question(by_split: dict[str, list[WordProblem]], split: str) -> None:
    for problem in by_split[split]:
        results = check_equations(problem.answer)
        assert (problem.value, problem.num_steps) == (results[-1], len(results))
        assert 2 <= problem.num_steps <= 6
        # Every number of the worked answer was told, calculated, or is the divisor that a fraction names.
        known = {int(number) for number in re.findall(r"\d+", problem.question)} | set(results) | {2, 3, 4, 5, 10}
        assert {int(number) for left, _, right, *_ in EQUATION.findall(problem.answer) for number in (left, right)} <= known
        assert "{" not in problem.question + problem.answer


def test_there_are_enough_families_and_each_is_drawn(by_split: dict[str, list[WordProblem]]) -> None:
    assert len(FAMILIES) >= 25
    for made in by_split.values():
        assert {problem.family for problem in made} == set(FAMILIES)


@pytest.mark.parametrize("split", SPLITS)
def test_the_answer_speaks_of_people_that_the_question_names(by_split: dict[str, list[WordProblem]], split: str) -> None:
    known = {name.text for name in NAMES[split]}
    for problem in by_split[split]:
        named = known & set(re.findall(r"[A-Z][a-z]+", problem.question))
        assert known & set(re.findall(r"[A-Z][a-z]+", problem.answer)) <= named
        if re.search(r"\b([Ss]he|[Hh]e|[Hh]er|[Hh]is|[Hh]im)\b", problem.question + problem.answer):
            assert named


def test_splits_share_no_names(by_split: dict[str, list[WordProblem]]) -> None:
    for split, made in by_split.items():
        names = {name for problem in made for name in problem.names}
        assert names <= {name.text for name in NAMES[split]}
        others = {name.text for other in SPLITS if other != split for name in NAMES[other]}
        assert not names & others


def test_held_out_combinations_are_in_one_split_only() -> None:
    seen = {problem.combination for problem in sample("train", n=8000)}
    held = {split: {problem.combination for problem in sample(split, held_out=True)} for split in ("validation", "test")}
    assert all(len(combinations) > 300 for combinations in held.values())
    assert not seen & (held["validation"] | held["test"])
    assert not held["validation"] & held["test"]


def test_a_part_of_the_problems_has_a_number_that_does_not_matter(by_split: dict[str, list[WordProblem]]) -> None:
    def has_spare_number(problem: WordProblem) -> bool:
        used = {number for left, _, right, *_ in EQUATION.findall(problem.answer) for number in (left, right)}
        return bool(set(re.findall(r"\d+(?!%)\b", problem.question)) - used)

    share = sum(map(has_spare_number, by_split["train"])) / SAMPLES
    assert 0.1 < share < 0.3


def test_the_fixed_split_is_regenerated_and_balanced() -> None:
    made = fixed_split()
    assert len({problem.question for problem in made}) == len(made) == 1000
    assert Counter(problem.held_out for problem in made) == {True: 500, False: 500}
    assert Counter(problem.held_out for problem in made[:400]) == {True: 200, False: 200}
    assert fresh_problems(7, 50) == fresh_problems(7, 50)
    assert not {problem.question for problem in fresh_problems(7, 1000)} & {problem.question for problem in made}


def test_another_generator_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed_split.cache_clear()
    monkeypatch.setattr("harness.datasets.word_problems.frozen.SEED", 1)
    with pytest.raises(RuntimeError, match="no longer makes the fixed test split"):
        fixed_split()
    monkeypatch.undo()
    assert digest(fixed_split())


def test_seeds_differ_and_repeat() -> None:
    assert sample("train", seed=1, n=20) == sample("train", seed=1, n=20)
    assert sample("train", seed=1, n=20) != sample("train", seed=2, n=20)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, "dev"), "train, validation, test"),
        ((-1, "test"), "from 0 on"),
        (("1", "test"), "from 0 on"),
        ((True, "test"), "from 0 on"),
    ],
)
def test_bad_seed_or_split(arguments: tuple[int, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        problems(*arguments)


def test_training_has_no_held_out_combinations() -> None:
    with pytest.raises(ValueError, match="no held-out combinations"):
        problems(0, "train", held_out=True)
    with pytest.raises(ValueError, match="at least one"):
        fresh_problems(0, 0)


def test_drills_are_right() -> None:
    rng = random.Random(3)
    for _ in range(SAMPLES):
        made = drill(rng)
        check_equations(made.answer)
        assert made.category == DRILL


def test_the_mixture_has_every_category_and_repeats() -> None:
    first, second = ([*itertools.islice(examples(random.Random(5), 0.5), 2000)] for _ in range(2))
    assert first == second
    shares = Counter(example.category for example in first)
    assert {"math", DRILL, "repetition", "copy", "edit", "series", "json", "position"} == set(shares)
    assert 0.55 < shares["math"] / 2000 < 0.7


def test_made_up_names_are_nobodys_and_stand_wherever_the_old_one_stood() -> None:
    rng = random.Random(11)
    known = {name.text for pool in NAMES.values() for name in pool}
    assert not {made_up_name(rng) for _ in range(SAMPLES)} & known
    for problem in sample("train", n=300):
        before = problem.example
        after = with_made_up_names(rng, before)
        names = {word for word in re.findall(r"[A-Z][a-z]+", before.prompt + before.answer) if word in known}
        assert not names & set(re.findall(r"[A-Z][a-z]+", after.prompt + after.answer))
        assert check_equations(after.answer)[-1] == problem.value
        assert (after == before) == (not names)


def test_made_up_names_come_late_in_training() -> None:
    known = {name.text for name in NAMES["train"]}

    def share(phase: float) -> float:
        drawn = [e for e in itertools.islice(examples(random.Random(6), phase), 2000) if e.category == "copy"]
        return sum(not known & set(re.findall(r"[A-Z][a-z]+", e.prompt)) for e in drawn) / len(drawn)

    assert share(0.07) == 0  # where the tokenizer's text is taken from
    assert 0.15 < share(0.5) < 0.45
