"""Prompt lookup: what followed the last n tokens when they stood here before.

Of the n-grams from `prompt_lookup_max` down to `prompt_lookup_min` tokens, the longest that also stands earlier in the sequence
is used, at its first place (as in vLLM's `ngram` proposer). `ngram_gpu` is the same proposal: in both the runner computes it
from its own token table, so no step waits for the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.drafters.base import DraftContext, Drafter
from engine.options import is_int

__all__ = ["NgramDrafter", "lookup"]

DEFAULT_LOOKUP = 5  # vLLM's default for both bounds where neither is given


def lookup(tokens: npt.NDArray[np.int32], num_drafts: int, lookup_min: int, lookup_max: int) -> npt.NDArray[np.int32]:
    """tokens [n] int32 -> at most `num_drafts` proposals, empty where no n-gram stands twice."""
    length = len(tokens)
    for n in range(min(lookup_max, length - 1), lookup_min - 1, -1):
        # A place counts if at least one token follows it, so the suffix itself never does.
        windows = np.lib.stride_tricks.sliding_window_view(tokens[: length - 1], n)
        places = np.flatnonzero((windows == tokens[length - n :]).all(axis=1))
        if len(places):
            start = places[0] + n
            return tokens[start : start + num_drafts]
    return tokens[:0]


class NgramDrafter(Drafter):
    option_names = ("prompt_lookup_max", "prompt_lookup_min")

    def __init__(self, num_speculative_tokens: int, vocab_size: int, options: Mapping[str, Any]) -> None:
        """Raises `ValueError` unless 1 <= prompt_lookup_min <= prompt_lookup_max."""
        super().__init__(num_speculative_tokens, vocab_size, options)
        # vLLM's rule: one bound alone stands for both.
        given = {name: options[name] for name in self.option_names if options.get(name) is not None}
        default = next(iter(given.values()), DEFAULT_LOOKUP)
        self.lookup_min = given.get("prompt_lookup_min", default)
        self.lookup_max = given.get("prompt_lookup_max", default)
        is_whole = is_int(self.lookup_min) and is_int(self.lookup_max)
        if not is_whole or not 1 <= self.lookup_min <= self.lookup_max:
            raise ValueError(
                f"ngram needs 1 <= prompt_lookup_min <= prompt_lookup_max, got {self.lookup_min!r} and {self.lookup_max!r}."
            )

    def propose(self, context: DraftContext) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        drafts = np.zeros((len(context.slots), self.num_speculative_tokens), dtype=np.int32)
        counts = np.zeros(len(context.slots), dtype=np.int64)
        for row, slot in enumerate(context.slots):
            found = lookup(
                context.tokens[slot, : context.num_tokens[row]],
                int(context.max_drafts[row]),
                self.lookup_min,
                self.lookup_max,
            )
            drafts[row, : len(found)] = found
            counts[row] = len(found)
        return drafts, counts
