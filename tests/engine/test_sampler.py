"""Logits to tokens: ties, masks, NaN and addresses, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engine.sampler import Sampler, row_logprobs
from engine.step import SlotSampling
from kernels.backend import create_kernels
from kernels.interface import Kernels

V = 11


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return create_kernels("auto", 1)


def sampler(kernels: Kernels, *slots: dict[str, Any]) -> Sampler:
    made = Sampler(kernels, len(slots))
    defaults: dict[str, Any] = {
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": 1,
        "sample_index": 0,
        "min_tokens": 0,
        "stop_ids": (),
        "logprobs": None,
    }
    for slot, changes in enumerate(slots):
        made.admit(slot, SlotSampling(**defaults | changes), num_prompt_tokens=5)
    return made


def choose(made: Sampler, logits: torch.Tensor, slots: list[int], positions: list[int]) -> list[int]:
    return made.choose(logits.clone(), np.array(slots, dtype=np.int64), np.array(positions, dtype=np.int64)).tolist()


@pytest.mark.parametrize("other", [0.0, 0.9], ids=["all-greedy", "beside-sampled"])
def test_greedy_takes_the_first_of_equal_logits(other: float, kernels: Kernels) -> None:
    """P-12, H-04: also where another row of the step samples, so that another kernel chooses."""
    made = sampler(kernels, {}, {"temperature": other})
    logits = torch.zeros(4, V)
    logits[1, [3, 7]] = 2.0
    logits[2, [10, 4, 9]] = 1.0
    assert choose(made, logits, [0, 0, 0, 1], [5, 6, 7, 5])[:3] == [0, 3, 4]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("place", [0, 5, V - 1])
@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_nan_row_is_minus_one_and_the_others_are_untouched(
    row: int, place: int, temperature: float, kernels: Kernels
) -> None:
    made = sampler(kernels, {"temperature": temperature})
    logits = torch.randn(3, V, generator=torch.Generator().manual_seed(0))
    expected = choose(made, logits, [0] * 3, [5, 6, 7])
    logits[row, place] = torch.nan
    expected[row] = -1
    assert choose(made, logits, [0] * 3, [5, 6, 7]) == expected


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_stop_ids_are_masked_up_to_min_tokens_and_in_their_slot_only(temperature: float, kernels: Kernels) -> None:
    """The prompt has 5 tokens, so the positions 5 and 6 are the first two new ones."""
    asks = {"temperature": temperature, "min_tokens": 2, "stop_ids": (3, 4)}
    made = sampler(kernels, asks, {"temperature": temperature})
    logits = torch.zeros(5, V)
    logits[:, 3], logits[:, 4], logits[:, 8] = 50.0, 25.0, 1.0
    chosen = choose(made, logits, [0, 0, 0, 0, 1], [5, 6, 7, 8, 5])
    assert chosen[2:] == [3, 3, 3]
    assert not set(chosen[:2]) & {3, 4}


def test_a_choice_depends_on_its_address_not_on_its_row(kernels: Kernels) -> None:
    """Law 9: (seed, sample, position) decide; the batch around a row does not."""
    made = sampler(
        kernels,
        *({"temperature": 1.0, "seed": seed, "sample_index": index} for seed in (1, 2) for index in (0, 1)),
        {"temperature": 1.0, "seed": 1},
    )
    logits = torch.zeros(1, 2000)
    address = [(slot, position) for slot in range(5) for position in (5, 6)]
    alone = [choose(made, logits, [slot], [position])[0] for slot, position in address]
    together = choose(made, logits.repeat(len(address), 1), [s for s, _ in address], [p for _, p in address])
    assert together == alone
    assert alone[8:] == alone[:2], "the same seed in another slot"
    assert len(set(alone[:8])) == 8


def test_a_new_admission_replaces_all_parameters(kernels: Kernels) -> None:
    """P-01: nothing of the request before is left in the slot."""
    made = sampler(kernels, {"temperature": 1.0, "top_k": 1, "min_tokens": 90, "stop_ids": (3,), "seed": 9})
    fresh = sampler(kernels, {"temperature": 1.0})
    made.admit(0, SlotSampling(1.0, 0, 1.0, 0.0, 1, 0, 0, (), None), num_prompt_tokens=5)
    logits = torch.zeros(1, V)
    logits[0, 3] = 3.0
    positions = range(5, 45)
    assert [choose(made, logits, [0], [p]) for p in positions] == [choose(fresh, logits, [0], [p]) for p in positions]


def test_logprobs_of_a_row(kernels: Kernels) -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0], [0.0, 0.0, 0.0, 5.0]])
    found = row_logprobs(kernels, logits, [2, 0], 2)
    expected = torch.log_softmax(logits.double(), dim=-1)
    assert found.top_ids.tolist() == [[1, 2], [3, 0]], "ties to the lower id"
    assert found.ranks.tolist() == [1, 2], "the number of larger logits, plus one"
    assert found.logprobs.tolist() == pytest.approx([float(expected[0, 2]), float(expected[1, 0])], abs=1e-12)
    assert found.top_logprobs[1].tolist() == pytest.approx([float(expected[1, 3]), float(expected[1, 0])], abs=1e-12)
