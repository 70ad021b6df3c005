"""Questions about a list of words whose answers depend on positions: a position id that is off by one gives another answer."""

from __future__ import annotations

import random

from harness.datasets.names import Name
from harness.datasets.text_tasks.splits import Draft
from harness.datasets.text_tasks.vocabulary import WORDS

__all__ = ["position"]

# The question comes before the list: while the model reads a word, it can know whether that is the one asked for.
PROMPTS = {
    "nth": ("What is the {nth} word of: {words}", "Give the {nth} word of this list: {words}"),
    "first": ("What is the first word of: {words}", "Give the first word of this list: {words}"),
    "last": ("What is the last word of: {words}", "Give the last word of this list: {words}"),
    "num_after": ("How many words come after {word} in: {words}", "How many words follow {word} in this list: {words}"),
    "before": ("Which word comes right before {word} in: {words}", "Give the word just before {word} in this list: {words}"),
    "after": ("Which word comes right after {word} in: {words}", "Give the word just after {word} in this list: {words}"),
    "reverse": ("Write the words in reverse order: {words}", "Write this list backwards: {words}"),
}
KINDS = tuple(PROMPTS)
WEIGHTS = (4, 1, 1, 3, 2, 2, 4)
MIN_WORDS, MAX_WORDS, MAX_REVERSED = 5, 14, 8
ORDINALS = tuple(f"{n}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(n, 'th') }" for n in range(1, MAX_WORDS + 1))


def position(rng: random.Random, names: tuple[Name, ...]) -> Draft:
    kind = rng.choices(KINDS, WEIGHTS)[0]
    words = rng.sample(WORDS, rng.randint(MIN_WORDS, MAX_REVERSED if kind == "reverse" else MAX_WORDS))
    index = rng.randrange(len(words))
    if kind == "before":
        index = max(index, 1)
    elif kind == "after":
        index = min(index, len(words) - 2)
    text = " ".join(words)
    prompt = rng.choice(PROMPTS[kind]).format(nth=ORDINALS[index], word=words[index], words=text)
    return Draft(text, prompt, _answer(kind, words, index))


def _answer(kind: str, words: list[str], index: int) -> str:
    match kind:
        case "nth":
            return words[index]
        case "first":
            return words[0]
        case "last":
            return words[-1]
        case "num_after":
            return str(len(words) - 1 - index)
        case "before":
            return words[index - 1]
        case "after":
            return words[index + 1]
        case _:
            return " ".join(reversed(words))
