"""Logits to tokens. Every choice is a function of its row's logits and its address (seed, sample, position): laws 8 and 9."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine.distribution import probabilities
from engine.step import RowLogprobs, SlotSampling
from kernels.elementary import log64
from kernels.interface import DrawPurpose, Kernels
from kernels.random import uniforms

__all__ = ["Sampler", "row_logprobs"]

Ints = npt.NDArray[np.int64]


class Sampler:
    """Keeps the sampling parameters of every slot as arrays."""

    def __init__(self, kernels: Kernels, num_slots: int) -> None:
        self._kernels = kernels
        self._temperature = torch.zeros(num_slots, dtype=torch.float32)
        self._top_k = torch.zeros(num_slots, dtype=torch.int32)
        self._top_p = torch.ones(num_slots, dtype=torch.float32)
        self._min_p = torch.zeros(num_slots, dtype=torch.float32)
        self._seed = torch.zeros(num_slots, dtype=torch.int64)
        self._sample_index = torch.zeros(num_slots, dtype=torch.int32)
        self._masked_until = np.zeros(num_slots, dtype=np.int64)  # first position at which the slot may stop
        self._stop_ids: list[tuple[int, ...]] = [()] * num_slots

    def admit(self, slot: int, sampling: SlotSampling, num_prompt_tokens: int) -> None:
        self._temperature[slot] = sampling.temperature
        self._top_k[slot] = sampling.top_k
        self._top_p[slot] = sampling.top_p
        self._min_p[slot] = sampling.min_p
        self._seed[slot] = sampling.seed
        self._sample_index[slot] = sampling.sample_index
        self._masked_until[slot] = num_prompt_tokens + sampling.min_tokens
        self._stop_ids[slot] = sampling.stop_ids

    def choose(
        self, logits: torch.Tensor, slots: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """logits [R, V] f32 (masked in place), slots [R], positions [R] of the tokens to choose -> ids [R]; -1 for NaN."""
        for row in np.flatnonzero(positions < self._masked_until[slots]):
            stop_ids = self._stop_ids[slots[row]]
            if stop_ids:
                logits[row, list(stop_ids)] = -torch.inf
        index = torch.from_numpy(slots)
        temperature = self._temperature[index]
        if not temperature.any():
            return self.argmax(logits)
        filters = (self._top_k[index], self._top_p[index], self._min_p[index])
        return self._kernels.sample(logits, temperature, *filters, *self._address(slots, positions), DrawPurpose.TARGET).numpy()

    def argmax(self, logits: torch.Tensor) -> Ints:
        """[R, V] f32 -> ids [R]; -1 for a row without a finite largest value."""
        return self._kernels.argmax(logits).numpy()

    def is_random(self, slots: Ints) -> npt.NDArray[np.bool_]:
        """[R]: whether the slot samples at all."""
        return self._temperature[torch.from_numpy(slots)].numpy() > 0

    def probabilities(self, logits: torch.Tensor, slots: Ints) -> torch.Tensor:
        """[R, V] float64: what `choose` draws from, given the logits that it has masked; temperatures above 0."""
        index = torch.from_numpy(slots)
        filters = (self._top_k[index], self._top_p[index], self._min_p[index])
        return probabilities(logits, self._temperature[index], *filters)

    def draw_draft(self, logits: torch.Tensor, slots: Ints, positions: Ints) -> Ints:
        """A draft from logits [R, V] at its slot's temperature, unfiltered -> ids [R]; -1 as in `argmax`."""
        temperature = self._temperature[torch.from_numpy(slots)]
        filters = _no_filters(len(slots))
        return self._kernels.sample(logits, temperature, *filters, *self._address(slots, positions), DrawPurpose.DRAFT).numpy()

    def draft_probabilities(self, logits: torch.Tensor, slots: Ints) -> torch.Tensor:
        """[R, V] float64: what `draw_draft` draws from; temperatures above 0."""
        return probabilities(logits, self._temperature[torch.from_numpy(slots)], *_no_filters(len(slots)))

    def uniform(self, slots: Ints, positions: Ints, purpose: DrawPurpose) -> torch.Tensor:
        """[R] float64 in (0, 1), addressed by (slot's seed, position, purpose)."""
        return uniforms(*self._address(slots, positions), purpose, 1)[:, 0]

    def draw(self, weights: torch.Tensor, slots: Ints, positions: Ints, purpose: DrawPurpose) -> torch.Tensor:
        """An id for each row of weights [R, V] float64, in proportion to them -> [R] int64."""
        noise = self._kernels.gumbel(*self._address(slots, positions), purpose, weights.shape[1])
        return (log64(weights) + noise).masked_fill(weights <= 0, -torch.inf).argmax(dim=1)

    def _address(self, slots: Ints, positions: Ints) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        index = torch.from_numpy(slots)
        return self._seed[index], self._sample_index[index], torch.from_numpy(positions)


def _no_filters(num_rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """top_k, top_p and min_p that keep everything."""
    return torch.zeros(num_rows, dtype=torch.int32), torch.ones(num_rows), torch.zeros(num_rows)


def row_logprobs(kernels: Kernels, raw_logits: torch.Tensor, chosen: Sequence[int], k: int) -> RowLogprobs:
    """Log-probabilities of one request's emitted tokens; raw_logits [emitted, V] f32, before any mask or temperature."""
    normalizer = kernels.log_sum_exp(raw_logits)  # [emitted] f64
    order = torch.argsort(raw_logits, dim=-1, descending=True, stable=True)[:, :k]
    ids = torch.as_tensor(chosen, dtype=torch.int64)[:, None]
    own = raw_logits.gather(1, ids)
    return RowLogprobs(
        top_ids=order.to(torch.int32).numpy(),
        top_logprobs=(raw_logits.gather(1, order).double() - normalizer[:, None]).numpy(),
        logprobs=(own[:, 0].double() - normalizer).numpy(),
        ranks=((raw_logits > own).sum(dim=1) + 1).to(torch.int32).numpy(),
    )
