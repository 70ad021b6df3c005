"""Suffix decoding (arXiv 2411.04975): what followed the sequence's last tokens before, here and in earlier responses.

The end of a sequence is looked up in two texts: the sequence itself, and the responses that this runner has finished, the
oldest forgotten first. For every length of the end that is found, the proposal follows the most frequent next token, then the
most frequent one behind that, and so on; each has an estimated probability, its share of the places that are left. A proposal
is at most `max_spec_factor` times as long as the end that was found and goes on while the product of the shares stays at
`min_token_prob` or above. The one with the largest sum of these products is taken. Names and defaults are vLLM's.

What is proposed depends on what ran before, so acceptance does too; what is emitted does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from engine.drafters.base import AcceptedStep, DraftContext, Drafter, Drafts, Target
from engine.options import is_int
from engine.step import NewSlot

__all__ = ["SuffixDrafter", "continuation"]

Tokens = npt.NDArray[np.int32]
SEPARATOR = -1  # between responses; no token


class SuffixDrafter(Drafter):
    option_names: ClassVar[tuple[str, ...]] = (
        "suffix_decoding_max_tree_depth",
        "suffix_decoding_max_cached_requests",
        "suffix_decoding_max_spec_factor",
        "suffix_decoding_min_token_prob",
    )

    def __init__(self, num_speculative_tokens: int, vocab_size: int, options: Mapping[str, Any]) -> None:
        super().__init__(num_speculative_tokens, vocab_size, options)
        self.max_depth = _whole(options, "suffix_decoding_max_tree_depth", 24, at_least=2)
        self.max_cached = _whole(options, "suffix_decoding_max_cached_requests", 10_000, at_least=0)
        self.max_factor = _number(options, "suffix_decoding_max_spec_factor", 1.0, at_most=float(self.max_depth))
        self.min_prob = _number(options, "suffix_decoding_min_token_prob", 0.1, at_most=1.0)
        self._responses: deque[Tokens] = deque(maxlen=self.max_cached)
        self._past: Tokens = np.zeros(0, dtype=np.int32)  # the responses, joined
        self._running: dict[int, Tokens] = {}  # response so far, by slot
        self._starts: dict[int, int] = {}  # length of the prompt, by slot

    def load(self, target: Target) -> None:
        self._table = target.table

    def admit(self, new: NewSlot) -> None:
        finished = self._running.pop(new.slot, None)
        self._starts[new.slot] = new.num_prompt_tokens
        if finished is not None and len(finished) and self.max_cached:
            self._responses.append(finished)
            parts = [part for response in self._responses for part in (response, np.array([SEPARATOR], dtype=np.int32))]
            self._past = np.concatenate(parts)

    def advance(self, step: AcceptedStep) -> None:
        for slot, num_tokens in zip(step.slots.tolist(), step.num_tokens.tolist(), strict=True):
            # The slot's row of the table is overwritten when the next request takes it.
            self._running[slot] = self._table.tokens[slot, self._starts[slot] : num_tokens].copy()

    def propose(self, context: DraftContext) -> Drafts:
        drafts = np.zeros((len(context.slots), self.num_speculative_tokens), dtype=np.int32)
        counts = np.zeros(len(context.slots), dtype=np.int64)
        for row, (slot, length) in enumerate(zip(context.slots, context.num_tokens, strict=True)):
            own = context.tokens[slot, :length]
            limits = (int(context.max_drafts[row]), self.max_depth, self.max_factor, self.min_prob)
            candidates = [continuation(own, own, *limits), continuation(self._past, own, *limits)]
            found, _ = max(candidates, key=lambda candidate: candidate[1])  # the sequence itself, if they are as good
            drafts[row, : len(found)] = found
            counts[row] = len(found)
        return drafts, counts


def continuation(
    text: Tokens, end: Tokens, max_drafts: int, max_depth: int, max_factor: float, min_prob: float
) -> tuple[list[int], float]:
    """The best proposal behind the end of `end` [n] from its places in `text` [m], and its score; see the module."""
    best: tuple[list[int], float] = ([], 0.0)
    if not len(text) or not len(end):
        return best
    last = np.flatnonzero(text[:-1] == end[-1])  # places of the end's last token that something follows
    for length in range(1, min(max_depth - 1, len(end)) + 1):
        if length > 1:
            last = last[last >= length - 1]
            last = last[text[last - length + 1] == end[-length]]
        if not len(last):
            break
        room = min(max_drafts, int(length * max_factor), max_depth - length)
        candidate = _follow(text, last, room, min_prob)
        if candidate[1] >= best[1] and candidate[0]:  # of equal ones that behind the longer end
            best = candidate
    return best


def _follow(text: Tokens, places: npt.NDArray[np.int64], room: int, min_prob: float) -> tuple[list[int], float]:
    drafts: list[int] = []
    probability, score = 1.0, 0.0
    while len(drafts) < room:
        places = places[places + 1 < len(text)] + 1
        following = text[places]
        is_token = following != SEPARATOR
        if not is_token.any():
            break
        ids, frequencies = np.unique(following[is_token], return_counts=True)
        token = int(ids[frequencies.argmax()])  # the smallest id of those that are as frequent
        probability *= float(frequencies.max()) / len(following)
        if probability < min_prob:
            break
        drafts.append(token)
        score += probability
        places = places[following == token]
    return drafts, score


def _whole(options: Mapping[str, Any], name: str, default: int, *, at_least: int) -> int:
    value = options.get(name, default)
    if not is_int(value) or value < at_least:
        raise ValueError(f"{name} must be an integer of at least {at_least}, got {value!r}.")
    return int(value)


def _number(options: Mapping[str, Any], name: str, default: float, *, at_most: float) -> float:
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= at_most:
        raise ValueError(f"{name} must be a number above 0 and at most {at_most}, got {value!r}.")
    return float(value)
