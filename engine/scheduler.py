"""Decides what the next step computes, and takes its result back.

The scheduler knows lengths, never token values that have not come back (law 2): a plan says "decode slot 7", the runner knows
with which token. The same two functions serve synchronous and asynchronous scheduling; a plan may be made while the step
before it is still in flight.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from engine.config import ResolvedConfig
from engine.errors import IntegrityError, InvalidRequestError, NanLogitsError
from engine.kv_cache import KVCacheManager
from engine.metrics import EngineStats
from engine.request import Request, RequestStatus
from engine.slots import SlotPool
from engine.step import NewSlot, PlanRow, RowLogprobs, StepPlan, StepResult
from engine.stop import Finish

__all__ = ["Scheduler"]


@dataclass(frozen=True)
class _Stay:
    """A request's time in a slot; a result finds its request through (slot, generation)."""

    request: Request
    slot: int
    generation: int


class Scheduler:
    def __init__(self, config: ResolvedConfig, stats: EngineStats, kv_cache: KVCacheManager, slots: SlotPool) -> None:
        options = config.options
        self.stats = stats
        self.kv_cache = kv_cache
        self.slots = slots
        self.max_num_batched_tokens = options.max_num_batched_tokens
        self.enable_chunked_prefill = options.enable_chunked_prefill
        self.num_speculative_tokens = config.num_speculative_tokens
        self.speculative = config.speculative
        self.num_lookahead_tokens = config.num_lookahead_tokens
        self.waiting: deque[Request] = deque()  # by arrival
        self.running: list[Request] = []  # by arrival, and all before the waiting ones
        self._stays: dict[tuple[int, int], _Stay] = {}  # those that still hold their slot
        self._in_flight: dict[int, StepPlan] = {}
        self._next_step_id = 0

    # --- requests come and go ---------------------------------------------------------------------------------------
    def add(self, request: Request) -> None:
        """Queue a request. `InvalidRequestError` if it could never run in this pool."""
        needed = self.kv_cache.num_blocks_for(self._max_kv_tokens(request))
        if needed > self.kv_cache.pool.num_blocks:
            raise InvalidRequestError(
                f"request {request.request_id!r} may need {needed} KV blocks ({request.token_limit} tokens), but the pool has "
                f"{self.kv_cache.pool.num_blocks}; raise num_kv_blocks, or lower max_tokens or the prompt."
            )
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """End a request now; its slot and blocks stay taken until the last step that names it has come back."""
        if request.status is RequestStatus.WAITING:
            self.waiting.remove(request)
        if request.status is not RequestStatus.FINISHED:
            request.stop_checker.detokenizer.flush()
            self._finish(request, Finish("abort"))

    @property
    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running)

    # --- plan -------------------------------------------------------------------------------------------------------
    def schedule(self) -> StepPlan | None:
        """Plan the next step; None if nothing can be planned before a step in flight comes back."""
        budget = self.max_num_batched_tokens
        rows: list[PlanRow] = []
        new_slots: list[NewSlot] = []
        pool_is_short = False

        for request in list(self.running):
            if request.status is not RequestStatus.RUNNING or budget == 0:
                continue  # preempted a moment ago for a request before it
            row: PlanRow | None
            if request.is_prefilling:
                row = self._plan_prefill(request, budget)
            else:
                row, pool_is_short = self._plan_decode(request, budget)
                if pool_is_short:
                    break  # what comes later gave up, or is giving up, its blocks
            if row is not None:
                rows.append(row)
                budget -= row.num_tokens

        while self.waiting and budget and self.slots.num_free and not pool_is_short:
            request = self.waiting[0]
            new = self._admit(request, budget)
            if new is None:
                break
            row = self._plan_prefill(request, budget, new_block_ids=tuple(request.block_ids))
            self.waiting.popleft()
            self.running.append(request)
            new_slots.append(new)
            rows.append(row)
            budget -= row.num_tokens

        if not rows:
            return None
        if self.speculative is not None:
            depth = self.speculative.drafts_for(len(self.running))
            rows = [self._with_drafts(row, depth) if row.wants_token else row for row in rows]
        plan = StepPlan(self._next_step_id, tuple(rows), tuple(new_slots))
        self._next_step_id += 1
        self._in_flight[plan.step_id] = plan
        return plan

    def _plan_prefill(self, request: Request, budget: int, new_block_ids: tuple[int, ...] = ()) -> PlanRow:
        left = request.num_prefill_tokens - request.num_scheduled_prefill_tokens
        num_tokens = min(left, budget)
        request.num_scheduled_prefill_tokens += num_tokens
        completes = num_tokens == left
        return self._launch(request, num_tokens, is_decode=False, wants_token=completes, new_block_ids=new_block_ids)

    def _plan_decode(self, request: Request, budget: int) -> tuple[PlanRow | None, bool]:
        """(row, whether the pool is too short to go on)."""
        if not request.may_need_a_step:
            return None, False
        at_least = request.num_tokens + request.num_in_flight_tokens_min
        num_drafts = min(self.num_speculative_tokens, budget - 1, request.token_limit - at_least - 1)
        while not self.kv_cache.can_allocate(request, self._kv_tokens(request, num_drafts)):
            if num_drafts > 0:
                num_drafts -= 1  # drafts never cost another request its place
            elif not self._preempt_behind(request):
                return None, True
        new = self.kv_cache.allocate(request, self._kv_tokens(request, num_drafts))
        return self._launch(request, 1 + num_drafts, is_decode=True, wants_token=True, new_block_ids=new), False

    def _with_drafts(self, row: PlanRow, depth: int) -> PlanRow:
        """Asks for drafts, with blocks for the entries that the drafter writes: of what is left, so maybe fewer."""
        new: tuple[int, ...] = ()
        if self.num_lookahead_tokens and depth:
            request = self._stays[row.slot, row.generation].request
            reach = min(request.num_planned_tokens + self.num_lookahead_tokens, self._max_kv_tokens(request))
            new = self.kv_cache.allocate_some(request, reach)
        return replace(row, num_next_drafts=depth, new_block_ids=row.new_block_ids + new)

    def _kv_tokens(self, request: Request, num_drafts: int) -> int:
        """Positions that need room once the next decode row is through the model, whatever the steps in flight accept."""
        return min(request.num_planned_tokens + num_drafts, self._max_kv_tokens(request))

    @staticmethod
    def _max_kv_tokens(request: Request) -> int:
        return request.token_limit - 1  # the last token never goes through the model

    def _preempt_behind(self, request: Request) -> bool:
        """Preempt the youngest running request if it came after `request`; False if there is none that can go now.

        A victim has no step in flight (law 7). Where it has, planning stops, the step comes back, and the next plan finds it
        drained. A request never preempts itself: it waits, since an older one will make progress or take its place.
        """
        victim = self.running[-1]
        if victim is request or victim.num_in_flight:
            return False
        self._preempt(victim)
        return True

    def _preempt(self, victim: Request) -> None:
        """Back to the queue, before all that wait; what it has computed is given up."""
        self.running.remove(victim)
        self.stats.num_preempted_positions += victim.num_committed_tokens
        self._release(victim)
        victim.status = RequestStatus.WAITING
        victim.num_preemptions += 1
        self.stats.num_preemptions += 1
        self.waiting.appendleft(victim)

    def _admit(self, request: Request, budget: int) -> NewSlot | None:
        """Give a request its slot, its cached prefix and blocks for all known tokens; None if it has to wait.

        It waits for a longer pool, or without chunked prefill for a step that takes all of it.
        """
        token_ids = request.token_ids
        cached = self.kv_cache.take_cached_prefix(request, token_ids)
        # Room for the first decode row too, else it would be preempted at once.
        wanted = min(len(token_ids) + 1 + self.num_speculative_tokens, self._max_kv_tokens(request))
        fits_the_step = self.enable_chunked_prefill or len(token_ids) - cached <= budget
        if not fits_the_step or not self.kv_cache.can_allocate(request, wanted):
            self.kv_cache.release(request)
            return None
        self.kv_cache.allocate(request, len(token_ids))
        request.slot, request.generation = self.slots.take()
        request.status = RequestStatus.RUNNING
        request.num_cached_tokens = cached
        request.num_prefill_tokens = len(token_ids)
        request.num_scheduled_prefill_tokens = cached
        request.num_committed_tokens = cached
        self.stats.num_prefix_queries += len(token_ids)
        self.stats.num_prefix_hits += cached
        self._stays[request.slot, request.generation] = _Stay(request, request.slot, request.generation)
        return NewSlot(
            slot=request.slot,
            generation=request.generation,
            token_ids=np.asarray(token_ids, dtype=np.int32),
            num_prompt_tokens=request.num_prompt_tokens,
            num_cached_tokens=cached,
            token_limit=request.token_limit,
            sampling=request.sampling,
            extra_args=request.extra_args,
        )

    def _launch(
        self, request: Request, num_tokens: int, *, is_decode: bool, wants_token: bool, new_block_ids: tuple[int, ...]
    ) -> PlanRow:
        request.num_in_flight += 1
        request.num_in_flight_tokens_min += wants_token
        request.num_in_flight_tokens_max += num_tokens if is_decode else wants_token
        return PlanRow(
            slot=request.slot,
            generation=request.generation,
            num_tokens=num_tokens,
            is_decode=is_decode,
            wants_token=wants_token,
            num_next_drafts=0,
            new_block_ids=new_block_ids,
        )

    # --- commit -----------------------------------------------------------------------------------------------------
    def commit(self, plan: StepPlan, result: StepResult) -> list[Request]:
        """Take the result of the oldest step in flight; returns the requests that changed."""
        assert result.step_id == plan.step_id, f"result of step {result.step_id} came for step {plan.step_id}"
        del self._in_flight[plan.step_id]
        self.stats.num_steps += 1
        self.stats.num_computed_positions += int(result.num_computed.sum())
        self.stats.num_empty_rows += int((result.num_computed == 0).sum())
        changed = []
        for index, row in enumerate(plan.rows):
            request = self._stays[row.slot, row.generation].request
            request.num_in_flight -= 1
            request.num_in_flight_tokens_min -= row.wants_token
            request.num_in_flight_tokens_max -= row.num_tokens if row.is_decode else row.wants_token
            if request.status is RequestStatus.FINISHED:
                num_computed = int(result.num_computed[index])
                self.stats.num_dropped_rows += num_computed > 0
                self.stats.num_dropped_positions += num_computed
                if request.num_in_flight == 0:
                    self._release(request)
            elif self._commit_row(request, row, index, result):
                changed.append(request)
        return changed

    def _commit_row(self, request: Request, row: PlanRow, index: int, result: StepResult) -> bool:
        """Returns whether the request has new tokens or ended."""
        finish: Finish | None = None
        num_emitted = 0
        for token_id in result.token_ids[index, : result.num_emitted[index]].tolist():
            request.output_token_ids.append(token_id)
            num_emitted += 1
            finish = request.stop_checker.feed(token_id)
            if finish is not None:
                break
        self._count_tokens(request, row, num_emitted, int(result.num_drafted[index]))
        if num_emitted and index in result.logprobs:
            request.logprobs.append(_first(result.logprobs[index], num_emitted))
        request.num_committed_tokens += num_emitted if row.is_decode else row.num_tokens
        if finish is not None or not result.nan_logits[index]:
            self.kv_cache.publish_committed(request)
        else:
            self.kv_cache.forget(request)  # nobody else may meet the entries that gave NaN
            request.stop_checker.detokenizer.flush()
            finish = Finish("error")
            request.error = NanLogitsError(
                f"request {request.request_id!r}: the model gave NaN at position {request.num_tokens}; the request ends there."
            )
            self.stats.num_nan_rows += 1
        if finish is not None:
            self._finish(request, finish)
        return num_emitted > 0 or finish is not None

    def _count_tokens(self, request: Request, row: PlanRow, num_emitted: int, num_drafted: int) -> None:
        self.stats.num_generated_tokens += num_emitted
        self.stats.num_partial_prefills += not row.wants_token
        if num_emitted and row.is_decode:
            self.stats.num_decode_steps += 1
            request.num_decode_steps += 1
        elif num_emitted:
            self.stats.num_prefill_tokens_emitted += 1
            request.num_prefills += 1
        if num_drafted:
            num_accepted = max(0, num_emitted - 1)
            self.stats.count_draft(num_drafted, num_accepted)
            request.num_drafts += 1
            request.num_drafted_tokens += num_drafted
            request.num_accepted_tokens += num_accepted
            request.drafts.append((num_drafted, num_accepted))

    def _finish(self, request: Request, finish: Finish) -> None:
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        request.status = RequestStatus.FINISHED
        request.finish = finish
        self.stats.num_finished[finish.reason] = self.stats.num_finished.get(finish.reason, 0) + 1
        if request.slot >= 0 and request.num_in_flight == 0:
            self._release(request)

    def _release(self, request: Request) -> None:
        """Give back the slot and the blocks of a request that no step in flight names."""
        assert request.num_in_flight == 0, f"request {request.request_id!r} is released under a step in flight"
        self.kv_cache.release(request)
        self.slots.release(request.slot)
        del self._stays[request.slot, request.generation]
        request.slot = request.generation = -1

    # --- audit ------------------------------------------------------------------------------------------------------
    def check_integrity(self) -> None:
        """Hold laws 4 and 6 to account; raises `IntegrityError`."""
        holders = [stay.request for stay in self._stays.values()]
        self.kv_cache.pool.check([request.block_ids for request in holders])
        free = set(self.slots.free)
        held = {stay.slot for stay in self._stays.values()}
        if free & held or len(free) + len(held) != self.slots.num_slots or len(held) != len(self._stays):
            raise IntegrityError(f"slots do not add up: free {sorted(free)}, held {sorted(held)}, total {self.slots.num_slots}")
        named: dict[tuple[int, int], int] = {}
        for plan in self._in_flight.values():
            for row in plan.rows:
                named[row.slot, row.generation] = named.get((row.slot, row.generation), 0) + 1
        for slot, generation in named:
            if (slot, generation) not in self._stays:
                raise IntegrityError(f"a step in flight names slot {slot} (stay {generation}), which was given back")
        for stay in self._stays.values():
            self._check_request(stay, named.get((stay.slot, stay.generation), 0))

    def _check_request(self, stay: _Stay, num_in_flight: int) -> None:
        request = stay.request
        name = f"request {request.request_id!r}"
        if request.num_in_flight != num_in_flight:
            raise IntegrityError(f"{name} counts {request.num_in_flight} steps in flight, {num_in_flight} name it")
        if self.kv_cache.num_blocks_for(request.num_committed_tokens) > len(request.block_ids):
            raise IntegrityError(
                f"{name} has {request.num_committed_tokens} committed positions in {len(request.block_ids)} blocks"
            )
        if request.status is RequestStatus.FINISHED:
            if not num_in_flight:
                raise IntegrityError(f"{name} has ended and nothing is in flight, but it still holds slot {stay.slot}")
            return
        if num_in_flight == 0 and (request.num_in_flight_tokens_min or request.num_in_flight_tokens_max):
            raise IntegrityError(f"{name} has nothing in flight, but still expects tokens")
        decoding = not request.is_prefilling and request.num_committed_tokens >= request.num_prefill_tokens
        if decoding and request.num_committed_tokens != request.num_tokens - 1:
            raise IntegrityError(
                f"{name} has {request.num_tokens} tokens, but a committed length of {request.num_committed_tokens}"
            )


def _first(logprobs: RowLogprobs, count: int) -> RowLogprobs:
    return RowLogprobs(
        logprobs.top_ids[:count], logprobs.top_logprobs[:count], logprobs.logprobs[:count], logprobs.ranks[:count]
    )
