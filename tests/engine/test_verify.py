"""Verification methods in the whole engine, and the options of speculation that are not any one method's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import LLM, SamplingParams
from engine.config import SpeculativeConfig
from engine.distribution import probabilities
from engine.drafters.base import DraftContext, Drafter, Drafts
from harness.distribution import expected_distributions

NewLLM = Callable[..., LLM]
PROMPTS = [list(b"The first prompt"), list(b"Another one here"), list(b"third")]
NGRAM = {"method": "ngram_gpu", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 2}
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, seed=3, max_tokens=40, ignore_eos=True)
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


def ids(llm: LLM, params: SamplingParams) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)]


class RepeatDrafter(Drafter):
    """Proposes the last token again and again."""

    def propose(self, context: DraftContext) -> Drafts:
        last = context.tokens[context.slots, context.num_tokens - 1]
        return np.repeat(last[:, None], self.num_speculative_tokens, axis=1), context.max_drafts.copy()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 3, 20]),
    top_p=st.sampled_from([0.1, 0.6, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
)
def test_probabilities(seed: int, temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    logits = torch.randn(5, 12, generator=torch.Generator().manual_seed(seed)) * 3
    logits[0, 3] = logits[0, 5]  # a tie
    logits[1, 2] = -torch.inf  # masked
    full = [torch.full((5,), value) for value in (temperature, top_k, top_p, min_p)]
    full[1] = full[1].int()
    found = probabilities(logits, *full).numpy()
    expected = expected_distributions(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_a_row_of_probabilities_does_not_depend_on_the_others() -> None:
    logits = torch.randn(7, 33, generator=torch.Generator().manual_seed(1))
    full = (torch.full((7,), 0.7), torch.full((7,), 9, dtype=torch.int32), torch.full((7,), 0.8), torch.full((7,), 0.01))
    together = probabilities(logits, *full)
    for row in range(7):
        part = slice(row, row + 1)
        assert torch.equal(together[part], probabilities(logits[part], *(value[part] for value in full)))


@pytest.mark.parametrize("method", ["coupled", "standard"])
def test_greedy_is_greedy_with_every_lossless_method(method: str, new_llm: NewLLM) -> None:
    plain = ids(new_llm(), GREEDY)
    llm = new_llm(speculative_config=NGRAM | {"rejection_sample_method": method})
    assert ids(llm, GREEDY) == plain
    assert llm.stats.num_accepted_tokens > 0


def test_standard_repeats_itself_whatever_the_schedule(new_llm: NewLLM) -> None:
    config = NGRAM | {"rejection_sample_method": "standard"}
    asynchronous = new_llm(speculative_config=config)
    expected = ids(asynchronous, SAMPLED)
    assert asynchronous.stats.num_overlapped_steps > 0
    for options in ({"async_scheduling": False}, {"max_num_batched_tokens": 8}, {"max_num_seqs": 1}):
        assert ids(new_llm(speculative_config=config, **options), SAMPLED) == expected


@pytest.mark.parametrize(
    ("given_rates", "rates"),
    [
        ({"synthetic_acceptance_rates": [0.9, 0.5, 0.1]}, (0.9, 0.5, 0.1)),
        ({"synthetic_acceptance_length": 2.4}, (1.0, 0.4, 0.0)),
        ({"synthetic_acceptance_length": 4}, (1.0, 1.0, 1.0)),
        ({"synthetic_acceptance_length": 1}, (0.0, 0.0, 0.0)),
    ],
)
def test_synthetic_acceptance(given_rates: dict[str, Any], rates: tuple[float, ...], new_llm: NewLLM) -> None:
    config = {
        "method": "custom_class",
        "model": f"{__name__}.RepeatDrafter",
        "num_speculative_tokens": 3,
        "rejection_sample_method": "synthetic",
        **given_rates,
    }
    llm = new_llm(speculative_config=config, max_model_len=256, num_kv_blocks=400, max_num_seqs=8)
    params = [SamplingParams(temperature=0, max_tokens=200, ignore_eos=True, seed=i) for i in range(20)]
    llm.generate([list(b"prompt %d" % i) for i in range(20)], params, use_tqdm=False)
    stats = llm.stats
    assert SpeculativeConfig.from_dict(config).synthetic_rates == pytest.approx(rates)
    found = [accepted / stats.num_drafts for accepted in stats.num_accepted_tokens_per_pos]
    # The last drafts of a request are cut by its limit; over a thousand drafts three standard errors are below 0.05.
    assert found == pytest.approx(rates, abs=0.05)


def test_a_users_own_drafter(new_llm: NewLLM) -> None:
    plain = ids(new_llm(), GREEDY)
    config = {"method": "custom_class", "model": f"{__name__}.RepeatDrafter", "num_speculative_tokens": 2}
    llm = new_llm(speculative_config=config)
    assert ids(llm, GREEDY) == plain
    assert llm.stats.num_drafts > 0
    assert not llm.config.async_scheduling


def test_fewer_drafts_for_more_requests(new_llm: NewLLM) -> None:
    schedule = [(1, 1, 3), (2, 2, 1), (3, 99, 0)]
    config = {"method": "custom_class", "model": f"{__name__}.RepeatDrafter", "num_speculative_tokens": 3}
    llm = new_llm(speculative_config=config | {"num_speculative_tokens_per_batch_size": schedule})
    ids(llm, GREEDY)
    assert llm.stats.num_drafts == 0, "three requests run at once, from the first step to the last"
    plain = ids(new_llm(), GREEDY)
    lengths = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (8, 20, 40)]
    outputs = [o.outputs[0] for o in llm.generate(PROMPTS, lengths, use_tqdm=False)]
    assert [o.token_ids for o in outputs] == [all_[:n] for all_, n in zip(plain, (8, 20, 40), strict=True)]
    drafted = {drafted for drafted, _ in outputs[2].stats.drafts}
    assert {1, 3} <= drafted, "one draft beside one other request, three alone"


def test_an_alias_of_mtp_means_mtp_and_says_so() -> None:
    with pytest.warns(DeprecationWarning, match="write 'mtp'"):
        assert SpeculativeConfig.from_dict({"method": "mimo_mtp", "num_speculative_tokens": 1}).method == "mtp"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SpeculativeConfig.from_dict({"method": "mtp", "num_speculative_tokens": 1})
