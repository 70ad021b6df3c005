"""The fixed test split: the same 1,000 problems on every machine, half of them with combinations that training never saw."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict

from harness.datasets.word_problems.generator import WordProblem, problems

__all__ = ["SEED", "SHA256", "SIZE", "digest", "fixed_split", "fresh_problems"]

SIZE = 1000
SEED = 0
SHA256 = "2e9ce957c6c84b9f183477fca3fb48e24ab49b27e5d8b37732da6795c1323823"


@functools.cache
def fixed_split() -> tuple[WordProblem, ...]:
    """The fixed test split; seen and held-out combinations alternate, so any even prefix is balanced too.

    Raises `RuntimeError` if the generator no longer makes the problems that the hash in this file names: their accuracy floors
    would mean something else.
    """
    made = fresh_problems(SEED, SIZE)
    found = digest(made)
    if found != SHA256:
        raise RuntimeError(
            f"the generator no longer makes the fixed test split (sha256 {found}, expected {SHA256}). "
            "If the change is meant, train the zoo anew, measure the floors and put the new hash into frozen.py."
        )
    return made


def fresh_problems(seed: int, size: int) -> tuple[WordProblem, ...]:
    """`size` test problems of another seed, made as the fixed ones are; no question occurs twice."""
    if size < 1:
        raise ValueError(f"a set has at least one problem, not {size}")
    streams = (problems(seed, "test", held_out=False), problems(seed + 1_000_000, "test", held_out=True))
    chosen: dict[str, WordProblem] = {}
    while len(chosen) < size:
        problem = next(streams[len(chosen) % 2])
        chosen.setdefault(problem.question, problem)
    return tuple(chosen.values())


def digest(made: Sequence[WordProblem]) -> str:
    """Sha256 of everything in the problems, as JSON lines."""
    lines = (json.dumps(asdict(problem), sort_keys=True) for problem in made)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
