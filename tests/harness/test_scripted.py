"""The scripted drafter proposes exactly what its script says, alone and through the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine import LLM, SamplingParams
from engine.drafters.base import DraftContext
from engine.drafters.registry import method_info
from engine.step import NewSlot, SlotSampling
from harness.scripted import METHOD, PLUGIN, ScriptedDrafter, script

K, VOCAB = 3, 100
TRUTH = [10, 11, 12, 13, 99]


def admit(drafter: ScriptedDrafter, extra_args: Any, *, slot: int = 0, sample_index: int = 0) -> None:
    sampling = SlotSampling(0.0, 0, 1.0, 0.0, 0, sample_index, 0, (), None)
    drafter.admit(NewSlot(slot, 1, np.arange(2, dtype=np.int32), 2, 0, 50, sampling, extra_args))


def propose(drafter: ScriptedDrafter, num_new: int, *, slot: int = 0, at_most: int = K) -> list[int]:
    """Drafts for a request with 2 prompt tokens and `num_new` new ones."""
    table = np.zeros((4, 60), dtype=np.int32)
    context = DraftContext(np.array([slot]), table, np.array([2 + num_new]), np.array([at_most]))
    drafts, counts = drafter.propose(context)
    assert drafts.shape == (1, K)
    return [int(draft) for draft in drafts[0, : counts[0]]]


@pytest.mark.parametrize(
    ("accept", "expected"),
    [(99, [11, 12, 13]), (3, [11, 12, 13]), (0, [12, 13, 14]), (1, [11, 13, 14]), (2, [11, 12, 14])],
)
def test_right_as_far_as_the_script_says_then_certainly_wrong(accept: int, expected: list[int]) -> None:
    drafter = ScriptedDrafter(K, VOCAB, {})
    admit(drafter, script([TRUTH], [accept]))
    assert propose(drafter, 1) == expected


def test_a_wrong_draft_stays_inside_the_vocabulary() -> None:
    drafter = ScriptedDrafter(K, VOCAB, {})
    admit(drafter, script([TRUTH], [0]))
    assert propose(drafter, 4)[0] == 0


def test_behind_the_known_truth_a_wrong_draft_is_still_a_draft() -> None:
    """As where the model gives NaN: the verifier must cope with drafts there. A right one cannot be had."""
    drafter = ScriptedDrafter(K, VOCAB, {})
    admit(drafter, script([TRUTH], [0]))
    assert len(propose(drafter, 4)) == K
    admit(drafter, script([TRUTH], [99]))
    assert len(propose(drafter, 4)) == 1


def test_rounds_take_turns_and_begin_again_with_a_new_admission() -> None:
    drafter = ScriptedDrafter(K, VOCAB, {})
    for _ in range(2):
        admit(drafter, script([TRUTH], [99, 0]))
        assert [propose(drafter, 1)[0] for _ in range(4)] == [11, 12, 11, 12]


def test_never_more_than_asked_for_nor_behind_the_end() -> None:
    drafter = ScriptedDrafter(K, VOCAB, {})
    admit(drafter, script([TRUTH], [99]))
    assert propose(drafter, 1, at_most=2) == [11, 12]
    assert propose(drafter, 3) == [13, 99]
    assert propose(drafter, 5) == []
    assert propose(drafter, 9) == []


def test_every_completion_has_its_own_truth() -> None:
    drafter = ScriptedDrafter(K, VOCAB, {})
    admit(drafter, script([TRUTH, [20, 21, 22]], [99]), slot=3, sample_index=1)
    assert propose(drafter, 1, slot=3) == [21, 22]


def test_a_slot_without_a_script_drafts_nothing() -> None:
    drafter = ScriptedDrafter(K, VOCAB, {})
    admit(drafter, script([TRUTH], [99]))
    admit(drafter, None)
    assert propose(drafter, 1) == []


def test_it_supports_asynchronous_scheduling() -> None:
    assert method_info(METHOD).supports_async_scheduling


@pytest.mark.parametrize("accept", [0, 1, 2, 3])
def test_the_engine_accepts_what_the_script_says(accept: int, toy_model: str) -> None:
    """Each completion of n, each round: accepted counts are those of the script."""
    params = SamplingParams(n=2, temperature=0.9, seed=3, max_tokens=13, ignore_eos=True)
    config = {"method": METHOD, "num_speculative_tokens": K}
    with LLM(toy_model, max_model_len=64, num_threads=1, speculative_config=config, plugins=(PLUGIN,)) as llm:
        plain = llm.generate([[1, 2, 3]], params, use_tqdm=False)[0].outputs
        assert all(completion.stats.num_drafts == 0 for completion in plain), "no script, no drafts"
        scripted = replace(params, extra_args=script([c.token_ids for c in plain], [accept]))
        for completion, other in zip(llm.generate([[1, 2, 3]], scripted, use_tqdm=False)[0].outputs, plain, strict=True):
            assert completion.token_ids == other.token_ids
            # One token from the prefill, then rounds of accept + 1; the last round is cut by the length.
            rounds, rest = divmod(12, accept + 1)
            assert completion.stats.num_decode_steps == rounds + (rest > 0)
            assert completion.stats.num_accepted_tokens == 12 - completion.stats.num_decode_steps
