"""The distribution checks see the classic mistakes of rejection sampling, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engine.drafters.pick import DraftPicker
from engine.parts import Parts
from engine.sampler import Sampler
from harness.distribution import assert_follows, assert_lossless, draw_many, expected_distributions
from harness.errors import DistributionMismatchError, FeatureNotExercisedError
from kernels.interface import DrawPurpose

N = 40_000
GENERATOR = torch.Generator().manual_seed(7)
TARGET, DRAFT = (torch.randn(6, 6, generator=GENERATOR) * 1.5 for _ in range(2))
ALIKE = 0.6 * TARGET + 0.4 * DRAFT


def check(**options: Any) -> int:
    distribution = {key: options[key] for key in ("temperature", "top_k", "top_p", "min_p") if key in options}
    draws = draw_many(TARGET, ALIKE, n=N, depth=2, **options)
    return assert_lossless(draws, expected_distributions(TARGET, **distribution), case="check")


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_rejection_sampling_passes(temperature: float) -> None:
    assert check(temperature=temperature) >= 6


def test_coupled_verification_passes_too() -> None:
    assert check(temperature=1.3, rejection_sample_method="coupled") >= 6


def test_a_draft_probability_taken_before_the_temperature_is_seen() -> None:
    class BeforeTemperature(DraftPicker):
        def probabilities(self, logits: torch.Tensor, slots: np.ndarray) -> torch.Tensor:
            return logits.double().softmax(dim=1)

    with pytest.raises(DistributionMismatchError):
        check(temperature=1.7, parts=Parts(picker=BeforeTemperature))


def test_a_draw_shared_by_draft_and_acceptance_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Sampler.uniform

    def shared(self: Sampler, slots: np.ndarray, positions: np.ndarray, purpose: DrawPurpose) -> torch.Tensor:
        return real(self, slots, positions, DrawPurpose.DRAFT)

    monkeypatch.setattr(Sampler, "uniform", shared)
    with pytest.raises(DistributionMismatchError):
        check()


def test_an_accept_rule_that_looks_at_the_next_token_only_is_seen() -> None:
    def accept(choices: np.ndarray, drafts: np.ndarray, num_drafts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        agree = choices[:, : drafts.shape[1]] == drafts  # a draft behind a rejected one counts as well
        return agree.sum(axis=1) + 1, np.zeros(len(drafts), dtype=bool)

    with pytest.raises(DistributionMismatchError):
        check(parts=Parts(accept=accept))


def test_what_is_too_little_or_impossible_has_its_own_error() -> None:
    with pytest.raises(FeatureNotExercisedError, match="too few"):
        assert_follows(np.array([0, 1]), np.array([0.5, 0.5]), case="few")
    with pytest.raises(DistributionMismatchError, match="probability 0"):
        assert_follows(np.array([2] * 100), np.array([0.5, 0.5, 0.0]), case="impossible")
    assert assert_follows(np.array([1] * 100), np.array([0.0, 1.0]), case="certain") == 1.0


def test_the_exact_distribution_is_that_of_the_sampler() -> None:
    """`expected_distributions` is written apart from the engine's own, so that one cannot excuse the other."""
    options = {"temperature": 0.8, "top_k": 4, "top_p": 0.85, "min_p": 0.03}
    sampler = draw_many(TARGET, ALIKE, n=1000, depth=1, **options)
    assert set(sampler.emitted[:, 0]) <= set(np.flatnonzero(expected_distributions(TARGET, **options)[0] > 0))
