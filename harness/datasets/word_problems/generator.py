"""Makes word problems from the families: a chain of moves, told in sentences, with a worked answer in GSM8K's style."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from harness.datasets.example import Example
from harness.datasets.names import NAMES, Name
from harness.datasets.word_problems.families_counting import COUNTING
from harness.datasets.word_problems.families_measuring import MEASURING
from harness.datasets.word_problems.moves import ARITHMETIC, OPENINGS, Family, Move, Opening, Step

__all__ = ["CATEGORY", "FAMILIES", "SPLITS", "WordProblem", "make_problem", "problems", "split_of_combination"]

CATEGORY = "math"
SPLITS = ("train", "validation", "test")
FAMILIES: dict[str, Family] = {family.name: family for family in (*COUNTING, *MEASURING)}
# Of a hundred combinations of operations, these belong to a split for good; the others are seen in training.
HELD_OUT = {"validation": range(8), "test": range(8, 20)}
NUM_EQUATIONS = {2: 22, 3: 26, 4: 24, 5: 16, 6: 12}  # equations of an answer: weight
ASIDE_RATE = 0.2  # problems with a number that does not matter
RARE_STATE_RATE = 0.1  # answers' lines in the rarer of the two forms: few, so that the argmax has a margin
# How the second line of an answer to one event begins.
CARRIED_ON = {
    "add_groups": "With that, ",
    "sub_groups": "Without that, ",
    "add_part": "With that, ",
    "sub_part": "Without that, ",
}
OBJECT = {"she": "her", "he": "him"}
POSSESSIVE = {"she": "her", "he": "his"}


@dataclass(frozen=True)
class WordProblem:
    """`answer` ends with a line `#### N`; `combination` names the family and its operations in order."""

    question: str
    answer: str
    value: int
    family: str
    combination: str
    num_steps: int  # equations of the answer
    held_out: bool  # this combination is in no training problem
    names: tuple[str, ...]

    @property
    def example(self) -> Example:
        return Example(self.question, self.answer, CATEGORY)


def split_of_combination(combination: str) -> str:
    """The only split in which this combination occurs, or `"train"` for those that training sees (and the others may use)."""
    bucket = zlib.crc32(combination.encode()) % 100
    return next((split for split, buckets in HELD_OUT.items() if bucket in buckets), "train")


def problems(seed: int, split: str, *, held_out: bool | None = None) -> Iterator[WordProblem]:
    """Endless problems of a split. `held_out`: only with (or only without) combinations that training never saw.

    Raises `ValueError` for a split that does not exist, a negative seed, or held-out combinations asked of `train`.
    """
    if split not in SPLITS:
        raise ValueError(f"there is no split {split!r}; the splits are {', '.join(SPLITS)}")
    if type(seed) is not int or seed < 0:
        raise ValueError(f"a seed is a whole number from 0 on, not {seed!r}")
    if split == "train" and held_out:
        raise ValueError("the split train has no held-out combinations; ask validation or test")
    return _problems(random.Random(f"word problems/{split}/{seed}"), split, held_out)


def _problems(rng: random.Random, split: str, held_out: bool | None) -> Iterator[WordProblem]:
    while True:
        yield make_problem(rng, split, held_out=held_out)


def make_problem(
    rng: random.Random, split: str, *, held_out: bool | None = False, num_equations: int | None = None
) -> WordProblem:
    """One problem. `num_equations` 1 to 6; drawn where it is None."""
    wanted = num_equations or rng.choices(tuple(NUM_EQUATIONS), tuple(NUM_EQUATIONS.values()))[0]
    while True:
        family = rng.choice(tuple(FAMILIES.values()))
        opening, moves = _plot(rng, family, wanted)
        combination = f"{family.name}: {opening.kind} " + " ".join(move.name for move in moves)
        home = split_of_combination(combination)
        if home not in ("train", split) or (held_out is not None and (home != "train") != held_out):
            continue
        steps = _numbers(rng, opening, moves)
        if steps is not None:
            return _tell(rng, family, opening, moves, steps, split, combination, home != "train")


def _plot(rng: random.Random, family: Family, wanted: int) -> tuple[Opening, tuple[Move, ...]]:
    """An opening and moves that give the wanted number of equations; a move does not follow itself."""
    while True:
        opening = rng.choice(family.openings)
        left = wanted - (opening.kind != "given")
        moves: list[Move] = []
        if left > 0 and rng.random() < 0.5:
            moves.append(rng.choice(family.endings))
            left -= _num_equations(moves[-1])
        while left > 0:
            move = rng.choice(family.moves)
            if not moves or move is not moves[0]:
                moves.insert(0, move)
                left -= _num_equations(move)
        if left == 0:
            return opening, tuple(moves)


def _num_equations(move: Move) -> int:
    return 1 if move.kind in ("add", "sub", "mul", "div", "goal") else 2


def _numbers(rng: random.Random, opening: Opening, moves: tuple[Move, ...]) -> list[Step] | None:
    """The opening's step, then one for each move; None if no numbers were found."""
    for _ in range(20):
        steps = [OPENINGS[opening.kind](rng)]
        for move in moves:
            step = ARITHMETIC[move.kind](rng, steps[-1].value)
            if step is None:
                break
            steps.append(step)
        else:
            return steps
    return None


def _tell(
    rng: random.Random,
    family: Family,
    opening: Opening,
    moves: tuple[Move, ...],
    steps: list[Step],
    split: str,
    combination: str,
    held_out: bool,
) -> WordProblem:
    person, other = rng.sample(NAMES[split], 2)
    words = _pronouns(person) | {"O": other.text} | {key: rng.choice(choice) for key, choice in family.words.items()}
    sentences = [_fill(rng.choice(opening.texts), words | steps[0].numbers)]
    lines = [_line("", opening.aux, words, equation) for equation in steps[0].equations]
    for move, step in zip(moves, steps[1:], strict=True):
        event = _fill(rng.choice(move.texts), words | step.numbers)
        sentences.append(event)
        state = move.state or family.state[rng.random() < RARE_STATE_RATE]
        # The answer's line says first what happened: a small model that must know which event is next can copy it.
        event_first = event.split(".")[0] + ", so "
        if move.aux:
            lines.append(_line(event_first, move.aux, words, step.equations[0]))
            event_first = CARRIED_ON.get(move.kind, "")
        lines.append(_line(event_first, state, words, step.equations[-1]))
    if rng.random() < ASIDE_RATE:
        aside = _fill(rng.choice(family.asides), words | {"k": str(rng.randint(2, 60))})
        sentences.insert(rng.randint(1, len(sentences)), aside)
    sentences.append(_fill((moves[-1].ask if moves else "") or family.ask, words))
    value = steps[-1].value
    question = " ".join(sentences)
    return WordProblem(
        question,
        "\n".join([*lines, f"#### {value}"]),
        value,
        family.name,
        combination,
        len(lines),
        held_out,
        tuple(name.text for name in (person, other) if re.search(rf"\b{name.text}\b", question)),
    )


def _pronouns(person: Name) -> dict[str, str]:
    pronoun = person.pronoun
    return {
        "N": person.text,
        "p": pronoun,
        "P": pronoun.capitalize(),
        "P2": OBJECT[pronoun],
        "q": POSSESSIVE[pronoun],
    }


def _fill(template: str, words: dict[str, str]) -> str:
    text = template.format_map(words)
    return text[0].upper() + text[1:]


def _line(before: str, template: str, words: dict[str, str], equation: str) -> str:
    """A line of the answer; behind the words `before`, the template's own beginning becomes small."""
    words = words | {"eq": _annotated(equation)}
    if not before:
        return _fill(template, words)
    small = template if template.startswith("{") else template[0].lower() + template[1:]
    return before + small.format_map(words | {"P": words["p"]})


def _annotated(equation: str) -> str:
    for sign, apply in (("+", int.__add__), ("-", int.__sub__), ("*", int.__mul__), ("/", int.__floordiv__)):
        if sign in equation:
            left, right = equation.split(sign)
            result = apply(int(left), int(right))
            return f"<<{equation}={result}>>{result}"
    raise ValueError(f"{equation!r} is no equation")
