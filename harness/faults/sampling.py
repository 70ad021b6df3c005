"""Faults of choosing tokens: masks, filters, noise, NaN, ties, verification, log-probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from engine.accept import accept_coupled
from engine.drafters.pick import DraftPicker
from engine.model import Hidden
from engine.runner import Launch, Runner
from engine.sampler import Sampler
from engine.step import RowLogprobs, SlotSampling
from harness.faults.fault import fault, reach
from kernels.interface import DrawPurpose

Ints = Any


def _inside(slots: Ints) -> Ints:
    """[R] bool: the rows that are not the last one of their slot."""
    return np.append(slots[1:] == slots[:-1], False)


@fault(
    "P-03/min_tokens",
    "min_tokens is honoured for the last token of a verified row alone",
    part="sampler",
    case="cell:roomy/whole/nocache/right/stop-ids",
    raises="TokenMismatchError",
    source="vLLM #26317, #19482",
    simulated=True,
)
class MasksOnlyTheLast(Sampler):
    def choose(self, logits: torch.Tensor, slots: Ints, positions: Ints) -> Ints:
        inside, untouched = _inside(slots), logits.clone()
        choices = super().choose(logits, slots, positions)
        until, self._masked_until = self._masked_until, np.zeros_like(self._masked_until)
        unmasked = super().choose(untouched, slots, positions)
        self._masked_until = until
        reach("P-03/min_tokens", int((inside & (choices != unmasked)).sum()))
        return np.where(inside, unmasked, choices)


@fault(
    "P-03/filters",
    "top_k, top_p and min_p are honoured for the last token of a verified row alone",
    part="sampler",
    case="cell:roomy/whole/nocache/right/top-k",
    raises="TokenMismatchError",
    source="vLLM #42744, #38202",
    simulated=True,
)
class FiltersOnlyTheLast(Sampler):
    def choose(self, logits: torch.Tensor, slots: Ints, positions: Ints) -> Ints:
        inside, untouched = _inside(slots), logits.clone()
        choices = super().choose(logits, slots, positions)
        filters = self._top_k, self._top_p, self._min_p
        self._top_k, self._top_p, self._min_p = (torch.zeros_like(filters[0]), torch.ones_like(filters[1]), filters[2] * 0)
        unfiltered = super().choose(untouched, slots, positions)
        self._top_k, self._top_p, self._min_p = filters
        reach("P-03/filters", int((inside & (choices != unfiltered)).sum()))
        return np.where(inside, unfiltered, choices)


@fault(
    "P-04",
    "a row of NaN becomes token 0",
    part="sampler",
    case="simulation:300",
    raises="TokenMismatchError",
    source="vLLM #53029, #45060",
    simulated=True,
)
class LaundersNan(Sampler):
    def choose(self, logits: torch.Tensor, slots: Ints, positions: Ints) -> Ints:
        choices = super().choose(logits, slots, positions)
        reach("P-04", int((choices < 0).sum()))
        return np.maximum(choices, 0)


@fault(
    "P-05",
    "proposing and accepting draw from the same random stream",
    part="sampler",
    case="distribution:plain/probabilistic/0.7",
    raises="DistributionMismatchError",
    source="vLLM #54282",
)
class SharesTheStream(Sampler):
    def uniform(self, slots: Ints, positions: Ints, purpose: DrawPurpose) -> torch.Tensor:
        reach("P-05")
        return super().uniform(slots, positions, DrawPurpose.DRAFT)


@fault(
    "P-06",
    "a draft's probability is taken before the temperature",
    part="picker",
    case="distribution:hot/probabilistic/0.7",
    raises="DistributionMismatchError",
    source="transformers #47932",
)
class ForgetsTheTemperature(DraftPicker):
    def probabilities(self, logits: torch.Tensor, slots: Ints) -> torch.Tensor:
        reach("P-06")
        return logits.double().softmax(dim=1)


@fault(
    "P-08/raw",
    "log-probabilities are taken of logits that were masked in place",
    part="runner",
    case="cell:roomy/whole/nocache/plain/logprobs",
    raises="LogprobMismatchError",
    source="vLLM #30846",
)
class KeepsNoRawLogits(Runner):
    def _logits(self, launch: Launch, hidden: Hidden) -> tuple[torch.Tensor, torch.Tensor]:
        logits, raw = super()._logits(launch, hidden)
        reach("P-08/raw", raw is not logits)
        return logits, logits


@fault(
    "P-08/rows",
    "log-probabilities are cut as if each request had one row",
    part="runner",
    case="cell:roomy/whole/nocache/right/logprobs",
    raises="LogprobMismatchError",
    source="vLLM #38711",
)
class CutsOneRowForEach(Runner):
    def _logprobs(self, launch: Launch, raw: torch.Tensor, choices: Ints, num_emitted: Ints) -> dict[int, RowLogprobs]:
        starts = np.cumsum(launch.logit_counts) - launch.logit_counts
        shift = starts - np.arange(len(starts))
        reach("P-08/rows", int((shift > 0).sum()))
        pieces = [raw[max(0, int(at - by)) :] for at, by in zip(starts, shift, strict=True)]
        moved = torch.cat(
            [piece[:count] for piece, count in zip(pieces, launch.logit_counts.tolist(), strict=True)] or [raw[:0]]
        )
        return super()._logprobs(launch, moved, choices, num_emitted)


@fault(
    "P-12/unverified",
    "the first draft stands without a look at it",
    part="accept",
    case="cell:roomy/whole/nocache/wrong/greedy",
    raises="TokenMismatchError",
    source="lattice #243",
    simulated=True,
)
def first_unverified(choices: Ints, drafts: Ints, num_drafts: Ints) -> Any:
    believed = drafts.copy()
    told = (num_drafts > 0) & (choices[:, 0] >= 0)
    if drafts.shape[1]:
        reach("P-12/unverified", int((told & (drafts[:, 0] != choices[:, 0])).sum()))
        believed[told, 0] = choices[told, 0]
    return accept_coupled(choices, believed, num_drafts)


@fault(
    "P-12/ties",
    "of equal logits the last is taken, not the first",
    part="sampler",
    case="simulation:300",
    raises="TokenMismatchError",
    source="lattice #280",
    simulated=True,
)
class TakesTheLastOfEquals(Sampler):
    def argmax(self, logits: torch.Tensor) -> Ints:
        first = super().argmax(logits)
        last = logits.shape[1] - 1 - super().argmax(logits.flip(1))
        choices = np.where(first < 0, first, last)
        reach("P-12/ties", int((choices != first).sum()))
        return choices


@fault(
    "P-12/no-stop",
    "stop ids are kept from draft positions, so that runs are not cut short",
    part="sampler",
    case="simulation:300",
    raises="TokenMismatchError",
    source="vLLM #41493",
    simulated=True,
)
class NeverStopsInsideARun(Sampler):
    def choose(self, logits: torch.Tensor, slots: Ints, positions: Ints) -> Ints:
        inside = _inside(slots)
        masked = logits.clone()
        for row in np.flatnonzero(inside):
            masked[row, list(self._stop_ids[slots[row]])] = -torch.inf
        choices = super().choose(logits, slots, positions)
        suppressed = super().choose(masked, slots, positions)
        reach("P-12/no-stop", int((inside & (choices != suppressed)).sum()))
        return np.where(inside, suppressed, choices)


@fault(
    "H-04",
    "logits differ in the last bit where a batch has more than one row",
    part="runner",
    case="cell:roomy/whole/nocache/plain/logprobs",
    raises="LogprobMismatchError",
    source="vLLM #42960, #28902",
)
class DependsOnTheBatch(Runner):
    def _logits(self, launch: Launch, hidden: Hidden) -> tuple[torch.Tensor, torch.Tensor]:
        logits, raw = super()._logits(launch, hidden)
        if len(launch.rows) > 1:
            reach("H-04")
            raw = torch.nextafter(raw, torch.full_like(raw, torch.inf))
        return logits, raw


@fault(
    "own/parameters-kept",
    "a slot's next request is sampled with the parameters of the one before",
    part="sampler",
    case="cell:roomy/whole/nocache/plain/top-k",
    raises="TokenMismatchError",
    simulated=True,
)
class KeepsTheParameters(Sampler):
    def admit(self, slot: int, sampling: SlotSampling, num_prompt_tokens: int) -> None:
        before = int(self._top_k[slot]), float(self._top_p[slot])
        super().admit(slot, sampling, num_prompt_tokens)
        if self.__dict__.setdefault("_used", set()) & {slot}:
            reach("own/parameters-kept", before != (int(self._top_k[slot]), float(self._top_p[slot])))
            self._top_k[slot], self._top_p[slot] = before
        self.__dict__["_used"].add(slot)


@fault(
    "own/noise-by-row",
    "noise is addressed by the row in the batch, not by the position",
    part="sampler",
    case="cell:roomy/whole/nocache/plain/temperature",
    raises="TokenMismatchError",
    simulated=True,
)
class AddressesByRow(Sampler):
    def choose(self, logits: torch.Tensor, slots: Ints, positions: Ints) -> Ints:
        seed = self._seed.clone()
        for row, slot in enumerate(slots.tolist()):
            self._seed[slot] = seed[slot] + row
        reach("own/noise-by-row", int(self.is_random(slots).any() and len(slots) > 1))
        choices = super().choose(logits, slots, positions)
        self._seed = seed
        return choices
