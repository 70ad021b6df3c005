"""Grade-school word problems of our own: generated, seeded, with worked answers and splits that share nothing."""

from harness.datasets.word_problems.frozen import digest, fixed_split, fresh_problems
from harness.datasets.word_problems.generator import (
    CATEGORY,
    FAMILIES,
    SPLITS,
    WordProblem,
    make_problem,
    problems,
    split_of_combination,
)

__all__ = [
    "CATEGORY",
    "FAMILIES",
    "SPLITS",
    "WordProblem",
    "digest",
    "fixed_split",
    "fresh_problems",
    "make_problem",
    "problems",
    "split_of_combination",
]
