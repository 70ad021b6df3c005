"""Verification: what the target says at each verified position, and how far the drafts agree. One class for each method.

A method decides the *choice* at each position; `accept_coupled` then takes the choices up to the first that its draft did not
foresee. In rejection sampling the choice at a rejected draft is the recovered token, which is never that draft.

Shapes: R verified positions, row after row and place after place; V words; K drafts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.config import SpeculativeConfig
from engine.drafters.pick import DraftPicker
from engine.sampler import Sampler
from kernels.interface import DrawPurpose

__all__ = ["Coupled", "Positions", "Verifier", "create_verifier"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Positions:
    """The verified positions of a step."""

    slots: Ints  # [R]
    places: Ints  # [R], 0 for the position behind the last known token
    positions: Ints  # [R], of the token to choose
    drafts: Ints  # [R], the draft for that position; -1 where there is none


class Verifier(ABC):
    def __init__(self, sampler: Sampler, picker: DraftPicker | None) -> None:
        self.sampler = sampler
        self.picker = picker

    @abstractmethod
    def choose(self, logits: torch.Tensor, at: Positions) -> Ints:
        """logits [R, V] f32 (may be overwritten) -> ids [R]; -1 for a position whose logits are NaN."""


class Coupled(Verifier):
    """The target's choice depends on its logits and its address alone, so a run with drafts says what one without says."""

    def choose(self, logits: torch.Tensor, at: Positions) -> Ints:
        return self.sampler.choose(logits, at.slots, at.positions)


class Standard(Verifier):
    """Rejection sampling (arXiv 2211.17192): with p the target's and q the draft's distribution, a draft x stands with
    probability min(1, p(x) / q(x)); otherwise the token is drawn from max(0, p - q). A greedy draft has q = 1 at itself.

    The drafts of a slot with temperature 0 stand if they are the argmax.
    """

    def choose(self, logits: torch.Tensor, at: Positions) -> Ints:
        choices = self.sampler.choose(logits, at.slots, at.positions)  # where nothing was drafted this is the token
        tested = np.flatnonzero((at.drafts >= 0) & self.sampler.is_random(at.slots) & (choices >= 0))
        if len(tested):
            choices[tested] = self._test(logits[torch.from_numpy(tested)], _take(at, tested))
        return choices

    def _test(self, logits: torch.Tensor, at: Positions) -> Ints:
        """[R] where every position has a draft: the draft where it stands, else the recovered token."""
        rows = torch.arange(len(at.drafts))
        drafts = torch.from_numpy(at.drafts)
        p = self.sampler.probabilities(logits, at.slots)
        q = self._draft_probabilities(at, logits.shape[1])
        u = self.sampler.uniform(at.slots, at.positions, DrawPurpose.ACCEPTANCE)
        stands = u * q[rows, drafts] < p[rows, drafts]
        rest = (p - q).clamp_min(0.0)
        # Nothing is left where p and q are equal but for rounding; then p itself is as good.
        rest = torch.where(rest.amax(dim=1, keepdim=True) > 0, rest, p)
        rest[rows, drafts] = 0.0
        recovered = self.sampler.draw(rest, at.slots, at.positions, DrawPurpose.RECOVERY)
        return torch.where(stands, drafts, recovered).numpy()

    def _draft_probabilities(self, at: Positions, vocab_size: int) -> torch.Tensor:
        """[R, V] float64"""
        q = torch.zeros(len(at.drafts), vocab_size, dtype=torch.float64)
        q[torch.arange(len(q)), torch.from_numpy(at.drafts)] = 1.0
        if self.picker is not None and self.picker.logits is not None:
            slots, places = torch.from_numpy(at.slots), torch.from_numpy(at.places)
            q = self.picker.probabilities(self.picker.logits[slots, places], at.slots)
        return q


class Synthetic(Verifier):
    """Drafts stand at given rates, whatever they are; for benchmarks. What comes out is not for accuracy."""

    def __init__(self, sampler: Sampler, picker: DraftPicker | None, rates: tuple[float, ...]) -> None:
        super().__init__(sampler, picker)
        before = np.array((1.0, *rates[:-1]))
        self._conditional = np.divide(rates, before, out=np.zeros(len(rates)), where=before > 0)

    def choose(self, logits: torch.Tensor, at: Positions) -> Ints:
        drafted = np.flatnonzero(at.drafts >= 0)
        u = self.sampler.uniform(at.slots[drafted], at.positions[drafted], DrawPurpose.ACCEPTANCE).numpy()
        stands = u < self._conditional[at.places[drafted]]
        rejected = drafted[~stands]
        logits[torch.from_numpy(rejected), torch.from_numpy(at.drafts[rejected])] = -torch.inf  # so that it is not chosen
        choices = self.sampler.choose(logits, at.slots, at.positions)
        usable = choices[drafted[stands]] >= 0
        choices[drafted[stands][usable]] = at.drafts[drafted[stands][usable]]
        return choices


def create_verifier(config: SpeculativeConfig | None, sampler: Sampler, picker: DraftPicker | None) -> Verifier:
    method = "coupled" if config is None else config.rejection_sample_method
    if method == "standard":
        return Standard(sampler, picker)
    if method == "synthetic":
        assert config is not None
        return Synthetic(sampler, picker, config.synthetic_rates)
    return Coupled(sampler, picker)


def _take(at: Positions, index: Ints) -> Positions:
    return Positions(at.slots[index], at.places[index], at.positions[index], at.drafts[index])
