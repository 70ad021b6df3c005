"""The scheduler's laws, on a device without a model (`support.FakeDevice`): every row of every plan is looked at."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import IntegrityError, InvalidRequestError, NanLogitsError
from engine.request import Request, RequestStatus
from engine.step import PlanRow
from tests.engine.support import VOCAB, Driver, make_request, true_output, true_token

both_modes = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def rows(driver: Driver) -> list[PlanRow]:
    return [row for plan in driver.device.plans for row in plan.rows]


# --- lengths -------------------------------------------------------------------------------------------------------------


@both_modes
@pytest.mark.parametrize("max_new_tokens", [1, 2, 3, 7])
def test_no_step_is_planned_once_those_in_flight_reach_the_length(asynchronous: bool, max_new_tokens: int) -> None:
    """S-03: without speculation a request that ends by length has one row for each of its tokens, in both modes."""
    driver = Driver.make(asynchronous=asynchronous)
    request = make_request(max_new_tokens=max_new_tokens)
    driver.add(request)
    driver.run()
    assert request.output_token_ids == true_output(request)
    assert len(rows(driver)) == max_new_tokens
    assert driver.core.stats.num_dropped_rows == 0


@both_modes
@pytest.mark.parametrize("depth", [1, 2, 3, 5])
@pytest.mark.parametrize("accept", [(0,), (1,), (99,), (2, 0, 99)], ids=str)
def test_a_length_is_met_exactly(asynchronous: bool, depth: int, accept: tuple[int, ...]) -> None:
    """Never a token beyond it, and no position that its tokens and the rejected drafts do not need."""
    for max_new_tokens in range(1, 2 * (depth + 1) + 2):
        driver = Driver.make(asynchronous=asynchronous, depth=depth, accept=accept)
        request = make_request(max_new_tokens=max_new_tokens)
        driver.add(request)
        driver.run()
        stats = driver.core.stats
        assert request.output_token_ids == true_output(request)
        assert len(request.output_token_ids) == max_new_tokens
        rejected = stats.num_drafted_tokens - stats.num_accepted_tokens
        assert stats.num_computed_positions == request.num_tokens - 1 + rejected
        assert stats.num_dropped_rows == 0


def test_two_steps_are_in_flight_at_most_and_the_second_one_overlaps() -> None:
    driver = Driver.make()
    driver.add(make_request(max_new_tokens=10))
    driver.run()
    assert driver.core.stats.num_overlapped_steps == 9
    synchronous = Driver.make(asynchronous=False)
    synchronous.add(make_request(max_new_tokens=10))
    synchronous.run()
    assert synchronous.core.stats.num_overlapped_steps == 0


# --- prefill -------------------------------------------------------------------------------------------------------------


@both_modes
@pytest.mark.parametrize("budget", [1, 2, 3, 5, 8, 64])
def test_a_prompt_is_cut_into_chunks_of_the_budget(asynchronous: bool, budget: int) -> None:
    driver = Driver.make(asynchronous=asynchronous, max_num_batched_tokens=budget)
    request = make_request(prompt=range(11), max_new_tokens=3)
    driver.add(request)
    driver.run()
    chunks = [row.num_tokens for row in rows(driver) if not row.is_decode]
    assert chunks == [budget] * (11 // budget) + [11 % budget] * (11 % budget > 0)
    assert [row.wants_token for row in rows(driver) if not row.is_decode] == [False] * (len(chunks) - 1) + [True]
    assert request.output_token_ids == true_output(request)


@both_modes
def test_a_prompt_is_never_cut_without_chunked_prefill(asynchronous: bool) -> None:
    driver = Driver.make(asynchronous=asynchronous, enable_chunked_prefill=False, max_num_batched_tokens=40, max_model_len=40)
    requests = [make_request(str(i), [i] * 17, arrival=i) for i in range(4)]
    driver.add(*requests)
    driver.run()
    assert driver.core.stats.num_partial_prefills == 0
    assert [row.num_tokens for row in rows(driver) if not row.is_decode] == [17] * 4
    assert len(driver.device.plans[0].rows) == 2, "a third prompt of 17 does not fit into 40"
    for request in requests:
        assert request.output_token_ids == true_output(request)


def test_decodes_come_before_the_next_chunk() -> None:
    driver = Driver.make(asynchronous=False, max_num_batched_tokens=8)
    driver.add(make_request("a", [1] * 3, max_new_tokens=9), make_request("b", [2] * 20, arrival=1))
    driver.step()
    driver.step()
    assert [(row.is_decode, row.num_tokens) for row in driver.device.plans[1].rows] == [(True, 1), (False, 7)]


def test_a_common_prefix_is_computed_once() -> None:
    driver = Driver.make(asynchronous=False)
    first, second = make_request("a", [*range(12), 40]), make_request("b", [*range(12), 41], arrival=1)
    driver.add(first)
    driver.run()
    driver.add(second)
    driver.run()
    assert second.num_cached_tokens == 12
    assert [row.num_tokens for row in rows(driver) if not row.is_decode] == [13, 1]
    assert second.output_token_ids == true_output(second)
    assert driver.core.stats.num_prefix_hits == 12


# --- pressure ------------------------------------------------------------------------------------------------------------


def two_in_a_small_pool(asynchronous: bool, **options: object) -> tuple[Driver, Request, Request]:
    driver = Driver.make(asynchronous=asynchronous, num_kv_blocks=6, enable_prefix_caching=False, **options)
    older, younger = (make_request(name, [i] * 7, max_new_tokens=17, arrival=i) for i, name in enumerate("ab"))
    driver.add(older, younger)
    return driver, older, younger


@both_modes
def test_the_youngest_gives_way_and_starts_again(asynchronous: bool) -> None:
    driver, older, younger = two_in_a_small_pool(asynchronous)
    driver.run()
    assert (older.num_preemptions, younger.num_preemptions > 0) == (0, True)
    for request in (older, younger):
        assert request.output_token_ids == true_output(request)


def test_a_victim_is_drained_before_it_goes() -> None:
    """Law 7: no step in flight names a request that is preempted, and the steps that were in flight counted."""
    driver, _, younger = two_in_a_small_pool(asynchronous=True)
    num_known = 0
    while younger.num_preemptions == 0:
        stay = (younger.slot, younger.generation)
        in_flight = [row for plan, _ in driver.core._in_flight for row in plan.rows if (row.slot, row.generation) == stay]
        num_known = len(younger.output_token_ids) + len(in_flight) * (younger.status is RequestStatus.RUNNING)
        driver.step()
    assert younger.num_in_flight == 0
    assert len(younger.output_token_ids) == num_known
    stays = {(row.slot, row.generation) for plan, _ in driver.core._in_flight for row in plan.rows}
    assert stay not in stays
    driver.run()
    assert younger.output_token_ids == true_output(younger)


@both_modes
def test_drafts_are_trimmed_before_anybody_is_preempted(asynchronous: bool) -> None:
    """Both requests fit with their own tokens, not with five drafts each."""
    driver = Driver.make(
        asynchronous=asynchronous, depth=5, accept=(0,), block_size=1, num_kv_blocks=20, enable_prefix_caching=False
    )
    requests = [make_request(name, [i] * 3, max_new_tokens=7, arrival=i) for i, name in enumerate("ab")]
    driver.add(*requests)
    driver.run()
    widths = {row.num_tokens for row in rows(driver) if row.is_decode}
    assert driver.core.stats.num_preemptions == 0
    assert len(widths) > 1, "nothing was trimmed"
    for request in requests:
        assert request.output_token_ids == true_output(request)


@both_modes
@pytest.mark.parametrize("depth", [0, 1, 3, 4, 5])
@pytest.mark.parametrize("extra", range(5))
def test_every_pool_that_holds_the_largest_request_is_enough(asynchronous: bool, depth: int, extra: int) -> None:
    """S-10: from the smallest pool that `add` accepts upward, drafts at least as long as a block among them."""
    requests = [
        make_request(str(i), [i] * length, max_new_tokens=count, arrival=i)
        for i, (length, count) in enumerate([(5, 12), (9, 8), (1, 3), (3, 9)])
    ]
    largest = max(-(-(request.token_limit - 1) // 4) for request in requests)
    driver = Driver.make(asynchronous=asynchronous, depth=depth, accept=(1, 99, 0), num_kv_blocks=largest + extra)
    driver.add(*requests)
    driver.run(step_limit=400)
    for request in requests:
        assert request.output_token_ids == true_output(request)


def test_a_request_that_could_never_run_is_refused() -> None:
    driver = Driver.make(num_kv_blocks=3)
    driver.add(make_request("fits", [1] * 5, max_new_tokens=8))
    with pytest.raises(InvalidRequestError, match="raise num_kv_blocks, or lower max_tokens"):
        driver.add(make_request("one too many", [1] * 5, max_new_tokens=9))
    driver.run()


def test_admission_is_by_arrival() -> None:
    """A short request does not overtake a long one that has to wait for blocks."""
    driver = Driver.make(asynchronous=False, num_kv_blocks=8, enable_prefix_caching=False)
    requests = [
        make_request("a", [1] * 16, arrival=0),
        make_request("b", [2] * 20, arrival=1),
        make_request("c", [3], arrival=2),
    ]
    driver.add(*requests)
    driver.step()
    assert [r.request_id for r in driver.scheduler.running] == ["a"]
    driver.run()
    admitted = [int(new.token_ids[0]) for plan in driver.device.plans for new in plan.new_slots]
    assert list(dict.fromkeys(admitted)) == [1, 2, 3]


def test_at_most_max_num_seqs_run() -> None:
    driver = Driver.make(max_num_seqs=2)
    driver.add(*(make_request(str(i), [i], max_new_tokens=2 + i, arrival=i) for i in range(5)))
    driver.run()
    assert max(len(plan.rows) for plan in driver.device.plans) == 2


# --- ends ----------------------------------------------------------------------------------------------------------------


def test_a_step_for_an_ended_request_is_dropped_and_its_place_is_kept_until_then() -> None:
    """Law 4. The stop is met at the third token; by then a fourth is on its way."""
    prompt = [1, 2, 3]
    tokens = true_output(make_request(prompt=prompt))
    stop = next(t for t in tokens[2:] if t not in tokens[:2])
    driver = Driver.make(max_num_seqs=1)
    request, after = make_request("a", prompt, stop_ids=[stop]), make_request("b", [9], arrival=1)
    driver.add(request, after)
    while request.status is not RequestStatus.FINISHED:
        driver.step()
    assert request.finish is not None
    assert request.finish.stop_reason == stop
    assert (request.num_in_flight, request.slot, len(request.block_ids)) == (1, 0, 2)
    assert driver.scheduler.slots.num_free == 0, "the slot is not free while a step names it"
    emitted = list(request.output_token_ids)
    driver.step()
    assert request.output_token_ids == emitted == true_output(request)
    assert (request.slot, request.block_ids) == (-1, [])
    assert driver.core.stats.num_dropped_rows == 1
    driver.run()
    assert after.output_token_ids == true_output(after)


@both_modes
@pytest.mark.parametrize("state", ["waiting", "just-added", "first-chunk", "decoding", "preempted", "finished", "twice"])
def test_abort_in_every_state(asynchronous: bool, state: str) -> None:
    """S-08: the others end as if nothing had happened, and everything is given back."""
    driver = Driver.make(asynchronous=asynchronous, num_kv_blocks=7, max_num_batched_tokens=6, max_num_seqs=2)
    requests = [make_request(str(i), [i] * 8, max_new_tokens=16, arrival=i) for i in range(3)]
    driver.add(*requests)
    victim = requests[2] if state == "waiting" else requests[1]
    conditions = {
        "waiting": lambda: requests[0].output_token_ids,
        "just-added": lambda: True,
        "first-chunk": lambda: victim.status is RequestStatus.RUNNING and victim.is_prefilling,
        "decoding": lambda: len(victim.output_token_ids) == 2,
        "preempted": lambda: victim.status is RequestStatus.WAITING and victim.num_preemptions,
        "finished": lambda: victim.status is RequestStatus.FINISHED,
        "twice": lambda: victim.output_token_ids,
    }
    for _ in range(300):
        if conditions[state]():
            break
        driver.step()
    else:
        raise AssertionError(f"never {state}")
    known = list(victim.output_token_ids)
    for _ in range(2 if state == "twice" else 1):
        driver.scheduler.abort(victim)
        driver.core.check_integrity()
    driver.run()
    assert victim.output_token_ids == known
    assert victim.finish is not None
    assert victim.finish.reason == ("length" if state == "finished" else "abort")
    for request in requests:
        if request is not victim:
            assert request.output_token_ids == true_output(request)


@both_modes
@pytest.mark.parametrize("index", range(6))
def test_nan_ends_its_own_request_alone(asynchronous: bool, index: int) -> None:
    requests = [make_request(str(i), [i] * 9, arrival=i) for i in range(3)]
    truth = true_output(requests[1])
    behind = [*requests[1].prompt_token_ids, *truth[:index]]
    driver = Driver.make(asynchronous=asynchronous, depth=2, accept=(99, 1), nan_behind=[behind])
    driver.add(*requests)
    driver.run()
    assert requests[1].output_token_ids == truth[:index]
    assert isinstance(requests[1].error, NanLogitsError)
    assert requests[1].finish is not None
    assert requests[1].finish.reason == "error"
    assert driver.core.stats.num_nan_rows == 1
    for request in (requests[0], requests[2]):
        assert request.output_token_ids == true_output(request)
        assert request.error is None
    pool = driver.scheduler.kv_cache.pool
    again = make_request("again", requests[1].prompt_token_ids)
    assert driver.scheduler.kv_cache.take_cached_prefix(again, again.token_ids) == 0, "its blocks left the prefix cache"
    assert pool.num_free == pool.num_blocks


# --- plans, row by row -----------------------------------------------------------------------------------------------------


def test_a_request_that_only_waits_for_its_last_token_holds_up_nobody() -> None:
    driver = Driver.make()
    driver.add(make_request("a", max_new_tokens=1), make_request("b", arrival=1))
    driver.scheduler.schedule()
    second = driver.scheduler.schedule()
    assert [(row.slot, row.is_decode) for row in second.rows] == [(1, True)]


@both_modes
def test_a_row_has_room_for_the_drafts_that_can_still_count(asynchronous: bool) -> None:
    """One token is on its way and one more fits: no draft could stand."""
    driver = Driver.make(asynchronous=asynchronous, depth=3)
    driver.add(make_request(max_new_tokens=2))
    driver.run()
    assert [row.num_tokens for row in rows(driver)] == [3, 1]


@pytest.mark.parametrize("budget", [2, 3])
def test_drafts_stay_within_what_the_step_has_left(budget: int) -> None:
    """The younger one waits with its prompt: the older one's drafts have used the step up."""
    driver = Driver.make(depth=3, max_num_batched_tokens=budget)
    driver.add(make_request("a", [1], max_new_tokens=9), make_request("b", [2] * 9, arrival=1))
    driver.step()
    driver.step()
    assert driver.device.plans[0].rows[-1].num_tokens == budget - 1
    assert [(row.slot, row.num_tokens) for row in driver.device.plans[1].rows] == [(0, budget)]
    driver.run()


def test_the_last_draft_gives_way_before_a_younger_request_does() -> None:
    """Blocks of one token: both fit, the older one's only draft does not."""
    driver = Driver.make(
        asynchronous=False, depth=1, accept=(0,), block_size=1, num_kv_blocks=7, enable_prefix_caching=False, max_model_len=32
    )
    driver.add(make_request("a", [1] * 2, max_new_tokens=4), make_request("b", [2] * 2, max_new_tokens=2, arrival=1))
    driver.run()
    assert driver.core.stats.num_preemptions == 0


def test_while_an_older_request_lacks_a_block_the_younger_ones_drain() -> None:
    """Law 7: the youngest is not planned again, though it has room for its next token, so the next plan can preempt it."""
    driver = Driver.make(num_kv_blocks=4, enable_prefix_caching=False)
    older, younger = make_request("a", [1] * 7, max_new_tokens=9), make_request("b", [2] * 5, max_new_tokens=4, arrival=1)
    driver.add(older, younger)
    scheduler = driver.scheduler
    first, second = scheduler.schedule(), scheduler.schedule()
    assert [len(plan.rows) for plan in (first, second)] == [2, 2]
    assert scheduler.schedule() is None, "the older one needs a third block, the younger one has a step in flight"
    assert younger.num_in_flight == 2
    assert driver.scheduler.kv_cache.pool.num_free == 0


def test_admission_asks_for_the_first_decode_row_and_no_more() -> None:
    driver = Driver.make(asynchronous=False, num_kv_blocks=4, enable_prefix_caching=False)
    driver.add(make_request("a", [1] * 9, max_new_tokens=3), make_request("b", [2] * 3, max_new_tokens=9, arrival=1))
    driver.step()
    assert [len(plan.new_slots) for plan in driver.device.plans] == [2], "the one free block holds 3 + 1 tokens"


@pytest.mark.parametrize(("length", "fits"), [(28, True), (29, False)])
def test_without_chunked_prefill_a_cached_prefix_takes_nothing_of_the_step(length: int, fits: bool) -> None:
    """32 positions a step, 20 of them for the first prompt; of the second one 16 are cached."""
    driver = Driver.make(asynchronous=False, enable_chunked_prefill=False, max_num_batched_tokens=32, max_model_len=32)
    prefix = list(range(16))
    driver.add(make_request("before", [*prefix, 16], max_new_tokens=1))
    driver.run()
    driver.add(make_request("a", [40] * 20, max_new_tokens=2), make_request("b", [*prefix, *[41] * (length - 16)], arrival=1))
    driver.step()
    assert len(driver.device.plans[-1].rows) == 1 + fits


def test_a_new_slot_carries_what_the_device_cannot_know() -> None:
    driver = Driver.make()
    request = make_request(prompt=[5, 6, 7])
    request.extra_args = {"key": "value"}
    driver.add(request)
    (new,) = driver.scheduler.schedule().new_slots
    assert (new.extra_args, new.sampling) == ({"key": "value"}, request.sampling)
    assert (new.num_prompt_tokens, new.num_cached_tokens, new.token_limit) == (3, 0, 11)
    assert (new.token_ids.dtype, new.token_ids.tolist()) == (np.int32, [5, 6, 7]), "half of what the worker would be sent"


def test_steps_are_numbered_without_a_gap() -> None:
    driver = Driver.make()
    driver.add(make_request())
    driver.run()
    assert [plan.step_id for plan in driver.device.plans] == list(range(8))


def test_only_a_row_that_brings_a_token_asks_for_drafts() -> None:
    driver = Driver.make(asynchronous=False, depth=2, max_num_batched_tokens=4)
    driver.add(make_request(prompt=range(6)))
    assert driver.step() == [], "a part of a prompt changes nothing that a user sees"
    driver.step()
    assert [row.num_next_drafts for row in rows(driver)] == [0, 2]
    plain = Driver.make()
    plain.add(make_request())
    plain.run()
    assert {row.num_next_drafts for row in rows(plain)} == {0}


# --- blocks for the drafter's own entries ------------------------------------------------------------------------------------


def first_row_blocks(lookahead: int, *, max_new_tokens: int = 40, prompt: int = 4, **options: Any) -> tuple[int, int]:
    """(blocks that come with the prefill row, blocks that are left)"""
    driver = Driver.make(depth=2, asynchronous=False, **options)
    driver.scheduler.num_lookahead_tokens = lookahead
    request = make_request(prompt=range(prompt), max_new_tokens=max_new_tokens)
    driver.add(request)
    (row,) = driver.scheduler.schedule().rows
    assert list(row.new_block_ids) == request.block_ids
    return len(row.new_block_ids), driver.scheduler.kv_cache.pool.num_free


@pytest.mark.parametrize(("lookahead", "blocks"), [(0, 1), (3, 2), (4, 3), (7, 3), (8, 4)])
def test_a_drafter_that_keeps_kv_gets_blocks_as_far_as_it_writes(lookahead: int, blocks: int) -> None:
    """The prompt fills a block of 4, the next token stands at position 4, and the drafter writes behind it."""
    assert first_row_blocks(lookahead) == (blocks, 64 - blocks)


def test_a_drafter_never_gets_blocks_behind_the_last_position() -> None:
    assert first_row_blocks(40, max_new_tokens=5)[0] == 2, "8 of 9 positions go through the model"


def test_a_drafter_gets_what_is_left_and_preempts_nobody() -> None:
    assert first_row_blocks(40, num_kv_blocks=11) == (11, 0)


def test_a_step_without_drafts_has_no_blocks_for_them() -> None:
    schedule = [(1, 4, 0)]
    config = {"method": "ngram_gpu", "num_speculative_tokens": 2, "num_speculative_tokens_per_batch_size": schedule}
    driver = Driver.make(asynchronous=False, speculative_config=config)
    driver.scheduler.num_lookahead_tokens = 8
    driver.add(make_request(prompt=range(4)))
    (row,) = driver.scheduler.schedule().rows
    assert (row.num_next_drafts, len(row.new_block_ids)) == (0, 1)


# --- counters ------------------------------------------------------------------------------------------------------------


def test_the_counters_of_a_run_that_is_counted_by_hand() -> None:
    """Twice the same prompt of 6 in chunks of 4, and 3 tokens each; 4 positions of the second prompt are cached."""
    driver = Driver.make(asynchronous=False, max_num_batched_tokens=4)
    for name in "abc":
        driver.add(make_request(name, range(6), max_new_tokens=3))
        driver.run()
    stats = driver.core.stats
    assert (stats.num_steps, stats.num_partial_prefills) == (4 + 3 + 3, 1)
    assert (stats.num_prefix_queries, stats.num_prefix_hits) == (18, 8)
    assert (stats.num_prefill_tokens_emitted, stats.num_decode_steps, stats.num_generated_tokens) == (3, 6, 9)
    assert (stats.num_computed_positions, stats.num_empty_rows, stats.num_dropped_rows) == (8 + 4 + 4, 0, 0)
    assert stats.num_finished == {"length": 3}


def test_the_counters_of_a_request_that_is_preempted() -> None:
    driver, _, younger = two_in_a_small_pool(asynchronous=False)
    given_up, num_running = 0, 0
    while driver.core.has_work:
        before, committed = younger.num_preemptions, younger.num_committed_tokens
        driver.step()
        given_up += committed * (younger.num_preemptions - before)
        num_running += 1
    stats = driver.core.stats
    assert younger.num_preemptions == stats.num_preemptions == 1
    assert stats.num_preempted_positions == given_up > 0
    assert (younger.num_prefills, younger.num_decode_steps) == (2, 15)
    assert stats.num_steps == num_running


def test_every_preemption_counts() -> None:
    driver = Driver.make(asynchronous=False, num_kv_blocks=6, enable_prefix_caching=False)
    requests = [make_request(str(i), [i] * 3, max_new_tokens=20, arrival=i) for i in range(4)]
    driver.add(*requests)
    driver.run()
    assert driver.core.stats.num_preemptions == sum(request.num_preemptions for request in requests)
    assert max(request.num_preemptions for request in requests) > 1


def test_rows_that_came_too_late_are_counted() -> None:
    """Three requests meet their stop while a step names them; two of them give NaN, whose step in flight computes nothing."""
    prompts = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    stops = [true_output(make_request(prompt=prompt))[0] for prompt in prompts]
    driver = Driver.make()
    driver.add(*(make_request(str(i), prompts[i], stop_ids=[stops[i]], arrival=i) for i in range(3)))
    driver.run()
    assert (driver.core.stats.num_dropped_rows, driver.core.stats.num_dropped_positions) == (3, 3)
    bad = Driver.make(asynchronous=False, nan_behind=prompts[:2])
    bad.add(*(make_request(str(i), prompts[i], arrival=i) for i in range(3)))
    bad.run()
    assert bad.core.stats.num_nan_rows == 2


def test_a_row_without_a_position_is_counted_as_empty() -> None:
    """All drafts are accepted, so the next step, planned before that was known, comes when the limit is reached."""
    driver = Driver.make(depth=3, accept=(99,))
    driver.add(make_request(max_new_tokens=5), make_request("b", [9] * 3, max_new_tokens=9, arrival=1))
    driver.run()
    empty = sum(int(count) == 0 for result in driver.device.results for count in result.num_computed)
    assert driver.core.stats.num_empty_rows == empty > 1


# --- the audit -----------------------------------------------------------------------------------------------------------


def in_the_middle(*, planned: bool = False) -> tuple[Any, Request]:
    """A scheduler, and a request that has its first token (`planned`: and the next two steps in flight)."""
    driver = Driver.make(asynchronous=False)
    request = make_request()
    driver.add(request)
    driver.step()
    if planned:
        driver.scheduler.schedule()
        driver.scheduler.schedule()
    driver.scheduler.check_integrity()
    return driver.scheduler, request


def _hold_twice(scheduler: Any, request: Request) -> None:
    (stay,) = scheduler._stays.values()
    scheduler._stays[request.slot, 99] = stay
    for block in request.block_ids:
        scheduler.kv_cache.pool.ref_counts[block] += 1


DAMAGE = {
    "a-slot-is-lost": (lambda s, r: s.slots._free.pop(), "slots do not add up"),
    "a-slot-is-free-and-held": (lambda s, r: s.slots._free.__setitem__(0, r.slot), "slots do not add up"),
    "a-slot-is-held-twice": (_hold_twice, "slots do not add up"),
    "a-step-too-many": (lambda s, r: setattr(r, "num_in_flight", 1), "'r' counts 1 steps in flight, 0 name it"),
    "ended-and-held": (lambda s, r: setattr(r, "status", RequestStatus.FINISHED), "'r' has ended and nothing is in flight"),
    "expects-at-least": (lambda s, r: setattr(r, "num_in_flight_tokens_min", 1), "'r' has nothing in flight"),
    "expects-at-most": (lambda s, r: setattr(r, "num_in_flight_tokens_max", 1), "'r' has nothing in flight"),
    "a-token-nobody-computed": (lambda s, r: r.output_token_ids.append(1), "'r' has 5 tokens, but a committed length of 3"),
    "positions-without-blocks": (lambda s, r: setattr(r, "num_committed_tokens", 5), "5 committed positions in 1 blocks"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_audit_finds(damage: str) -> None:
    scheduler, request = in_the_middle()
    do, message = DAMAGE[damage]
    do(scheduler, request)
    with pytest.raises(IntegrityError, match=message):
        scheduler.check_integrity()


def test_the_audit_counts_every_step_in_flight() -> None:
    scheduler, request = in_the_middle(planned=True)
    assert request.num_in_flight == 2
    request.num_in_flight = 1
    with pytest.raises(IntegrityError, match="counts 1 steps in flight, 2 name it"):
        scheduler.check_integrity()


def test_the_audit_finds_a_step_for_a_slot_that_was_given_back() -> None:
    scheduler, request = in_the_middle(planned=True)
    request.num_in_flight = 0
    scheduler._release(request)
    with pytest.raises(IntegrityError, match=r"names slot 0 \(stay 1\), which was given back"):
        scheduler.check_integrity()


# --- random schedules ----------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_random_schedules(data: st.DataObject) -> None:
    """Arrivals, aborts, stops and NaN at any time, in any pool: tokens are those of the plain loop, the books always add up."""
    draw = data.draw
    block_size = draw(st.integers(1, 5))
    depth = draw(st.sampled_from([0, 0, 1, 2, 4, 6]))
    requests = []
    for index in range(draw(st.integers(1, 6))):
        prompt = [3] * draw(st.integers(0, 9)) + draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4))
        stops = draw(st.sampled_from([(), (), (1, 11, 21, 31, 41)]))
        requests.append(
            make_request(str(index), prompt, max_new_tokens=draw(st.integers(1, 14)), stop_ids=stops, arrival=index)
        )
    bad = draw(st.sampled_from([None, *requests]))
    truth = {request: true_output(request) for request in requests}
    nan_behind = []
    if bad is not None:
        nan_behind = [[*bad.prompt_token_ids, *truth[bad][: draw(st.integers(0, len(truth[bad]) - 1))]]]
    least = max(-(-(request.token_limit - 1) // block_size) for request in requests)
    driver = Driver.make(
        asynchronous=draw(st.booleans()),
        depth=depth,
        accept=draw(st.lists(st.sampled_from([0, 1, 2, 99]), min_size=1, max_size=3)),
        nan_behind=nan_behind,
        block_size=block_size,
        num_kv_blocks=max(least, 1) + draw(st.integers(0, 4)),
        max_num_seqs=draw(st.integers(1, 4)),
        max_num_batched_tokens=draw(st.sampled_from([1, 2, 3, 7, 128])),
        enable_prefix_caching=draw(st.booleans()),
    )
    pending = list(requests)
    aborted = set()
    for _ in range(1500):
        if not pending and not driver.core.has_work:
            break
        while pending and (not driver.core.has_work or draw(st.booleans())):
            driver.add(pending.pop(0))
        if draw(st.integers(0, 9)) == 0:
            victim = draw(st.sampled_from([r for r in requests if r not in pending] or requests[:1]))
            if victim not in pending:
                if victim.status is not RequestStatus.FINISHED:
                    aborted.add(victim)
                driver.scheduler.abort(victim)
        driver.step()
    else:
        raise AssertionError("no progress")
    for request in requests:
        emitted = request.output_token_ids
        assert emitted == truth[request][: len(emitted)]
        assert request.finish is not None
        if request.finish.reason in ("stop", "length"):
            assert emitted == truth[request]
        else:
            assert request.finish.reason == ("abort" if request in aborted else "error")
        if request.finish.reason == "error":
            assert tuple(request.token_ids) in driver.device.nan_behind
    assert driver.scheduler.slots.num_free == driver.scheduler.slots.num_slots


def test_the_fake_device_sees_a_block_that_belongs_to_another() -> None:
    """The device's own check can fail: a block given to two requests at once."""
    driver = Driver.make(asynchronous=False, enable_prefix_caching=False)
    first, second = make_request("a", [1] * 6), make_request("b", [2] * 6, arrival=1)
    driver.add(first)
    driver.step()
    driver.add(second)
    driver.scheduler.kv_cache.pool._free[first.block_ids[0]] = None
    driver.scheduler.kv_cache.pool._free.move_to_end(first.block_ids[0], last=False)
    driver.core.step()
    with pytest.raises(AssertionError, match="someone else's KV entries"):
        driver.core.step()


def test_true_token_looks_at_the_whole_prefix() -> None:
    assert len({true_token([first, *range(20)]) for first in range(40)}) > 10
