"""Defects that an adversary found in the engine and the oracles; each test is the smallest that showed one."""

from __future__ import annotations

import json
import signal
from dataclasses import replace

import numpy as np
import pytest

from engine import EngineConfig, InvalidRequestError, SamplingParams
from engine.drafters.ngram import NgramDrafter
from harness import errors
from harness.cli.main import main
from harness.compare import assert_prefixes_of, assert_same_outputs
from harness.workload import WorkItem
from tests.engine.support import GREEDY, Driver, make_request
from tests.harness.runs import completion, logprobs, run

MP = {"distributed_executor_backend": "mp"}


def test_an_interrupt_while_waiting_for_a_step_leaves_a_usable_engine(new_llm):
    llm = new_llm()
    expected = llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    real, count = llm._executor.submit, 0

    def submit(plan):
        nonlocal count
        count += 1
        future = real(plan)
        if count == 3:
            patched, old = future, future.result

            def result(timeout=None):
                patched.result = old
                raise KeyboardInterrupt

            future.result = result
        return future

    llm._executor.submit = submit
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[1, 2, 3], [4, 5]], GREEDY, use_tqdm=False)
    llm.check_integrity()
    assert llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)[0].outputs[0].token_ids == expected
    llm.check_integrity()


@pytest.mark.parametrize("values", [{"top_k": 2**31}, {"temperature": 1e39}, {"top_p": 1e-50}], ids=str)
def test_a_number_that_float32_or_int32_cannot_hold_does_not_kill_the_engine(values, new_llm):
    llm = new_llm()
    good = llm.generate([[5, 6, 7]], GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    try:
        params = SamplingParams(max_tokens=3, **values)
    except ValueError:
        return
    outputs = llm.generate([[5, 6, 7], [1, 2]], [GREEDY, params], use_tqdm=False, on_error="return")
    assert outputs[0].outputs[0].token_ids == good


def test_extra_args_that_cannot_travel_are_an_error_of_that_request(new_llm):
    llm = new_llm(**MP)
    bad = replace(GREEDY, extra_args={"f": lambda: 0})
    outputs = llm.generate([[5, 6, 7], [1, 2]], [GREEDY, bad], use_tqdm=False, on_error="return")
    assert len(outputs[0].outputs[0].token_ids) == 8
    assert isinstance(outputs[1].error, InvalidRequestError)


def test_async_scheduling_zero_is_not_the_default():
    try:
        config = EngineConfig(model="none", async_scheduling=0)
    except ValueError:
        return
    assert not config.resolve_async_scheduling().enabled


def test_a_text_that_cannot_be_encoded_touches_no_other(new_llm):
    outputs = new_llm().generate([[5, 6], "\ud800"], GREEDY, use_tqdm=False, on_error="return")
    assert len(outputs[0].outputs[0].token_ids) == 8
    assert isinstance(outputs[1].error, InvalidRequestError)


def test_a_list_of_numpy_prompts(new_llm):
    outputs = new_llm().generate([np.array([1, 2, 3]), np.array([4])], GREEDY, use_tqdm=False)
    assert [len(o.prompt_token_ids) for o in outputs] == [3, 1]


def test_stop_ids_that_leave_no_token_are_not_called_nan(new_llm):
    params = SamplingParams(stop_token_ids=range(259), min_tokens=2, max_tokens=3)
    output = new_llm().generate([[1, 2]], params, use_tqdm=False, on_error="return")[0]
    assert isinstance(output.error, InvalidRequestError)


def test_a_lookup_bound_of_zero_is_refused():
    with pytest.raises(ValueError, match="1 <= prompt_lookup_min"):
        NgramDrafter(3, 100, {"prompt_lookup_min": 0, "prompt_lookup_max": 3})


def test_logprobs_of_another_length_are_a_mismatch():
    left, right = completion([65, 66], logprobs=logprobs(-1.0, -2.0)), completion([65, 66], logprobs=logprobs(-1.0))
    with pytest.raises(errors.LogprobMismatchError):
        assert_same_outputs(run(a=left), run("actual", a=right), case="c")


def test_logprobs_that_only_one_run_has_are_a_mismatch():
    left, right = completion([65, 66], logprobs=logprobs(-1.0, -2.0)), completion([65, 66])
    with pytest.raises(errors.LogprobMismatchError):
        assert_same_outputs(run(a=left), run("actual", a=right), case="c")


ITEMS = [WorkItem("a", (1,), GREEDY), WorkItem("b", (1,), GREEDY, abort_after_tokens=3)]


def test_an_aborted_request_that_is_lost_is_not_passed_over():
    with pytest.raises(errors.ValidationError):
        assert_prefixes_of(run(a=completion(), b=completion()), run("actual", a=completion()), ITEMS, case="c")


def test_a_request_that_ended_before_its_abort_is_compared_whole():
    early = completion([72], finish_reason="length")
    with pytest.raises(errors.ValidationError):
        assert_prefixes_of(run(a=completion(), b=completion()), run("actual", a=completion(), b=early), ITEMS, case="c")


def test_a_prompt_that_does_not_fit_into_a_step_costs_no_cached_prefix():
    driver = Driver.make(
        asynchronous=False, enable_chunked_prefill=False, max_num_batched_tokens=32, max_model_len=32, num_kv_blocks=24
    )
    old = make_request("old", range(16))
    driver.add(old)
    driver.run()
    running = [make_request(str(i), [20 + i], max_new_tokens=12, arrival=1 + i) for i in range(3)]
    driver.add(*running)
    for _ in range(2):
        driver.step()
    before = driver.scheduler.kv_cache.pool.num_cached
    driver.add(make_request("waits", [9] * 30, max_new_tokens=1, arrival=9))
    for _ in range(4):
        driver.step()
    assert not driver.scheduler.waiting[0].output_token_ids
    assert driver.scheduler.kv_cache.pool.num_cached == before > 0


def test_json_on_standard_output_is_json(toy_model, capsys):
    arguments = ["generate", "--model", toy_model, "--prompt", "x", "--options", "max_model_len=32", "--json", "-"]
    assert main([*arguments, "--sampling", "max_tokens=2"]) == 0
    json.loads(capsys.readouterr().out)


def test_the_text_of_a_failed_request_is_that_of_its_ids(new_llm):

    llm = new_llm()
    runner = llm._executor._runner
    real, count = runner.model.logits, 0

    def logits(hidden):
        nonlocal count
        out = real(hidden)
        count += 1
        out[:] = float("nan") if count == 3 else out
        if count < 3:
            out[:, [0x61, 0xE2][count - 1]] = 99.0  # "a", then the first byte of a longer character
        return out

    runner.model.logits = logits
    output = llm.generate([[1, 2]], GREEDY, use_tqdm=False, on_error="return")[0].outputs[0]
    assert output.token_ids == [0x61, 0xE2]
    assert output.text == llm.get_tokenizer().decode(output.token_ids)


@pytest.mark.parametrize("accept", [[], [-1]], ids=str)
def test_a_script_that_cannot_be_is_refused(accept):
    from harness.scripted import script

    with pytest.raises(ValueError):
        script([[1, 2, 3]], accept)


@pytest.mark.parametrize("place", ["schedule", "commit"])
def test_an_interrupt_while_the_books_are_written_waits_until_they_are(place, new_llm):
    llm = new_llm()
    expected = llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    scheduler = llm._core.scheduler
    real, count = getattr(scheduler, place), 0

    def interrupted(*arguments):
        nonlocal count
        count += 1
        if count == 3:
            signal.raise_signal(signal.SIGINT)
        return real(*arguments)

    setattr(scheduler, place, interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[1, 2, 3], [4, 5]], GREEDY, use_tqdm=False)
    llm.check_integrity()
    assert llm.generate([[1, 2, 3]], GREEDY, use_tqdm=False)[0].outputs[0].token_ids == expected


@pytest.mark.parametrize("values", [{"stop": 5}, {"stop_token_ids": 5}], ids=str)
def test_a_list_that_is_none_is_refused(values):
    with pytest.raises(ValueError, match="must be a list"):
        SamplingParams(**values)


def test_a_prompt_file_keeps_its_line_numbers_and_its_separators(tmp_path, toy_model, capsys):
    prompts = tmp_path / "p.jsonl"
    options = ["--options", "max_model_len=64", "--sampling", "max_tokens=1"]
    prompts.write_text('\ufeff{"question": "x\u2028y"}\n\n{"prompt": null}\n', encoding="utf-8")
    assert main(["generate", "--model", toy_model, "--prompts", str(prompts), *options]) == 2
    assert "line 3" in capsys.readouterr().err
    prompts.write_text('\ufeff{"question": "x\u2028y"}\n', encoding="utf-8")
    assert main(["generate", "--model", toy_model, "--prompts", str(prompts), *options]) == 0


def test_diff_leaves_out_a_prompt_that_is_too_long(tmp_path, toy_model, capsys):
    prompts = tmp_path / "p.txt"
    prompts.write_text("x" * 100 + "\nok\n", encoding="utf-8")
    sides = ["--a", "max_model_len=64", "--b", "max_model_len=32"]
    assert main(["diff", "--model", toy_model, *sides, "--prompts", str(prompts), "--sampling", "max_tokens=2"]) == 2
    out = capsys.readouterr().out
    assert "prompt 0 is left out" in out
    assert "1 of 1 prompts are identical" in out
