"""A row of NaN ends its own request with a named error; the model is broken from outside, on one engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine import LLM, NanLogitsError, RequestFailedError, SamplingParams
from engine.model import Batch, Hidden
from harness.scripted import METHOD, PLUGIN, script
from tests.engine.support import GREEDY

NewLLM = Callable[..., LLM]
PROMPTS = [list(b"The first prompt"), list(b"Another one here"), list(b"third")]


def generate(llm: LLM, prompts: Any, params: Any = GREEDY, **options: Any) -> Any:
    return llm.generate(prompts, params, use_tqdm=False, **options)


def break_model(llm: LLM, prefix: list[int], value: float = float("nan")) -> None:
    """The logits behind exactly `prefix` become `value`, whichever step, row or slot computes them."""
    runner: Any = llm._executor._runner  # type: ignore[attr-defined]
    real_forward, real_logits = runner.model.forward, runner.model.logits
    bad: list[torch.Tensor] = []

    def forward(batch: Batch, layer_ids: Sequence[int] = ()) -> Hidden:
        hidden: Hidden = real_forward(batch, layer_ids)
        tokens = runner.table.tokens
        bad[:] = [
            row
            for row, slot, position in zip(hidden.normed, batch.rows.tolist(), batch.positions.tolist(), strict=True)
            if position == len(prefix) - 1 and tokens[slot, : position + 1].tolist() == prefix
        ]
        return hidden

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = real_logits(hidden)
        for row in bad:
            out[(hidden == row).all(dim=1)] = value
        return out

    runner.model.forward, runner.model.logits = forward, logits


@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("index", [0, 1, 3, 7])
def test_the_request_ends_there_and_no_other(index: int, asynchronous: bool, temperature: float, new_llm: NewLLM) -> None:
    params = replace(GREEDY, temperature=temperature, seed=3)
    llm = new_llm(async_scheduling=asynchronous)
    expected = [o.outputs[0] for o in generate(llm, PROMPTS, params)]
    llm = new_llm(async_scheduling=asynchronous)
    break_model(llm, [*PROMPTS[1], *expected[1].token_ids[:index]])
    with pytest.raises(RequestFailedError, match=r"prompt 1: .*NaN at position") as caught:
        generate(llm, PROMPTS, params)
    assert list(caught.value.errors) == [1]
    failed: Any = caught.value.outputs[1]
    assert isinstance(failed.error, NanLogitsError)
    assert f"position {len(PROMPTS[1]) + index};" in str(failed.error)
    assert (failed.finished, failed.outputs[0].finish_reason) == (True, "error")
    assert failed.outputs[0].token_ids == expected[1].token_ids[:index]
    for i in (0, 2):
        output: Any = caught.value.outputs[i]
        assert (output.error, output.outputs[0].token_ids) == (None, expected[i].token_ids)
        assert output.outputs[0].text == expected[i].text
    assert (llm.stats.num_nan_rows, llm.stats.num_finished["error"]) == (1, 1)
    llm.check_integrity()
    again = generate(llm, [PROMPTS[0], PROMPTS[2]], params)
    assert [o.outputs[0].token_ids for o in again] == [expected[0].token_ids, expected[2].token_ids]


@pytest.mark.parametrize("value", [float("inf"), float("-inf")], ids=str)
def test_logits_without_a_finite_largest_value_are_the_same_error(value: float, new_llm: NewLLM) -> None:
    llm = new_llm()
    break_model(llm, PROMPTS[1], value)
    outputs = generate(llm, PROMPTS, on_error="return")
    assert [isinstance(o.error, NanLogitsError) for o in outputs] == [False, True, False]


@pytest.mark.parametrize("index", range(1, 6))
def test_at_each_place_of_an_accepted_run(index: int, new_llm: NewLLM) -> None:
    """P-04: the tokens before the NaN row are emitted, none behind it, and the counters add up."""
    depth = 4
    truth = generate(new_llm(), PROMPTS)
    llm = new_llm(speculative_config={"method": METHOD, "num_speculative_tokens": depth}, plugins=(PLUGIN,))
    break_model(llm, [*PROMPTS[1], *truth[1].outputs[0].token_ids[:index]])
    params = [replace(GREEDY, logprobs=1, extra_args=script([o.outputs[0].token_ids], [99])) for o in truth]
    outputs = generate(llm, PROMPTS, params, on_error="return")
    failed = outputs[1].outputs[0]
    assert failed.token_ids == truth[1].outputs[0].token_ids[:index]
    assert len(failed.logprobs) == index
    assert failed.stats.num_prefills + failed.stats.num_decode_steps + failed.stats.num_accepted_tokens == index
    for i in (0, 2):
        assert outputs[i].outputs[0].token_ids == truth[i].outputs[0].token_ids
    llm.check_integrity()


def test_a_rejected_draft_may_lead_to_nan(new_llm: NewLLM) -> None:
    """NaN behind a token that the target itself does not choose is nobody's business."""
    truth = generate(new_llm(), PROMPTS)
    ids = truth[1].outputs[0].token_ids
    llm = new_llm(speculative_config={"method": METHOD, "num_speculative_tokens": 3}, plugins=(PLUGIN,))
    wrong = (ids[1] + 1) % 259
    break_model(llm, [*PROMPTS[1], ids[0], wrong])
    params = [replace(GREEDY, extra_args=script([o.outputs[0].token_ids], [0])) for o in truth]
    outputs = generate(llm, PROMPTS, params)
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in truth]


def test_the_blocks_of_a_bad_request_leave_the_prefix_cache(new_llm: NewLLM) -> None:
    prompt = list(b"0123456789abcdefghij")
    llm = new_llm()
    truth = generate(llm, [prompt])[0].outputs[0].token_ids
    assert generate(llm, [prompt])[0].outputs[0].stats.num_cached_tokens == 16
    llm = new_llm()
    break_model(llm, [*prompt, *truth[:3]])
    assert generate(llm, [prompt], on_error="return")[0].error is not None
    output = generate(llm, [prompt], replace(GREEDY, max_tokens=3))[0].outputs[0]
    assert (output.stats.num_cached_tokens, output.token_ids) == (0, truth[:3])


def test_a_completion_of_several_fails_and_the_error_is_on_the_output(new_llm: NewLLM) -> None:
    params = SamplingParams(n=3, temperature=1.0, seed=4, max_tokens=6, ignore_eos=True)
    expected = [c.token_ids for c in generate(new_llm(), [PROMPTS[0]], params)[0].outputs]
    llm = new_llm()
    break_model(llm, [*PROMPTS[0], *expected[1][:2]])
    output = generate(llm, [PROMPTS[0]], params, on_error="return")[0]
    assert isinstance(output.error, NanLogitsError)
    assert [c.finish_reason for c in output.outputs] == ["length", "error", "length"]
    assert [c.token_ids for c in output.outputs] == [expected[0], expected[1][:2], expected[2]]
