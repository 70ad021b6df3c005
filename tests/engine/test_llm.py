"""The front end: bad input is a clear error and nothing else is lost; outputs, log-probabilities, seeds, ids, aborts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine import LLM, InvalidRequestError, RequestFailedError, RequestOutput, SamplingParams, UnknownOptionError
from engine.metrics import Counter, Vector
from harness.scripted import METHOD, PLUGIN, script
from harness.toy_model import BOS_ID
from tests.engine.support import GREEDY

NewLLM = Callable[..., LLM]
MAX_MODEL_LEN = 64
GOOD = [list(b"The first"), list(b"The second one"), list(b"x")]


def answers(outputs: list[RequestOutput]) -> list[Any]:
    return [[(c.token_ids, c.text, c.finish_reason, c.stop_reason, c.logprobs) for c in o.outputs] for o in outputs]


def generate(llm: LLM, prompts: Any, params: Any = GREEDY, **options: Any) -> list[RequestOutput]:
    return llm.generate(prompts, params, use_tqdm=False, **options)


def step_to_the_end(llm: LLM) -> dict[str, RequestOutput]:
    outputs = {}
    while llm.has_unfinished_requests():
        outputs |= {output.request_id: output for output in llm.step()}
    return outputs


# --- bad input -----------------------------------------------------------------------------------------------------------

BAD_REQUESTS: dict[str, tuple[Any, SamplingParams, str]] = {
    "empty-prompt": ([], GREEDY, "the prompt is empty; give at least one token"),
    "max-model-len": ([65] * MAX_MODEL_LEN, GREEDY, "max_model_len=64 allows 63 at most"),
    "max-model-len+1": ([65] * (MAX_MODEL_LEN + 1), GREEDY, "the prompt has 65 tokens"),
    "id-too-large": ([65, 259], GREEDY, "token id 259; the vocabulary has the ids 0 to 258"),
    "negative-id": ([65, -1], GREEDY, "token id -1"),
    "stop-id-too-large": ([65], replace(GREEDY, stop_token_ids=[259]), "stop_token_ids holds token id 259"),
    "logprobs-too-many": ([65], replace(GREEDY, logprobs=260), "above the vocabulary size"),
    "unknown-key": ({"promt": "a"}, GREEDY, "'prompt' or 'prompt_token_ids', got ..promt"),
    "no-integers": ([65, 1.5], GREEDY, "text or a list of integer token ids"),
    "no-prompt": (None, GREEDY, "text or a list of integer token ids"),
    "two-keys": ({"prompt": "a", "prompt_token_ids": [1]}, GREEDY, "'prompt' or 'prompt_token_ids'"),
}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("place", [0, 1, 3], ids=["first", "middle", "last"])
@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_a_bad_request_touches_no_other(case: str, place: int, asynchronous: bool, new_llm: NewLLM) -> None:
    prompt, params, message = BAD_REQUESTS[case]
    expected = answers(generate(new_llm(), GOOD))
    llm = new_llm(async_scheduling=asynchronous)
    prompts: list[Any] = [*GOOD[:place], prompt, *GOOD[place:]]
    sampling = [GREEDY] * 4
    sampling[place] = params
    with pytest.raises(RequestFailedError, match=message) as caught:
        generate(llm, prompts, sampling)
    assert list(caught.value.errors) == [place]
    assert isinstance(caught.value.errors[place], InvalidRequestError)
    finished: list[Any] = list(caught.value.outputs)
    assert finished.pop(place) is None
    assert answers(finished) == expected

    outputs = generate(llm, prompts, sampling, on_error="return")
    failed = outputs.pop(place)
    assert answers(outputs) == expected
    assert all(output.error is None for output in outputs)
    assert isinstance(failed.error, InvalidRequestError)
    assert (failed.finished, failed.outputs) == (True, [])
    llm.check_integrity()
    assert answers(generate(llm, GOOD)) == expected, "the engine goes on"


def test_the_longest_prompt_gets_its_one_token(new_llm: NewLLM) -> None:
    llm = new_llm()
    output = generate(llm, [[65] * (MAX_MODEL_LEN - 1)])[0].outputs[0]
    assert (len(output.token_ids), output.finish_reason) == (1, "length")
    llm.check_integrity()


def test_max_tokens_is_cut_at_max_model_len(new_llm: NewLLM) -> None:
    llm = new_llm()
    for max_tokens in (None, 60, 500):
        output = generate(llm, [[65] * 10], replace(GREEDY, max_tokens=max_tokens))[0].outputs[0]
        assert (len(output.token_ids), output.finish_reason) == (MAX_MODEL_LEN - 10, "length")


@pytest.mark.parametrize("empty", [[], ()], ids=str)
def test_an_empty_list_of_prompts(empty: Any, new_llm: NewLLM) -> None:
    llm = new_llm()
    with pytest.raises(InvalidRequestError, match="list of prompts is empty; give at least one"):
        generate(llm, empty)
    assert generate(llm, GOOD)


def test_a_pool_too_small_for_one_request(new_llm: NewLLM) -> None:
    """10 + 8 tokens need 5 blocks of 4; the last token never goes through the model."""
    llm = new_llm(num_kv_blocks=4, async_scheduling=True)
    outputs = generate(llm, [[65] * 9, [65] * 10, [65] * 8], on_error="return")
    assert [output.error is None for output in outputs] == [True, False, True]
    assert "may need 5 KV blocks" in str(outputs[1].error)
    assert "raise num_kv_blocks" in str(outputs[1].error)
    assert [len(outputs[i].outputs[0].token_ids) for i in (0, 2)] == [8, 8]
    llm.check_integrity()


def test_an_unknown_option_names_the_nearest(toy_model: str) -> None:
    with pytest.raises(UnknownOptionError, match="Did you mean 'max_model_len'"):
        LLM(toy_model, max_modellen=5)


def test_the_number_of_sampling_parameters_must_fit(new_llm: NewLLM) -> None:
    llm = new_llm()
    with pytest.raises(ValueError, match="3 prompts and 2 sampling parameters; give one, or one for each"):
        generate(llm, GOOD, [GREEDY, GREEDY])
    assert not llm.has_unfinished_requests()


def test_a_duplicate_request_id(new_llm: NewLLM) -> None:
    llm = new_llm()
    expected = generate(llm, [GOOD[0]])[0].outputs[0].token_ids
    llm.add_request("a", GOOD[0], GREEDY)
    llm.step()
    with pytest.raises(InvalidRequestError, match="'a' is in use by an unfinished request; choose another"):
        llm.add_request("a", GOOD[1], GREEDY)
    assert step_to_the_end(llm)["a"].outputs[0].token_ids == expected
    llm.add_request("a", GOOD[0], GREEDY)
    assert step_to_the_end(llm)["a"].outputs[0].token_ids == expected


def test_an_error_of_one_request_leaves_the_others_of_add_request(new_llm: NewLLM) -> None:
    llm = new_llm()
    expected = generate(llm, [GOOD[0]])[0].outputs[0].token_ids
    llm.add_request("a", GOOD[0], GREEDY)
    for prompt, params, message in BAD_REQUESTS.values():
        with pytest.raises(InvalidRequestError, match=message):
            llm.add_request("b", prompt, params)
    llm.add_request("b", GOOD[0], GREEDY)
    outputs = step_to_the_end(llm)
    assert [outputs[name].outputs[0].token_ids for name in "ab"] == [expected, expected]
    llm.check_integrity()


def test_generate_is_refused_while_requests_of_add_request_run(new_llm: NewLLM) -> None:
    llm = new_llm()
    llm.add_request("a", GOOD[0], GREEDY)
    with pytest.raises(InvalidRequestError, match=r"finish them with step\(\) or abort\(\)"):
        generate(llm, GOOD)
    assert len(step_to_the_end(llm)["a"].outputs[0].token_ids) == 8


def test_an_engine_without_tokenizer_says_so(new_llm: NewLLM) -> None:
    llm = new_llm(skip_tokenizer_init=True)
    outputs = generate(llm, ["text", GOOD[0]], on_error="return")
    assert "give token ids" in str(outputs[0].error)
    assert (outputs[1].outputs[0].text, len(outputs[1].outputs[0].token_ids)) == ("", 8)
    failed = generate(llm, [GOOD[0]], SamplingParams(stop="a"), on_error="return")[0]
    assert "stop strings need a tokenizer" in str(failed.error)
    with pytest.raises(ValueError, match="no tokenizer"):
        llm.get_tokenizer()


# --- prompts and outputs -------------------------------------------------------------------------------------------------


def test_every_form_of_a_prompt(new_llm: NewLLM) -> None:
    llm = new_llm()
    ids = [BOS_ID, *b"Hello"]
    expected = generate(llm, [ids])[0].outputs[0].token_ids
    for prompt in ("Hello", {"prompt": "Hello"}, ids, tuple(ids), {"prompt_token_ids": ids}):
        outputs = generate(llm, prompt) + generate(llm, [prompt])
        assert [o.outputs[0].token_ids for o in outputs] == [expected, expected]
        assert outputs[0].prompt_token_ids == ids
    assert generate(llm, "Hello")[0].prompt == "Hello"


def test_the_text_is_that_of_the_ids(new_llm: NewLLM) -> None:
    llm = new_llm(max_num_seqs=3)
    params = [SamplingParams(temperature=2.5, seed=seed, max_tokens=30, ignore_eos=True) for seed in range(8)]
    outputs = generate(llm, [GOOD[0]] * 8, params)
    assert any("\ufffd" in output.outputs[0].text for output in outputs), "none of them broke a character"
    for output in outputs:
        assert output.outputs[0].text == llm.get_tokenizer().decode(output.outputs[0].token_ids)


def test_detokenize_false_gives_no_text(new_llm: NewLLM) -> None:
    llm = new_llm()
    plain, silent = generate(llm, [GOOD[0]] * 2, [GREEDY, replace(GREEDY, detokenize=False)])
    assert silent.outputs[0].text == "" != plain.outputs[0].text
    assert silent.outputs[0].token_ids == plain.outputs[0].token_ids


def test_step_gives_growing_outputs(new_llm: NewLLM) -> None:
    llm = new_llm(async_scheduling=True)
    expected = generate(llm, [GOOD[0]])[0].outputs[0]
    llm.add_request("a", GOOD[0], GREEDY)
    seen: list[list[int]] = []
    while llm.has_unfinished_requests():
        for output in llm.step():
            seen.append(output.outputs[0].token_ids)
            assert output.finished == (len(seen[-1]) == 8)
    assert seen == [expected.token_ids[:n] for n in range(1, 9)]
    assert llm.step() == [], "nothing to do is no error"


def test_chat_goes_through_the_template(new_llm: NewLLM) -> None:
    llm = new_llm()
    messages = [{"role": "user", "content": "hi"}]
    one = llm.chat(messages, GREEDY, use_tqdm=False)
    two = llm.chat([messages, messages], GREEDY, use_tqdm=False)
    expected = generate(llm, [llm.get_tokenizer().encode("<s>[user] hi\n[assistant] ", add_special_tokens=False)])
    assert one[0].prompt_token_ids == expected[0].prompt_token_ids
    assert answers(one + two) == answers(expected) * 3
    bare = llm.chat(messages, GREEDY, use_tqdm=False, add_generation_prompt=False)
    assert bare[0].prompt_token_ids == one[0].prompt_token_ids[: -len("[assistant] ")]
    with pytest.raises(InvalidRequestError, match="empty"):
        llm.chat([], GREEDY)


def test_completions_of_one_prompt(new_llm: NewLLM) -> None:
    llm = new_llm(max_num_seqs=2)
    params = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=8)
    output = generate(llm, [GOOD[0]], params)[0]
    assert [c.index for c in output.outputs] == [0, 1, 2]
    assert len({tuple(c.token_ids) for c in output.outputs}) == 3, "each has its own draws"
    assert answers(generate(llm, [GOOD[0]], params)) == answers([output])
    alone = generate(llm, [GOOD[0]], replace(params, n=1))[0]
    assert answers([alone])[0] == answers([output])[0][:1]
    llm.check_integrity()


def test_a_context_manager_frees_the_engine(toy_model: str) -> None:
    with LLM(toy_model, max_model_len=32, num_threads=1) as llm:
        generate(llm, GOOD)
    assert not hasattr(llm._executor, "_runner")
    llm.shutdown()


# --- log-probabilities ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, 1, 4, 259])
def test_logprobs_of_every_token(k: int, new_llm: NewLLM, toy_model: str) -> None:
    """P-08: against log_softmax in float64 of a fresh forward over the tokens before; the chosen token is always among them.

    They are raw: neither the temperature, nor top-k, nor the stop ids that min_tokens masks show in them.
    """
    import torch

    from harness.transformers_reference import engine_logits

    llm = new_llm()
    params = SamplingParams(
        temperature=1.1, top_k=30, seed=3, max_tokens=10, min_tokens=10, stop_token_ids=range(60, 127), logprobs=k
    )
    for prompt in GOOD:
        output = generate(llm, [prompt], params)[0].outputs[0]
        assert output.logprobs is not None
        assert len(output.logprobs) == len(output.token_ids) == 10
        logits = engine_logits(toy_model, [[*prompt, *output.token_ids]])[0][len(prompt) - 1 : -1]
        for token, entries, row in zip(output.token_ids, output.logprobs, logits, strict=True):
            expected = torch.log_softmax(row.double(), dim=-1)
            order = sorted(range(259), key=lambda i: (-float(row[i]), i))
            assert set(entries) == {*order[:k], token}
            for place, (i, entry) in enumerate(entries.items(), start=1):
                assert entry.logprob == pytest.approx(float(expected[i]), abs=1e-9)
                assert entry.rank == (place if i in order[:k] else order.index(i) + 1)
                assert entry.decoded_token == llm.get_tokenizer().decode([i], skip_special_tokens=False)


@pytest.mark.parametrize("variant", ["chunked", "preempted", "cached", "speculative", "mixed-batch"])
def test_logprobs_do_not_depend_on_how_they_were_computed(variant: str, new_llm: NewLLM) -> None:
    params = SamplingParams(temperature=0.9, seed=3, max_tokens=14, logprobs=5, ignore_eos=True)
    prompts = [list(b"The quick brown fox"), list(b"jumps"), list(b"over the lazy")]
    plain = new_llm(async_scheduling=False, enable_prefix_caching=False, max_num_seqs=1)
    expected = answers(generate(plain, prompts, params))
    options: dict[str, Any] = {
        "chunked": {"max_num_batched_tokens": 5},
        "preempted": {"num_kv_blocks": 11},
        "speculative": {"speculative_config": {"method": METHOD, "num_speculative_tokens": 3}, "plugins": (PLUGIN,)},
    }.get(variant, {})
    llm = new_llm(**options)
    scripted = [replace(params, extra_args=script([e[0][0]], [3, 0, 1, 2])) for e in expected]
    actual = answers(generate(llm, prompts, scripted))
    if variant == "cached":
        actual = answers(generate(llm, prompts, scripted))
    if variant == "mixed-batch":
        outputs = generate(llm, [*prompts, GOOD[0]], [*scripted, replace(GREEDY, logprobs=None)])
        assert outputs[-1].outputs[0].logprobs is None
        actual = answers(outputs[:-1])
    assert actual == expected
    stats = llm.stats
    happened = {
        "chunked": stats.num_partial_prefills,
        "preempted": stats.num_preemptions,
        "cached": stats.num_prefix_hits,
        "speculative": stats.num_accepted_tokens,
        "mixed-batch": 1,
    }
    assert happened[variant] > 0


def test_a_stop_inside_an_accepted_run_cuts_the_logprobs_too(new_llm: NewLLM) -> None:
    """T-01"""
    base = SamplingParams(temperature=0.9, seed=3, max_tokens=14, logprobs=2, ignore_eos=True)
    truth = generate(new_llm(), [GOOD[0]], base)[0].outputs[0]
    llm = new_llm(speculative_config={"method": METHOD, "num_speculative_tokens": 6}, plugins=(PLUGIN,))
    stop = truth.token_ids[3]
    cut = truth.token_ids.index(stop) + 1
    params = replace(base, stop_token_ids=[stop], extra_args=script([truth.token_ids], [99]))
    output = generate(llm, [GOOD[0]], params)[0].outputs[0]
    assert truth.logprobs is not None
    assert (output.token_ids, output.logprobs) == (truth.token_ids[:cut], truth.logprobs[:cut])


# --- seeds ---------------------------------------------------------------------------------------------------------------

SAMPLED = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)


def test_an_unseeded_request_takes_its_seed_from_the_engine_and_its_arrival(new_llm: NewLLM) -> None:
    first, second = new_llm(), new_llm(max_num_seqs=1, max_num_batched_tokens=8)
    a, b = (answers(generate(llm, [GOOD[0]] * 3, SAMPLED)) for llm in (first, second))
    assert a == b
    assert a[0] != a[1] != a[2] != a[0]
    assert answers(generate(first, [GOOD[0]] * 3, SAMPLED)) != a, "later arrivals have other seeds"
    assert answers(generate(new_llm(seed=1), [GOOD[0]] * 3, SAMPLED)) != a


def test_a_refused_request_counts_as_an_arrival(new_llm: NewLLM) -> None:
    """The seeds of the others do not depend on whether a request among them was good."""
    expected = answers(generate(new_llm(), [GOOD[0]] * 3, SAMPLED))
    actual = generate(new_llm(), [GOOD[0], [], GOOD[0]], SAMPLED, on_error="return")
    assert answers([actual[0], actual[2]]) == [expected[0], expected[2]]


def test_a_seed_is_an_address(new_llm: NewLLM) -> None:
    llm = new_llm()
    seeds = [7, 8, 7, -1, 2**63 - 1, -(2**63)]
    results = answers(generate(llm, [GOOD[0]] * len(seeds), [replace(SAMPLED, seed=seed) for seed in seeds]))
    assert results[0] == results[2]
    assert len({str(result) for result in results}) == len(seeds) - 1


def test_min_tokens_holds_back_eos_and_stop_ids(new_llm: NewLLM) -> None:
    llm = new_llm()
    stops = [t for t in range(259) if t % 2]
    outputs = generate(
        llm, [GOOD[0]] * 12, [SamplingParams(seed=i, max_tokens=20, min_tokens=i, stop_token_ids=stops) for i in range(12)]
    )
    for least, output in enumerate(outputs):
        tokens = output.outputs[0].token_ids
        assert len(tokens) > least
        assert all(token % 2 == 0 for token in tokens[:least])
        assert output.outputs[0].finish_reason == "stop"


# --- ids and aborts ------------------------------------------------------------------------------------------------------


def test_abort_of_what_is_not_there(new_llm: NewLLM) -> None:
    llm = new_llm()
    assert llm.abort("never") is None
    llm.add_request("a", GOOD[0], GREEDY)
    step_to_the_end(llm)
    assert llm.abort("a") is None
    llm.add_request("a", GOOD[0], GREEDY)
    assert llm.abort("a") is not None
    assert llm.abort("a") is None
    llm.check_integrity()


@pytest.mark.parametrize("num_steps", range(5))
def test_an_id_is_free_again_while_a_step_of_its_old_request_is_in_flight(num_steps: int, new_llm: NewLLM) -> None:
    """S-08: nothing of the old life reaches the new one."""
    llm = new_llm(async_scheduling=True)
    expected = {i: generate(llm, [prompt])[0].outputs[0].token_ids for i, prompt in enumerate(GOOD)}
    llm.add_request("other", GOOD[2], GREEDY)
    llm.add_request("a", GOOD[0], GREEDY)
    for _ in range(num_steps):
        llm.step()
    gone = llm.abort("a")
    assert gone is not None
    assert (gone.finished, gone.outputs[0].finish_reason) == (True, "abort")
    assert gone.outputs[0].token_ids == expected[0][: len(gone.outputs[0].token_ids)]
    llm.add_request("a", GOOD[1], GREEDY)
    llm.check_integrity()
    outputs = step_to_the_end(llm)
    assert outputs["a"].outputs[0].token_ids == expected[1]
    assert outputs["other"].outputs[0].token_ids == expected[2]
    llm.check_integrity()


def test_ids_of_completions_and_of_requests_do_not_meet(new_llm: NewLLM) -> None:
    """The second completion of "a" is another request than "a#1"."""
    llm = new_llm()
    params = replace(SAMPLED, seed=3, max_tokens=6)
    expected = [c.token_ids for c in generate(llm, [GOOD[0]], replace(params, n=2))[0].outputs]
    llm.add_request("a", GOOD[0], replace(params, n=2))
    llm.add_request("a#1", GOOD[1], GREEDY)
    outputs = step_to_the_end(llm)
    assert [c.token_ids for c in outputs["a"].outputs] == expected
    assert outputs["a#1"].outputs[0].token_ids == generate(llm, [GOOD[1]])[0].outputs[0].token_ids
    llm.check_integrity()


def test_the_id_of_a_stopped_request_is_free_at_once(new_llm: NewLLM) -> None:
    llm = new_llm(async_scheduling=True)
    truth = generate(llm, [GOOD[0]])[0].outputs[0].token_ids
    params = replace(GREEDY, stop_token_ids=[truth[2]])
    for _ in range(3):
        llm.add_request("a", GOOD[0], params)
        assert step_to_the_end(llm)["a"].outputs[0].token_ids == truth[: truth.index(truth[2]) + 1]
    llm.check_integrity()
    assert llm.stats.num_dropped_rows > 0, "no step was in flight behind a stop"


def test_an_abort_ends_all_completions(new_llm: NewLLM) -> None:
    llm = new_llm(max_num_seqs=2)
    llm.add_request("a", GOOD[0], replace(SAMPLED, n=4, seed=1))
    for _ in range(3):
        llm.step()
    output = llm.abort("a")
    assert output is not None
    assert [c.finish_reason for c in output.outputs] == ["abort"] * 4
    llm.check_integrity()


# --- interruptions and neighbours ----------------------------------------------------------------------------------------


def test_an_interrupt_between_steps_leaves_a_usable_engine(new_llm: NewLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = new_llm()
    expected = answers(generate(llm, GOOD))
    real_step, count = llm._core.step, 0

    def step() -> Any:
        nonlocal count
        count += 1
        if count == 4:
            raise KeyboardInterrupt
        return real_step()

    with monkeypatch.context() as patch:
        patch.setattr(llm._core, "step", step)
        with pytest.raises(KeyboardInterrupt):
            generate(llm, GOOD)
    assert not llm.has_unfinished_requests()
    llm.check_integrity()
    assert answers(generate(llm, GOOD)) == expected


def test_two_engines_take_turns(new_llm: NewLLM) -> None:
    """Law 12: different models, modes and lengths, interleaved step by step."""
    from harness.toy_model import toy_model_path

    make = [
        lambda: new_llm(async_scheduling=False, max_num_seqs=2),
        lambda: new_llm(model=str(toy_model_path("Qwen3ForCausalLM")), block_size=8, max_num_batched_tokens=7),
    ]
    params = replace(SAMPLED, seed=2, max_tokens=15)
    expected = [answers(generate(one(), GOOD, params)) for one in make]
    both = [one() for one in make]
    outputs: list[dict[str, RequestOutput]] = [{}, {}]
    for llm in both:
        for i, prompt in enumerate(GOOD):
            llm.add_request(str(i), prompt, params)
    while any(llm.has_unfinished_requests() for llm in both):
        for llm, found in zip(both, outputs, strict=True):
            found |= {output.request_id: output for output in llm.step()}
    assert [answers([found[str(i)] for i in range(3)]) for found in outputs] == expected
    assert expected[0] != expected[1]


def test_a_request_does_not_depend_on_its_neighbours_with_other_parameters(new_llm: NewLLM) -> None:
    """P-01, P-03: what one request asks for reaches its own rows only."""
    params = [
        GREEDY,
        replace(SAMPLED, seed=1),
        replace(SAMPLED, seed=2, top_k=3),
        replace(SAMPLED, seed=3, top_p=0.4),
        replace(SAMPLED, seed=4, min_p=0.3),
        replace(SAMPLED, seed=5, temperature=3.0),
        replace(GREEDY, min_tokens=8, stop_token_ids=list(range(60, 120))),
    ]
    together = answers(generate(new_llm(max_num_seqs=8), [GOOD[1]] * len(params), params))
    llm = new_llm(max_num_seqs=1)
    assert together == [answers(generate(llm, [GOOD[1]], p))[0] for p in params]
    assert together[0] != together[6], "the mask changed nothing"


# --- metrics -------------------------------------------------------------------------------------------------------------


def test_metrics_have_the_names_of_vllm(new_llm: NewLLM) -> None:
    llm = new_llm(
        speculative_config={"method": "ngram_gpu", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
    )
    outputs = generate(llm, [list(b"abcabcabcabc"), list(b"xyxyxyxyxy")], replace(GREEDY, max_tokens=30))
    metrics = {metric.name: metric for metric in llm.get_metrics()}
    stats = llm.stats
    expected = {
        "vllm:prompt_tokens": 22,
        "vllm:generation_tokens": sum(len(o.outputs[0].token_ids) for o in outputs),
        "vllm:num_preemptions": 0,
        "vllm:prefix_cache_queries": 22,
        "vllm:prefix_cache_hits": 0,
        "vllm:spec_decode_num_drafts": stats.num_drafts,
        "vllm:spec_decode_num_draft_tokens": stats.num_drafted_tokens,
        "vllm:spec_decode_num_accepted_tokens": stats.num_accepted_tokens,
    }
    for name, value in expected.items():
        metric = metrics[name]
        assert isinstance(metric, Counter)
        assert metric.value == value
    per_pos = metrics["vllm:spec_decode_num_accepted_tokens_per_pos"]
    assert isinstance(per_pos, Vector)
    assert (len(per_pos.values), sum(per_pos.values)) == (3, stats.num_accepted_tokens)
    assert stats.num_drafts > 0
    assert stats.acceptance_rate == stats.num_accepted_tokens / stats.num_drafted_tokens
    assert stats.acceptance_length == 1 + stats.num_accepted_tokens / stats.num_drafts


def test_figures_without_drafts(new_llm: NewLLM) -> None:
    """M-02: no draft is no rate, and each step still gives one token."""
    llm = new_llm()
    generate(llm, GOOD)
    assert (llm.stats.acceptance_rate, llm.stats.acceptance_length) == (None, 1.0)
    assert math.isfinite(llm.stats.acceptance_length)


def test_stats_are_a_copy(new_llm: NewLLM) -> None:
    llm = new_llm()
    before = llm.stats
    generate(llm, GOOD)
    assert (before.num_steps, before.num_finished) == (0, {})
    assert llm.stats.num_finished == {"length": 3}
