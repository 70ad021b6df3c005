"""What the zoo's models are trained on: word problems above all, then text tasks and bare arithmetic."""

from __future__ import annotations

import random
from collections.abc import Iterator

from harness.datasets.example import Example
from harness.datasets.names import with_made_up_names
from harness.datasets.text_tasks import text_task
from harness.datasets.word_problems import make_problem

__all__ = ["DRILL", "drill", "examples"]

DRILL = "drill"
WARM_UP = 0.048  # of the training: more bare arithmetic and problems of one step
# From there on, some examples have names that nobody has: a name of several tokens must be copied, not recognised.
MADE_UP_FROM = 0.072
MADE_UP_SHARE = 0.3
# From there on, more of what was still wrong in the end: nine of ten wrong answers were a wrong result of a right equation.
LATE = 0.6
LATE_MADE_UP_SHARE = 0.5
# (drills, problems of one step, problems, text tasks)
WARM_UP_WEIGHTS = (20, 25, 35, 20)
WEIGHTS = (6, 4, 62, 28)
LATE_WEIGHTS = (14, 4, 54, 28)


def examples(rng: random.Random, phase: float) -> Iterator[Example]:
    """Endless training examples; `phase` is the fraction of the training that is done (0 to 1)."""
    weights = WARM_UP_WEIGHTS if phase < WARM_UP else WEIGHTS if phase < LATE else LATE_WEIGHTS
    made_up_share = 0.0 if phase < MADE_UP_FROM else MADE_UP_SHARE if phase < LATE else LATE_MADE_UP_SHARE
    while True:
        example = _example(rng, rng.choices(range(4), weights)[0])
        if made_up_share and rng.random() < made_up_share:
            example = with_made_up_names(rng, example)
        yield example


def _example(rng: random.Random, kind: int) -> Example:
    if kind == 0:
        return drill(rng)
    if kind == 1:
        return make_problem(rng, "train", num_equations=1).example
    return make_problem(rng, "train").example if kind == 2 else text_task(rng, "train")


def drill(rng: random.Random) -> Example:
    """One equation with numbers up to 500, all four operations as often, division exact."""
    sign = rng.choice("+-*/")
    if sign in "+-":
        left, right = sorted((rng.randint(1, 250), rng.randint(1, rng.choice((20, 250)))), reverse=True)
        if sign == "-" and rng.random() < 0.5:
            left += rng.randint(0, 250)
        result = left + right if sign == "+" else left - right
    else:
        left, right = rng.randint(2, rng.choice((12, 40, 250))), rng.randint(2, 12)
        left = min(left, 500 // right)
        result = left * right
        if sign == "/":
            left, result = result, left
    return Example(f"What is {left}{sign}{right}?", f"<<{left}{sign}{right}={result}>>{result}\n#### {result}", DRILL)
