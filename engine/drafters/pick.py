"""How a drafter with a distribution picks its proposals: the most likely token, or a draw of its own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from engine.sampler import Sampler

__all__ = ["DRAFT_SAMPLE_METHODS", "DraftPicker"]

DRAFT_SAMPLE_METHODS = ("greedy", "probabilistic")
Ints = npt.NDArray[np.int64]


class DraftPicker:
    """`logits`: [num_slots, K, V] f32, what the proposals were drawn from; None where they are the most likely tokens."""

    def __init__(self, sampler: Sampler, num_slots: int, num_speculative_tokens: int, vocab_size: int, method: str) -> None:
        self._sampler = sampler
        is_drawn = method == "probabilistic"
        self.logits = torch.zeros(num_slots, num_speculative_tokens, vocab_size) if is_drawn else None

    def __call__(self, logits: torch.Tensor, slots: Ints, positions: Ints, places: Ints) -> Ints:
        """logits [R, V] f32 for the tokens at `positions` of `slots`, which are the proposals at `places` -> ids [R].

        -1 for a row that holds a NaN or has no finite largest value: there is no proposal. A draw has the temperature of its
        request and no filter, and is addressed as a draft's, so it shares nothing with what verifies it.
        """
        if self.logits is None:
            return self._sampler.argmax(logits)
        self.logits[torch.from_numpy(slots), torch.from_numpy(places)] = logits
        return self._sampler.draw_draft(logits, slots, positions)

    def probabilities(self, logits: torch.Tensor, slots: Ints) -> torch.Tensor:
        """[R, V] float64: what `__call__` drew from; temperatures above 0."""
        return self._sampler.draft_probabilities(logits, slots)
