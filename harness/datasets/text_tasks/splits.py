"""Which split a task belongs to: a stable hash of its content decides, whatever the phrasing of the prompt."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import NamedTuple

from harness.datasets.example import Example
from harness.datasets.names import NAMES, Name

__all__ = ["Draft", "in_split", "split_of"]

_SPLIT_OF_EIGHTH = ("test", "validation", *["train"] * 6)


class Draft(NamedTuple):
    """An example before its split is known. Drafts of equal `content` ask about the same thing."""

    content: str
    prompt: str
    answer: str


def split_of(content: str) -> str:
    return _SPLIT_OF_EIGHTH[hashlib.blake2b(content.encode(), digest_size=1).digest()[0] % 8]


def in_split(
    category: str, draw: Callable[[random.Random, tuple[Name, ...]], Draft]
) -> Callable[[random.Random, str], Example]:
    """Makes a generator of examples from a generator of drafts, by drawing until the content falls in the split."""

    def task(rng: random.Random, split: str) -> Example:
        if split not in NAMES:
            raise ValueError(f"The splits are train, validation and test, not {split!r}.")
        names = NAMES[split]
        while True:
            draft = draw(rng, names)
            if split_of(draft.content) == split:
                return Example(draft.prompt, draft.answer, category)

    return task
