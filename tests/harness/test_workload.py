"""One engine driven through arrivals and aborts, and what every run is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from engine import LLM, IntegrityError, InvalidRequestError, SamplingParams
from harness import errors
from harness.compare import assert_same_outputs
from harness.equivalence import DRAFTERS, check_async_equals_sync
from harness.reference import make_reference
from harness.workload import WorkItem, checked, prompt_hash, run_one_at_a_time, run_workload

PARAMS = SamplingParams(temperature=0.8, seed=5, max_tokens=9, ignore_eos=True)
OPTIONS: dict[str, Any] = {"max_model_len": 64, "block_size": 4, "num_kv_blocks": 64, "max_num_seqs": 3, "num_threads": 1}


def items(count: int = 4) -> list[WorkItem]:
    return [WorkItem(f"r{i}", tuple(range(40 + i, 50 + 3 * i)), replace(PARAMS, seed=i)) for i in range(count)]


@pytest.fixture
def llm(toy_model: str) -> Iterator[LLM]:
    with LLM(toy_model, **OPTIONS) as made:
        yield made


def test_a_workload_is_run_to_its_end(llm: LLM) -> None:
    run = run_workload(llm, items(), label="here")
    assert (run.label, sorted(run.outputs)) == ("here", ["r0", "r1", "r2", "r3"])
    assert all(output.finished for output in run.outputs.values())
    assert run.stats.num_generated_tokens == 4 * 9


def test_counters_are_those_of_the_run_alone(llm: LLM) -> None:
    """F-12"""
    first, second = (run_workload(llm, items(), label="x").stats for _ in range(2))
    assert (first.num_generated_tokens, second.num_generated_tokens) == (36, 36)
    assert (first.num_finished, second.num_finished) == ({"length": 4}, {"length": 4})
    assert second.num_prefix_hits > first.num_prefix_hits
    assert second.num_speculative_tokens == 0


def test_arrivals(llm: LLM) -> None:
    """A request is there from its step on, not before."""
    seen: list[tuple[int, str]] = []
    real_add, real_step, steps = llm.add_request, llm.step, 0

    def add(request_id: str, *rest: Any) -> None:
        seen.append((steps, request_id))
        real_add(request_id, *rest)

    def step() -> Any:
        nonlocal steps
        steps += 1
        return real_step()

    llm.add_request, llm.step = add, step  # type: ignore[method-assign]
    late = [replace(item, arrive_at_step=at) for item, at in zip(items(), (7, 0, 30, 3), strict=True)]
    run = run_workload(llm, late, label="x")
    assert seen == [(0, "r1"), (3, "r3"), (7, "r0"), (30, "r2")], "also where the engine is idle in between"
    assert all(len(output.outputs[0].token_ids) == 9 for output in run.outputs.values())


@pytest.mark.parametrize("limit", [0, 1, 4])
def test_aborts(limit: int, llm: LLM) -> None:
    work = items()
    work[1] = replace(work[1], abort_after_tokens=limit)
    run = run_workload(llm, work, label="x")
    aborted = run.outputs["r1"].outputs[0]
    assert (aborted.finish_reason, len(aborted.token_ids)) == ("abort", limit)
    assert {run.outputs[f"r{i}"].outputs[0].finish_reason for i in (0, 2, 3)} == {"length"}


def test_an_abort_behind_the_end_never_comes(llm: LLM) -> None:
    run = run_workload(llm, [replace(items()[0], abort_after_tokens=99)], label="x")
    assert run.outputs["r0"].outputs[0].finish_reason == "length"


def test_one_at_a_time_equals_all_together(llm: LLM) -> None:
    staggered = [replace(item, arrive_at_step=2, abort_after_tokens=1) for item in items()]
    alone = run_one_at_a_time(llm, staggered, label="alone")
    assert assert_same_outputs(alone, run_workload(llm, items(), label="all"), case="c") == 4
    assert alone.stats.num_generated_tokens == 36


def test_a_request_that_is_refused_is_loud(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        run_workload(llm, [WorkItem("r", (), PARAMS)], label="x")


def test_an_engine_that_makes_no_progress(llm: LLM) -> None:
    llm.step = list  # type: ignore[method-assign]
    with pytest.raises(errors.StalledEngineError, match=r"x: \d+ steps, and \['r0', 'r1'\] are unfinished") as caught:
        run_workload(llm, items(2), label="x", audit=False)
    assert caught.value.evidence["unfinished"] == ["r0", "r1"]


def test_an_engine_that_says_it_is_stalled(llm: LLM) -> None:
    llm._core.scheduler.schedule = lambda: None  # type: ignore[method-assign]
    with pytest.raises(errors.StalledEngineError, match="made no progress: 0 running and 2 waiting"):
        run_workload(llm, items(2), label="x")


@pytest.mark.parametrize("when", ["running", "idle"])
def test_a_leak(when: str, llm: LLM) -> None:
    """K-02: found after the step that leaks, or at the end."""
    pool = llm._core.scheduler.kv_cache.pool
    if when == "idle":
        pool.take()
    else:
        real = llm._core.scheduler.commit

        def commit(plan: Any, result: Any) -> Any:
            changed = real(plan, result)
            if plan.step_id == 2:
                pool.take()
            return changed

        llm._core.scheduler.commit = commit  # type: ignore[method-assign]
    with pytest.raises(errors.ResourceLeakError, match="books do not add up"):
        run_workload(llm, items(2), label="x", audit=when == "running")


def test_checked_names_what_the_engine_raises() -> None:
    with pytest.raises(errors.ResourceLeakError) as caught, checked():
        raise IntegrityError("a block too many")
    assert isinstance(caught.value.__cause__, IntegrityError)
    with pytest.raises(errors.EngineCrashError, match=r"the engine died: KeyError: 'x'"), checked():
        raise KeyError("x")
    with pytest.raises(InvalidRequestError), checked():
        raise InvalidRequestError("the user's own error stays what it is")
    with pytest.raises(errors.TokenMismatchError), checked():
        raise errors.TokenMismatchError("so does a check's")


def test_prompts_have_a_fingerprint() -> None:
    assert prompt_hash(items()) == prompt_hash([replace(item, params=SamplingParams()) for item in items()])
    assert prompt_hash(items()) != prompt_hash(items()[::-1])
    assert len(prompt_hash(items())) == 16


# --- the reference -------------------------------------------------------------------------------------------------------


def test_the_reference_knows_what_comes_behind_each_end(toy_model: str) -> None:
    """The continuation of a stopped request is what the same request without the stop says."""
    with LLM(toy_model, **OPTIONS) as llm:
        whole = llm.generate([list(range(40, 50))], replace(PARAMS, n=2, max_tokens=14), use_tqdm=False)[0].outputs
    stop = next(t for t in whole[1].token_ids[3:] if t not in whole[1].token_ids[:3])
    params = replace(PARAMS, n=2, max_tokens=9, stop_token_ids=[stop], logprobs=1)
    reference = make_reference(toy_model, {"max_model_len": 64}, [WorkItem("r", tuple(range(40, 50)), params)], num_beyond=3)
    completions = reference.run.outputs["r"].outputs
    assert completions[1].finish_reason == "stop"
    for index, completion in enumerate(completions):
        known = len(completion.token_ids)
        assert reference.continuations["r"][index] == whole[index].token_ids[: known + 3]


def test_the_reference_stops_at_the_models_length(toy_model: str) -> None:
    work = [
        WorkItem("r", (40,) * 12, replace(PARAMS, max_tokens=3)),
        WorkItem("s", (40,) * 12, replace(PARAMS, max_tokens=None)),
    ]
    reference = make_reference(toy_model, {"max_model_len": 16}, work, num_beyond=5)
    assert [len(reference.continuations[name][0]) for name in "rs"] == [4, 4]


def test_an_unseeded_request_has_no_known_continuation(toy_model: str) -> None:
    """Asked again it would have another arrival number, so another seed."""
    work = [WorkItem("r", (40,) * 5, replace(PARAMS, seed=None))]
    reference = make_reference(toy_model, {"max_model_len": 64}, work, num_beyond=5)
    assert len(reference.continuations["r"][0]) == 9


# --- a whole case --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafts", DRAFTERS)
def test_a_case_passes_and_says_what_it_did(drafts: str, toy_model: str) -> None:
    reference = make_reference(toy_model, {"max_model_len": 64}, items(), num_beyond=4)
    result = check_async_equals_sync(toy_model, OPTIONS, items(), reference, case="c", drafting=DRAFTERS[drafts])
    assert result.num_compared == 12
    assert result.config["async_scheduling"]
    assert result.activity["num_overlapped_steps"] > 0
    assert result.sync.stats.num_overlapped_steps == 0


def test_a_case_that_claims_what_did_not_happen(toy_model: str) -> None:
    reference = make_reference(toy_model, {"max_model_len": 64}, items(), num_beyond=4)
    with pytest.raises(errors.FeatureNotExercisedError, match="num_preemptions = 0"):
        check_async_equals_sync(toy_model, OPTIONS, items(), reference, case="c", exercised=["num_preemptions"])


def test_a_case_against_the_wrong_reference(toy_model: str) -> None:
    other = [replace(item, params=replace(item.params, seed=77)) for item in items()]
    reference = make_reference(toy_model, {"max_model_len": 64}, other, num_beyond=4)
    with pytest.raises(errors.TokenMismatchError, match="sync against one at a time"):
        check_async_equals_sync(toy_model, OPTIONS, items(), reference, case="c")


def test_a_drafter_that_is_not_as_good_as_claimed(toy_model: str) -> None:
    """H-06: the outputs are equal, so only the acceptance shows it."""
    reference = make_reference(toy_model, {"max_model_len": 64}, items(), num_beyond=4)
    lazy = replace(DRAFTERS["right"], accept=(99, 0))
    with pytest.raises(errors.AcceptanceRateError):
        check_async_equals_sync(toy_model, OPTIONS, items(), reference, case="c", drafting=lazy)
