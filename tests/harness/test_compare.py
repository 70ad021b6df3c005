"""Every oracle raises its own exception, with the evidence, for the one thing that is wrong; and is silent where nothing is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine import LLM, SamplingParams
from engine.outputs import RequestStats
from harness import errors
from harness.compare import (
    assert_acceptance_exactly,
    assert_acceptance_follows,
    assert_async_was_on,
    assert_conservation,
    assert_exercised,
    assert_no_wasted_work,
    assert_prefixes_of,
    assert_same_outputs,
    assert_work_bounds,
)
from harness.divergence import Divergence, explain, find_divergence, top_candidates
from harness.workload import Run, WorkItem
from tests.harness.runs import IDS, completion, logprobs, run

PARAMS = SamplingParams(temperature=0)


def item(name: str, **changes: Any) -> WorkItem:
    return WorkItem(name, (1, 2, 3), PARAMS, **changes)


# --- equal outputs -------------------------------------------------------------------------------------------------------


def test_equal_runs_are_counted() -> None:
    both = {"a": completion(), "b": completion([65], logprobs=logprobs(-1.0))}
    assert assert_same_outputs(run(**both), run("actual", **both), case="c") == 2


def test_a_token_that_differs() -> None:
    with pytest.raises(errors.TokenMismatchError) as caught:
        assert_same_outputs(run(), run("actual", a=completion([*IDS[:3], 90, 111])), case="the case")
    error = caught.value
    assert (error.case, error.request, error.position, error.expected, error.actual) == ("the case", "a", 3, 108, 90)
    assert error.evidence["prompt_token_ids"] == [1, 2, 3]
    assert error.evidence["candidates"] == {"expected": [], "actual": []}
    for part in ("the case: request a, actual against expected", "new token 3", "'108' (108)", "'90' (90)", "not available"):
        assert part in str(error)


@pytest.mark.parametrize(
    ("ids", "position", "expected", "actual"),
    [(IDS[:-1], 4, 111, None), ([*IDS, 5], 5, None, 5), ([], 0, 72, None)],
    ids=["shorter", "longer", "nothing"],
)
def test_a_length_that_differs(ids: list[int], position: int, expected: int | None, actual: int | None) -> None:
    with pytest.raises(errors.TokenMismatchError, match=r"\(ended\)") as caught:
        assert_same_outputs(run(), run("actual", a=completion(ids)), case="c")
    assert (caught.value.position, caught.value.expected, caught.value.actual) == (position, expected, actual)


def test_a_finish_reason_that_differs() -> None:
    with pytest.raises(errors.FinishReasonMismatchError) as caught:
        assert_same_outputs(run(), run("actual", a=completion(finish_reason="stop")), case="c")
    assert (caught.value.expected, caught.value.actual) == (["length", None], ["stop", None])


def test_a_stop_reason_that_differs() -> None:
    left, right = (completion(finish_reason="stop", stop_reason=reason) for reason in (111, "o"))
    with pytest.raises(errors.FinishReasonMismatchError) as caught:
        assert_same_outputs(run(a=left), run("actual", a=right), case="c")
    assert (caught.value.expected, caught.value.actual) == (["stop", 111], ["stop", "o"])


def test_a_text_that_differs() -> None:
    with pytest.raises(errors.TextMismatchError, match="'Hell'") as caught:
        assert_same_outputs(run(), run("actual", a=completion(text="Hell")), case="c")
    assert (caught.value.expected, caught.value.actual) == ("Hello", "Hell")


def test_a_logprob_that_differs_in_its_last_bit() -> None:
    left, right = (completion([65, 66], logprobs=logprobs(-1.0, value)) for value in (-0.1, -0.1 - 2**-56))
    assert left != right
    with pytest.raises(errors.LogprobMismatchError, match="from new token 1 on") as caught:
        assert_same_outputs(run(a=left), run("actual", a=right), case="c")
    assert caught.value.position == 1


@pytest.mark.parametrize(
    "kind", ["TokenMismatchError", "LogprobMismatchError", "FinishReasonMismatchError", "TextMismatchError"]
)
def test_of_several_differences_the_first_cause_is_named(kind: str) -> None:
    """Tokens before log-probabilities before reasons before text."""
    damage: dict[str, dict[str, Any]] = {
        "TokenMismatchError": {"token_ids": [65, 67]},
        "LogprobMismatchError": {"logprobs": logprobs(-1, -2)},
        "FinishReasonMismatchError": {"finish_reason": "stop"},
        "TextMismatchError": {"text": "?"},
    }
    changes: dict[str, Any] = {"token_ids": [65, 66], "logprobs": logprobs(-1, -1), "text": "AB"}
    good = completion(**changes)
    for name in reversed(damage):
        changes |= damage[name]
        if name == kind:
            break
    with pytest.raises(errors.ValidationError) as caught:
        assert_same_outputs(run(a=good), run("actual", a=completion(**changes)), case="c")
    assert type(caught.value).__name__ == kind


@pytest.mark.parametrize("other", [{"b": completion()}, {"a": completion(), "b": completion()}], ids=["another", "one-more"])
def test_a_request_that_was_lost_or_invented_is_a_mismatch(other: dict[str, Any]) -> None:
    with pytest.raises(errors.TokenMismatchError):
        assert_same_outputs(run(), run("actual", **other), case="c")


def test_nothing_compared_is_an_error() -> None:
    nothing = Run("expected", {}, run().stats)
    with pytest.raises(errors.FeatureNotExercisedError):
        assert_same_outputs(nothing, nothing, case="c")


def test_completions_that_are_missing() -> None:
    left, right = run(), run("actual")
    right.outputs["a"] = replace(right.outputs["a"], outputs=[])
    for a, b in ((left, right), (right, left), (right, right)):
        with pytest.raises(errors.TokenMismatchError, match="completions"):
            assert_same_outputs(a, b, case="c")


def test_the_completion_of_several_is_named() -> None:
    left, right = run(), run("actual")
    for side, ids in ((left, IDS), (right, [1])):
        both = [completion(), completion(ids, index=1)]
        side.outputs["a"] = replace(side.outputs["a"], outputs=both)
    with pytest.raises(errors.TokenMismatchError) as caught:
        assert_same_outputs(left, right, case="c")
    assert caught.value.request == "a#1"


# --- aborted requests ----------------------------------------------------------------------------------------------------


def test_an_aborted_request_is_the_beginning_of_its_reference() -> None:
    items = [item("a"), item("b", abort_after_tokens=2)]
    reference = run(a=completion(), b=completion())
    for ids in ([], IDS[:2], IDS):
        short = completion(ids, finish_reason="abort")
        assert assert_prefixes_of(reference, run("actual", a=completion(), b=short), items, case="c") == 2
    wrong = completion([72, 99], finish_reason="abort")
    with pytest.raises(errors.TokenMismatchError, match=r"aborted request b .* new token 1") as caught:
        assert_prefixes_of(reference, run("actual", a=completion(), b=wrong), items, case="c")
    assert (caught.value.request, caught.value.position) == ("b", 1)
    longer = completion([*IDS, 1], finish_reason="abort")
    with pytest.raises(errors.TokenMismatchError):
        assert_prefixes_of(reference, run("actual", a=completion(), b=longer), items, case="c")


def test_a_survivor_of_an_abort_is_compared_whole() -> None:
    items = [item("a"), item("b", abort_after_tokens=2)]
    reference = run(a=completion(), b=completion())
    short = run("actual", a=completion(IDS[:3]), b=completion([], finish_reason="abort"))
    with pytest.raises(errors.TokenMismatchError):
        assert_prefixes_of(reference, short, items, case="c")


# --- activity ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asynchronous", "overlapped"), [(True, 0), (False, 5), (False, 0)])
def test_asynchronous_scheduling_that_was_not_on(asynchronous: bool, overlapped: int, toy_model: str) -> None:
    with LLM(toy_model, max_model_len=32, num_threads=1, async_scheduling=asynchronous) as llm:
        with pytest.raises(errors.AsyncSchedulingNotEnabledError) as caught:
            assert_async_was_on(llm, run(stats={"num_overlapped_steps": overlapped}), case="c")
        assert caught.value.evidence["rule"] == ("supported" if asynchronous else "explicit_off")
        if asynchronous:
            assert_async_was_on(llm, run(stats={"num_overlapped_steps": 1}), case="c")


def test_a_feature_that_never_happened() -> None:
    active = run(stats={"num_preemptions": 1, "num_drafts": 0})
    assert_exercised(active, "num_preemptions", case="c")
    with pytest.raises(errors.FeatureNotExercisedError, match="num_drafts = 0") as caught:
        assert_exercised(active, "num_preemptions", "num_drafts", case="c")
    assert caught.value.evidence["counter"] == "num_drafts"


# --- acceptance ----------------------------------------------------------------------------------------------------------


def drafted(drafted_tokens: int, accepted: int, **changes: Any) -> Run:
    steps = {"num_drafts": 1, "num_drafted_tokens": drafted_tokens, "num_accepted_tokens": accepted}
    return run(a=completion(num_decode_steps=4 - accepted, **steps, **changes))


def test_acceptance_of_a_perfect_and_of_a_wrong_drafter() -> None:
    assert assert_acceptance_exactly(drafted(3, 3), 1, case="c") == 3
    assert assert_acceptance_exactly(drafted(3, 0), 0, case="c") == 3
    for rate, accepted, expected in ((1, 2, 3), (0, 1, 0)):
        with pytest.raises(errors.AcceptanceRateError) as caught:
            assert_acceptance_exactly(drafted(3, accepted), rate, case="c")
        assert (caught.value.request, caught.value.expected, caught.value.actual) == ("a", expected, accepted)


def test_acceptance_without_drafts_was_not_judged() -> None:
    for rate in (0, 1):
        with pytest.raises(errors.FeatureNotExercisedError):
            assert_acceptance_exactly(run(), rate, case="c")


def test_a_stop_inside_an_accepted_run_is_no_rejection() -> None:
    """What stands behind the stop was right and does not count; a draft before the last is judged all the same."""
    stopped, whole = completion(finish_reason="stop", num_drafted_tokens=3, num_accepted_tokens=1), drafted(2, 2)
    both = run(a=stopped, b=whole.outputs["a"].outputs[0])
    assert assert_acceptance_exactly(both, 1, case="c") == 2
    with pytest.raises(errors.AcceptanceRateError):
        assert_acceptance_exactly(both, 0, case="c")
    earlier = replace(stopped, stats=replace(stopped.stats, drafts=((3, 2), (3, 1))))
    with pytest.raises(errors.AcceptanceRateError):
        assert_acceptance_exactly(run(a=earlier), 1, case="c")


# --- conservation --------------------------------------------------------------------------------------------------------


def test_counters_that_add_up() -> None:
    assert_conservation(run(a=completion(), b=completion([])), case="c")
    good = drafted(3, 2)
    full = Run("x", good.outputs, replace(good.stats, num_speculative_tokens=3, num_accepted_tokens_per_pos=[1, 1, 0]))
    assert_conservation(full, case="c")


DAMAGE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "request-prefills": ({"num_prefills": 2}, {}),
    "request-steps": ({"num_decode_steps": 1}, {}),
    "request-accepted": ({"num_accepted_tokens": 1}, {}),
    "logprobs-short": ({"logprobs": logprobs(-1.0)}, {}),
    "generated": ({}, {"num_generated_tokens": 6}),
    "prefills": ({}, {"num_prefill_tokens_emitted": 0}),
    "steps": ({}, {"num_decode_steps": 3}),
    "accepted": ({}, {"num_accepted_tokens": 1, "num_decode_steps": 1}),
    "per-position": ({}, {"num_accepted_tokens_per_pos": [0, 1, 0]}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_counters_that_do_not_add_up(damage: str) -> None:
    """M-01: tokens behind a stop that count, and the like."""
    own, stats = DAMAGE[damage]
    good = {"num_drafts": 1, "num_drafted_tokens": 3, "num_accepted_tokens": 2, "num_decode_steps": 2}
    engine = {"num_speculative_tokens": 3, "num_accepted_tokens_per_pos": [1, 1, 0]}
    assert_conservation(run(stats=engine, a=completion(**good)), case="c")
    with pytest.raises(errors.ConservationError):
        assert_conservation(run(stats=engine | stats, a=completion(**good | own)), case="c")


@pytest.mark.parametrize(
    "stats",
    [
        {"num_accepted_tokens_per_pos": [0, 1, 1]},  # M-02: accepted behind a rejection
        {"num_accepted_tokens_per_pos": [2, 0, 0]},  # more than there were drafts
        {"num_drafted_tokens": 1},  # fewer than were accepted
        {"num_drafted_tokens": 4},  # more than K for each draft
    ],
    ids=str,
)
def test_counters_outside_of_their_bounds(stats: dict[str, Any]) -> None:
    good = {"num_drafts": 1, "num_drafted_tokens": 3, "num_accepted_tokens": 2, "num_decode_steps": 2}
    engine = {"num_speculative_tokens": 3, "num_accepted_tokens_per_pos": [1, 1, 0]}
    with pytest.raises(errors.ConservationError):
        assert_conservation(run(stats=engine | stats, a=completion(**good)), case="c")


# --- work ----------------------------------------------------------------------------------------------------------------


def test_work_that_is_justified() -> None:
    sync = run("sync", a=completion(finish_reason="stop"), b=completion())
    assert_work_bounds(sync, replace(sync, label="async"), case="c")
    spent = sync.stats.num_computed_positions
    one_dropped = {"num_dropped_rows": 1, "num_dropped_positions": 2, "num_computed_positions": spent + 2}
    assert_work_bounds(sync, Run("async", sync.outputs, replace(sync.stats, **one_dropped)), case="c")


@pytest.mark.parametrize(
    ("stats", "what"),
    [
        ({"num_computed_positions": 99}, "99 positions went through the model"),
        ({"num_computed_positions": 1}, "1 positions went through the model"),  # somebody else's work
        ({"num_prefix_hits": 1}, "positions went through the model or came from the cache"),
        ({"num_preempted_positions": 1}, "positions went through the model"),
        ({"num_dropped_rows": 2}, "dropped rows: 2, at most 1"),
        ({"num_empty_rows": 1}, "empty rows: 1, at most 0"),
        ({"num_preemptions": 3}, "preemptions: 3, at most 2"),
    ],
    ids=str,
)
def test_work_that_is_not(stats: dict[str, Any], what: str) -> None:
    """S-03: a useless step for a request that ends by length, preemptions that multiply."""
    sync = run("sync", a=completion(finish_reason="stop"), b=completion())
    with pytest.raises(errors.WorkBoundError, match=f"async: .*{what}"):
        assert_work_bounds(sync, Run("async", sync.outputs, replace(sync.stats, **stats)), case="c")


def test_with_drafts_each_request_may_have_an_empty_row() -> None:
    sync = run("sync", a=completion(), b=completion())
    for count, drafts in ((2, 1), (3, 1), (1, 0)):
        stats = replace(sync.stats, num_empty_rows=count, num_drafts=drafts)
        if drafts and count == 2:
            assert_no_wasted_work(Run("async", sync.outputs, stats), asynchronous=True, case="c")
            with pytest.raises(errors.WorkBoundError, match="empty rows: 2, at most 0"):
                assert_no_wasted_work(Run("sync", sync.outputs, stats), asynchronous=False, case="c")
        else:
            with pytest.raises(errors.WorkBoundError, match=f"empty rows: {count}, at most {2 * drafts}"):
                assert_no_wasted_work(Run("async", sync.outputs, stats), asynchronous=True, case="c")


def test_drafts_follow_their_script() -> None:
    one = replace(completion(), stats=RequestStats(0, 0, 3, 8, 4, 1, 3, ((3, 3), (3, 0), (2, 1))))
    assert assert_acceptance_follows(run("spec", a=one), (99, 0, 1), case="c") == 3
    with pytest.raises(errors.AcceptanceRateError, match=r"draft 1 had 2 right tokens of 3, and 0 were accepted"):
        assert_acceptance_follows(run("spec", a=one), (99, 2), case="c")


def test_a_dropped_row_for_an_end_by_length_is_too_much() -> None:
    sync = run("sync")
    dropped = {"num_dropped_rows": 1, "num_dropped_positions": 1, "num_computed_positions": 8}
    with pytest.raises(errors.WorkBoundError, match="dropped rows: 1, at most 0"):
        assert_work_bounds(sync, Run("async", sync.outputs, replace(sync.stats, **dropped)), case="c")


def test_a_synchronous_engine_drops_nothing() -> None:
    sync = run("sync", stats={"num_dropped_rows": 1}, a=completion(finish_reason="stop"))
    with pytest.raises(errors.WorkBoundError, match="sync: dropped rows"):
        assert_work_bounds(sync, replace(sync, label="async"), case="c")


# --- divergence ----------------------------------------------------------------------------------------------------------


def test_find_divergence() -> None:
    assert find_divergence([1, 2], [1, 2]) is None
    assert find_divergence([], []) is None
    assert find_divergence([1, 2], [1, 3]) == Divergence(1, 2, 3)
    assert find_divergence([1], [1, 3]) == Divergence(1, None, 3)
    assert find_divergence([1, 2], [1]) == Divergence(1, 2, None)


def test_a_divergence_is_decoded_with_what_each_engine_thought(toy_model: str) -> None:
    with LLM(toy_model, max_model_len=64, num_threads=1) as llm:
        prompt = list(b"The cat sat on the")
        truth = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True), use_tqdm=False)[0].outputs[
            0
        ]
        wrong = [*truth.token_ids[:2], 64, *truth.token_ids[3:]]
        both = [run(label, a=completion(ids, text="")) for label, ids in (("expected", truth.token_ids), ("actual", wrong))]
        for side in both:
            side.outputs["a"] = replace(side.outputs["a"], prompt_token_ids=prompt)
        with pytest.raises(errors.TokenMismatchError) as caught:
            assert_same_outputs(both[0], both[1], case="c", engines=(llm, llm))
        message, evidence = str(caught.value), caught.value.evidence
        right = llm.get_tokenizer().decode([truth.token_ids[2]])
        context = llm.get_tokenizer().decode([*prompt, *truth.token_ids[:2]])[-12:]
        assert f"after    …{context!r}" in message
        assert f"expected {right!r} ({truth.token_ids[2]})" in message
        assert "actual   '@' (64)" in message
        for label in ("expected", "actual"):
            best = evidence["candidates"][label][0]
            assert best["token_id"] == truth.token_ids[2]
            assert f"{label} says: {best['text']!r} ({best['token_id']}) {best['logprob']:.6f}" in message


def test_candidates_of_an_engine_that_cannot_say(toy_model: str) -> None:
    with LLM(toy_model, max_model_len=16, num_threads=1) as llm:
        assert [c.token_id for c in top_candidates(llm, [65, 66], k=3)] != []
        assert len(top_candidates(llm, [65, 66], k=3)) == 3
        assert top_candidates(llm, []) == []
        assert top_candidates(llm, [65] * 16) == []
        llm.add_request("busy", [65], PARAMS)
        assert top_candidates(llm, [65, 66]) == []


def test_without_an_engine_ids_are_shown() -> None:
    text, evidence = explain(None, [1, 2], [3, 4], Divergence(1, 4, None), {})
    assert "after    …'1 2 3'" in text
    assert "expected '4' (4)" in text
    assert "actual   (ended)" in text
    assert evidence == {"context": "1 2 3", "candidates": {}}


def test_every_kind_of_failure_is_its_own_class() -> None:
    kinds = [getattr(errors, name) for name in errors.__all__ if name != "ValidationError"]
    for kind in kinds:
        assert kind.__bases__ == (errors.ValidationError,), "none excuses another"
    assert issubclass(errors.ValidationError, AssertionError)
    error = errors.TokenMismatchError("m", case="c", position=0, extra=[1])
    assert error.evidence == {"case": "c", "position": 0, "extra": [1]}
