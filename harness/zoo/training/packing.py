"""Packs whole documents into rows. A batch is a pure function of (seed, step), so a stopped training needs nothing of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from harness.datasets.example import Example
from harness.zoo.training.documents import FewShot, Segment, document_text, documents

__all__ = ["Batch", "Encoder", "PackedStream", "pack"]

Tokens = tuple[list[int], list[float]]  # ids and loss weights of one document, as long as each other
POOL = 1.04  # tokens that are made for each token of room; what does not fit is thrown away


@dataclass(frozen=True)
class Batch:
    """Rows for one step. `weights` says what predicting the token at that place counts (0 for BOS and padding)."""

    ids: torch.Tensor  # int64 [rows, length]
    weights: torch.Tensor  # float32 [rows, length]
    num_tokens: int  # without padding


class Encoder:
    """Turns documents into ids and weights with a Transformers tokenizer (fast, with BOS, EOS and padding tokens)."""

    def __init__(self, hf: object) -> None:
        self._backend = hf.backend_tokenizer  # type: ignore[attr-defined]
        self.bos: int = hf.bos_token_id  # type: ignore[attr-defined]
        self.eos: int = hf.eos_token_id  # type: ignore[attr-defined]
        self.pad: int = hf.pad_token_id  # type: ignore[attr-defined]

    def __call__(self, segments: Sequence[Segment]) -> Tokens:
        """The document with BOS (weight 0) and EOS (the last segment's weight). It is encoded as one text."""
        encoding = self._backend.encode(document_text(segments), add_special_tokens=False)
        ids, weights = [self.bos, *encoding.ids, self.eos], [0.0]
        current, end = 0, len(segments[0].text)
        for start, _ in encoding.offsets:
            while start >= end:
                current += 1
                end += len(segments[current].text)
            weights.append(segments[current].weight)
        return ids, [*weights, segments[-1].weight]


def pack(docs: Sequence[Tokens], rows: int, length: int, pad: int) -> Batch:
    """Best fit, longest first: each document into the fullest row that has room for it, or nowhere."""
    filled: list[list[Tokens]] = [[] for _ in range(rows)]
    room = [length] * rows
    for doc in sorted(docs, key=lambda d: -len(d[0])):
        fitting = [(room[row], row) for row in range(rows) if room[row] >= len(doc[0])]
        if fitting:
            _, row = min(fitting)
            filled[row].append(doc)
            room[row] -= len(doc[0])
    ids = [[i for doc in row for i in doc[0]] + [pad] * room[r] for r, row in enumerate(filled)]
    weights = [[w for doc in row for w in doc[1]] + [0.0] * room[r] for r, row in enumerate(filled)]
    return Batch(torch.tensor(ids), torch.tensor(weights, dtype=torch.float32), rows * length - sum(room))


@dataclass(frozen=True)
class PackedStream:
    """Batches by step. `examples(rng, phase)` is endless; phase is the share of the training that is done."""

    examples: Callable[[random.Random, float], Iterator[Example]]
    encode: Encoder
    seed: int
    num_steps: int

    def batch(self, step: int, rows: int, length: int, few_shot: FewShot) -> Batch:
        """The batch of `step`. Documents that are longer than a row do not take part."""
        rng = random.Random(f"{self.seed}/{step}")
        stream = documents(self.examples(rng, step / self.num_steps), random.Random(f"{self.seed}/{step}/shots"), few_shot)
        pool: list[Tokens] = []
        wanted = int(rows * length * POOL)
        while wanted > 0:
            doc = self.encode(next(stream))
            if len(doc[0]) <= length:
                pool.append(doc)
                wanted -= len(doc[0])
        return pack(pool, rows, length, self.encode.pad)
