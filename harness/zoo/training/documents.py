"""Training documents: one text form, with a loss weight for each part of it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.datasets.example import Example

__all__ = ["ANSWER_WEIGHT", "QUESTION_WEIGHT", "FewShot", "Segment", "document", "document_text", "documents", "prompt_text"]

QUESTION_WEIGHT = 0.2
ANSWER_WEIGHT = 1.0


@dataclass(frozen=True)
class Segment:
    """A part of a document; a token has the weight of the segment that it starts in."""

    text: str
    weight: float


@dataclass(frozen=True)
class FewShot:
    """How many of the documents are several examples of one kind, joined, and how many examples those have."""

    share: float  # of the examples that go into such documents
    min_examples: int = 2
    max_examples: int = 2


def prompt_text(prompt: str, shots: Sequence[Example] = ()) -> str:
    """What the model is asked with: the `shots`, then the question, up to and including `Answer:`.

    The answer begins with a space, and no token reaches across that place.
    """
    return "".join(f"Question: {s.prompt}\nAnswer: {s.answer}\n\n" for s in shots) + f"Question: {prompt}\nAnswer:"


def document(examples: Sequence[Example]) -> tuple[Segment, ...]:
    """One document of one or more examples, without the BOS and EOS tokens around it."""
    segments: list[Segment] = []
    for i, example in enumerate(examples):
        segments.append(Segment(("\n\n" if i else "") + prompt_text(example.prompt), QUESTION_WEIGHT))
        segments.append(Segment(f" {example.answer}", ANSWER_WEIGHT))
    return tuple(segments)


def document_text(segments: Sequence[Segment]) -> str:
    return "".join(segment.text for segment in segments)


def documents(examples: Iterator[Example], rng: random.Random, few_shot: FewShot) -> Iterator[tuple[Segment, ...]]:
    """The examples as documents: most alone, `few_shot.share` of them kept back until there are enough of one kind."""
    shelf: dict[str, list[Example]] = {}
    wanted: dict[str, int] = {}
    for example in examples:
        if rng.random() >= few_shot.share:
            yield document([example])
            continue
        kind = example.category.split(":")[0]
        if kind not in wanted:
            wanted[kind] = rng.randint(few_shot.min_examples, few_shot.max_examples)
        shelf.setdefault(kind, []).append(example)
        if len(shelf[kind]) == wanted[kind]:
            yield document(shelf.pop(kind))
            del wanted[kind]
