"""Faults of the scheduler: what it plans, whom it preempts, and what it makes of results that come late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from engine.request import Request, RequestStatus
from engine.runner import Launch, Runner
from engine.scheduler import Scheduler
from engine.slot_table import SlotTable
from engine.step import NewSlot, PlanRow, StepPlan, StepResult
from engine.stop import Finish
from harness.faults.fault import fault, reach
from harness.faults.results import without_rows

Ints = Any


@fault(
    "S-01",
    "placeholder ids take the place of the drafts of a row that has to wait for a step",
    part="runner",
    case="simulation:1000",
    raises="AcceptanceRateError",
    source="vLLM #46899",
    simulated=True,
)
class PlaceholdersOutliveTheirStep(Runner):
    def execute(self, plan: StepPlan) -> StepResult:
        result = super().execute(plan)
        waiting = set(np.flatnonzero(self.table.num_drafts > 0).tolist()) - {row.slot for row in plan.rows}
        for slot in waiting:
            start, count = self.table.num_tokens[slot], self.table.num_drafts[slot]
            reach("S-01")
            self.table.tokens[slot, start : start + count] = 0
        return result


class _PreemptsInFlight(Scheduler):
    """Takes a victim's slot and blocks while a step that names it is in flight."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._late: dict[tuple[int, int], Request] = {}

    def _preempt_behind(self, request: Request) -> bool:
        victim = self.running[-1]
        if victim is not request and victim.num_in_flight:
            self._late[victim.slot, victim.generation] = victim
            victim.num_in_flight = victim.num_in_flight_tokens_min = victim.num_in_flight_tokens_max = 0
        return super()._preempt_behind(request)

    def commit(self, plan: StepPlan, result: StepResult) -> list[Request]:
        late = [i for i, row in enumerate(plan.rows) if (row.slot, row.generation) in self._late]
        changed = []
        for index in late:
            row = plan.rows[index]
            request = self._late.pop((row.slot, row.generation))
            if request.status is not RequestStatus.FINISHED and self._take_late(request, row, index, result):
                changed.append(request)
        step = self._in_flight[plan.step_id]
        kept, result = without_rows(step, result, late)
        return changed + super().commit(kept, result)

    def _take_late(self, request: Request, row: PlanRow, index: int, result: StepResult) -> bool:
        raise NotImplementedError


@fault(
    "S-02/none",
    "counters are reset by a preemption, and the output that was still travelling is counted against them",
    part="scheduler",
    case="cell:tight/whole/nocache/plain/greedy-ignore-eos",
    raises="ResourceLeakError",
    source="vLLM #48245, #30142",
    simulated=True,
)
class CountsLateOutputAfterTheReset(_PreemptsInFlight):
    def _take_late(self, request: Request, row: PlanRow, index: int, result: StepResult) -> bool:
        reach("S-02/none")
        request.num_in_flight -= 1
        return self._commit_row(request, row, index, result)


@fault(
    "S-02/one",
    "one frame is dropped for each preemption, whether one was in flight or not",
    part="scheduler",
    case="cell:tight/whole/nocache/plain/greedy-ignore-eos",
    raises="StalledEngineError",
    source="vLLM #41190, #42117",
    simulated=True,
)
class DropsOneFrameForEachPreemption(Scheduler):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._to_drop: set[str] = set()

    def _preempt_behind(self, request: Request) -> bool:
        victim = self.running[-1]
        if not super()._preempt_behind(request):
            return False
        self._to_drop.add(victim.request_id)
        return True

    def _commit_row(self, request: Request, row: PlanRow, index: int, result: StepResult) -> bool:
        if row.is_decode and request.request_id in self._to_drop:
            self._to_drop.discard(request.request_id)
            reach("S-02/one")
            return False
        return super()._commit_row(request, row, index, result)


@fault(
    "S-02/frames",
    "of a late frame one token is dropped, not all that it carries",
    part="scheduler",
    case="cell:tight/whole/nocache/right/greedy-ignore-eos",
    raises="TokenMismatchError",
    source="vLLM #49620",
    simulated=True,
)
class DropsFramesNotTokens(_PreemptsInFlight):
    def _take_late(self, request: Request, row: PlanRow, index: int, result: StepResult) -> bool:
        taken = result.token_ids[index, 1 : result.num_emitted[index]].tolist()
        reach("S-02/frames", len(taken))
        for token_id in taken:
            request.output_token_ids.append(token_id)
            finish = request.stop_checker.feed(token_id)
            if finish is not None:
                self.waiting.remove(request)
                self._finish(request, finish)
                break
        return bool(taken)


@fault(
    "S-03/beyond",
    "steps go on when those in flight already reach max_tokens",
    part="scheduler",
    case="cell:roomy/whole/nocache/plain/greedy-ignore-eos",
    raises="WorkBoundError",
    source="vLLM #27922",
    simulated=True,
)
class PlansBeyondTheEnd(Scheduler):
    def _plan_decode(self, request: Request, budget: int) -> tuple[PlanRow | None, bool]:
        if request.may_need_a_step:
            return super()._plan_decode(request, budget)
        reach("S-03/beyond")
        return self._launch(request, 1, is_decode=True, wants_token=True, new_block_ids=()), False


@fault(
    "S-03/swallowed",
    "the last step of a request that is about to be preempted is thrown away and computed again",
    part="scheduler",
    case="cell:tight/whole/nocache/plain/greedy-ignore-eos",
    raises="WorkBoundError",
    source="vllm-gaudi #1794",
    simulated=True,
)
class SwallowsTheVictimsLastStep(Scheduler):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._doomed: set[str] = set()

    def _preempt_behind(self, request: Request) -> bool:
        victim = self.running[-1]
        if victim is not request and victim.num_in_flight == 1:
            self._doomed.add(victim.request_id)
        return super()._preempt_behind(request)

    def _commit_row(self, request: Request, row: PlanRow, index: int, result: StepResult) -> bool:
        doomed = request.request_id in self._doomed
        self._doomed.discard(request.request_id)
        if not doomed or request.num_in_flight or not row.is_decode or request is not self.running[-1]:
            return super()._commit_row(request, row, index, result)
        reach("S-03/swallowed")
        self._preempt(request)
        return False


@fault(
    "S-04",
    "drafts that a slot held before come back once its next request has its first token",
    part="runner",
    case="cell:tight/whole/nocache/right/greedy-ignore-eos",
    raises="AcceptanceRateError",
    source="vLLM #31944, #31955",
    simulated=True,
)
class VerifiesDraftsOfAnEarlierStay(Runner):
    def execute(self, plan: StepPlan) -> StepResult:
        self._kept: dict[int, Ints] = self.__dict__.get("_kept", {})
        for new in plan.new_slots:
            start, count = self.table.num_tokens[new.slot], self.table.num_drafts[new.slot]
            self._kept[new.slot] = self.table.tokens[new.slot, start : start + count].copy()
        return super().execute(plan)

    def _draft(self, launch: Launch, hidden: Any, num_emitted: Ints) -> None:
        super()._draft(launch, hidden, num_emitted)
        for row, slot in zip(launch.rows, launch.slots.tolist(), strict=True):
            if not row.wants_token:
                continue
            kept = self._kept.pop(slot, self.table.tokens[0, :0])[: self.table.num_drafts[slot]]
            start = self.table.num_tokens[slot]
            reach("S-04", len(kept))
            self.table.tokens[slot, start : start + len(kept)] = kept


class _SpoilsHistory(Scheduler):
    """Sends the runner a resumed request's own tokens only up to some length."""

    def _admit(self, request: Request, budget: int) -> NewSlot | None:
        new = super()._admit(request, budget)
        if new is None or not request.output_token_ids:
            return new
        token_ids = np.array(new.token_ids)
        token_ids[max(self._known_length(request, budget), new.num_cached_tokens) :] = 0
        self._note(int((token_ids != new.token_ids).sum()))
        return replace(new, token_ids=token_ids)

    def _known_length(self, request: Request, budget: int) -> int:
        raise NotImplementedError

    def _note(self, changed: int) -> None:
        raise NotImplementedError


@fault(
    "S-05/history",
    "the runner does not get the tokens that a preempted request had said",
    part="scheduler",
    case="cell:tight/whole/nocache/plain/greedy-ignore-eos",
    raises="TokenMismatchError",
    source="vLLM #26385",
    simulated=True,
)
class ResumesWithoutHistory(_SpoilsHistory):
    def _known_length(self, request: Request, budget: int) -> int:
        return request.num_prompt_tokens

    def _note(self, changed: int) -> None:
        reach("S-05/history", changed)


@fault(
    "S-05/chunk",
    "of a resumed request the runner gets the first chunk alone",
    part="scheduler",
    case="cell:tight/chunked/nocache/plain/greedy-ignore-eos",
    raises="TokenMismatchError",
    source="vLLM #28787",
    simulated=True,
)
class ResumesWithTheFirstChunk(_SpoilsHistory):
    def _known_length(self, request: Request, budget: int) -> int:
        return budget

    def _note(self, changed: int) -> None:
        reach("S-05/chunk", changed)


class _Miscounts(Runner):
    """Corrects the computed length by another number than that of the rejected drafts."""

    def _commit(self, launch: Launch, choices: Ints, num_emitted: Ints) -> None:
        super()._commit(launch, choices, num_emitted)
        for index, (row, slot) in enumerate(zip(launch.rows, launch.slots, strict=True)):
            if row.is_decode and launch.query_lens[index]:
                rejected = int(launch.query_lens[index] - num_emitted[index])
                self._change(slot, rejected)

    def _change(self, slot: int, rejected: int) -> None:
        raise NotImplementedError


@fault(
    "S-07/never",
    "the computed length still counts the drafts that were rejected",
    part="runner",
    case="cell:roomy/whole/nocache/mixed/greedy",
    raises="TokenMismatchError",
    source="vLLM #38556, review of #29957",
    simulated=True,
)
class NeverCorrectsTheLength(_Miscounts):
    def _change(self, slot: int, rejected: int) -> None:
        last = int(self.table.token_limit[slot]) - 1
        now = int(self.table.num_computed[slot])
        longer = min(now + rejected, last)
        reach("S-07/never", longer - now)
        self.table.num_computed[slot] = longer


@fault(
    "S-07/twice",
    "the computed length is corrected twice for the drafts that were rejected",
    part="runner",
    case="cell:roomy/whole/nocache/mixed/greedy",
    raises="TokenMismatchError",
    source="vLLM #38556, review of #32951",
    simulated=True,
)
class CorrectsTheLengthTwice(_Miscounts):
    def _change(self, slot: int, rejected: int) -> None:
        reach("S-07/twice", rejected)
        self.table.num_computed[slot] = max(0, int(self.table.num_computed[slot]) - rejected)


@fault(
    "S-08/waiting",
    "an aborted request stays in the queue of those that wait",
    part="scheduler",
    case="staggered:roomy/plain",
    raises="ConservationError",
    source="vLLM #52969",
    simulated=True,
)
class LeavesTheAbortedWaiting(Scheduler):
    def abort(self, request: Request) -> None:
        if request.status is RequestStatus.WAITING:
            reach("S-08/waiting")
            request.stop_checker.detokenizer.flush()
            self._finish(request, Finish("abort"))
        else:
            super().abort(request)


@fault(
    "S-08/late",
    "a request that ends with a step in flight is forgotten, and then the step comes back",
    part="scheduler",
    case="cell:roomy/whole/nocache/plain/stop-ids",
    raises="ResourceLeakError",
    source="vLLM #49118, #43226",
    simulated=True,
)
class ForgetsWhoIsInFlight(Scheduler):
    def _finish(self, request: Request, finish: Finish) -> None:
        reach("S-08/late", request.num_in_flight > 0)
        request.num_in_flight = 0
        super()._finish(request, finish)


@fault(
    "S-10",
    "nobody is ever preempted",
    part="scheduler",
    case="cell:tight/whole/nocache/plain/greedy-ignore-eos",
    raises="StalledEngineError",
    source="vLLM #57104, #49674",
    simulated=True,
)
class NeverPreempts(Scheduler):
    def _preempt_behind(self, request: Request) -> bool:
        reach("S-10")
        return False


@fault(
    "K-07",
    "the computed length advances by one token, however many were accepted",
    part="slot_table",
    case="cell:roomy/whole/nocache/right/greedy",
    raises="TokenMismatchError",
    source="transformers #30042",
    simulated=True,
)
class AdvancesByOne(SlotTable):
    """`num_computed` is set from `num_tokens`; this one remembers how many tokens came with drafts and holds them back."""

    def query_len(self, row: PlanRow) -> int:
        if row.is_decode and self.num_drafts[row.slot]:
            behind = self._accepted(row.slot)
            reach("K-07", behind)
            self.num_computed[row.slot] -= behind
        return super().query_len(row)

    def append_tokens(self, slot: int, token_ids: np.ndarray) -> None:
        super().append_tokens(slot, token_ids)
        self._last: dict[int, int] = self.__dict__.get("_last", {})
        self._last[slot] = max(0, len(token_ids) - 1)

    def _accepted(self, slot: int) -> int:
        return int(self.__dict__.get("_last", {}).pop(slot, 0))


@fault(
    "P-12/first",
    "the token that comes out of a prefill is not part of the output",
    part="scheduler",
    case="cell:roomy/whole/nocache/plain/greedy",
    raises="ResourceLeakError",
    source="litgpt #2307",
    simulated=True,
)
class LosesTheFirstToken(Scheduler):
    def commit(self, plan: StepPlan, result: StepResult) -> list[Request]:
        num_emitted = result.num_emitted.copy()
        for index, row in enumerate(plan.rows):
            if row.wants_token and not row.is_decode:
                reach("P-12/first", int(num_emitted[index]))
                num_emitted[index] = 0
        return super().commit(plan, replace(result, num_emitted=num_emitted, logprobs={}))


@fault(
    "T-01",
    "the tokens of an accepted run behind a stop stay in the output",
    part="scheduler",
    case="cell:roomy/whole/nocache/right/stop-strings",
    raises="TokenMismatchError",
    source="vLLM #47616",
    simulated=True,
)
class KeepsWhatComesBehindTheStop(Scheduler):
    def _commit_row(self, request: Request, row: PlanRow, index: int, result: StepResult) -> bool:
        before = request.num_tokens
        changed = super()._commit_row(request, row, index, result)
        cut = result.token_ids[index, request.num_tokens - before : result.num_emitted[index]].tolist()
        reach("T-01", len(cut))
        request.output_token_ids.extend(cut)
        return changed
