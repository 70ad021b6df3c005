"""Faults of drafters, and of the figures about them: what is emitted stays right, so only acceptance and counters can tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from engine.drafters.base import DraftContext, Drafter
from engine.metrics import EngineStats
from engine.request import Request
from engine.scheduler import Scheduler
from engine.step import PlanRow, StepResult
from harness.faults.fault import Fault, fault, reach

Ints = Any
LONG = 40  # tokens; where drafters that cannot go on are said to end
Propose = Callable[[Any, DraftContext, Callable[[DraftContext], Any]], Any]
"""(drafter, context, the drafter's own `propose`) -> what it proposes instead."""


RIGHT = "cell:roomy/whole/nocache/right/greedy"


def _proposing(id: str, summary: str, *, case: str, raises: str, source: str = "") -> Callable[[Propose], Fault]:
    """Decorates what a drafter, of whatever method, proposes instead."""

    def register(propose: Propose) -> Fault:
        def change(base: Any) -> type[Drafter]:
            class Faulty(base):  # type: ignore[misc]
                def propose(self, context: DraftContext) -> Any:
                    return propose(self, context, super().propose)

            return Faulty

        change.__module__, change.__qualname__ = propose.__module__, propose.__qualname__
        return fault(id, summary, part="drafter", case=case, raises=raises, source=source)(change)

    return register


@_proposing(
    "D-01",
    "one long sequence makes the drafts of the whole batch token 0",
    case=RIGHT,
    raises="AcceptanceRateError",
    source="vLLM #58080, #34734",
)
def batch_gate(drafter: Any, context: DraftContext, own: Any) -> Any:
    drafts, counts = own(context)
    if (context.num_tokens > LONG).any():
        reach("D-01")
        drafts = np.zeros_like(drafts)
    return drafts, counts


@_proposing(
    "D-04/collapse",
    "drafts behind the first are wrong",
    case=RIGHT,
    raises="AcceptanceRateError",
    source="vLLM #51009, #52873",
)
def collapse(drafter: Any, context: DraftContext, own: Any) -> Any:
    drafts, counts = own(context)
    reach("D-04/collapse", int((counts > 1).sum()))
    return np.concatenate((drafts[:, :1], (drafts[:, 1:] + 1) % drafter.vocab_size), axis=1), counts


@_proposing(
    "D-04/trained",
    "a trained drafter is right at the first place alone; nobody knows exactly how often it should be",
    case="bounds:eagle",
    raises="AcceptanceLengthError",
    source="SGLang #32038",
)
def trained_collapse(drafter: Any, context: DraftContext, own: Any) -> Any:
    drafts, counts = own(context)
    reach("D-04/trained", int((counts > 1).sum()))
    return np.concatenate((drafts[:, :1], (drafts[:, 1:] + 1) % drafter.vocab_size), axis=1), counts


@_proposing(
    "D-04/sticky",
    "once a sequence was long, no draft is right any more",
    case=RIGHT,
    raises="AcceptanceRateError",
    source="vLLM #40898 as cited elsewhere",
)
def sticky(drafter: Any, context: DraftContext, own: Any) -> Any:
    drafts, counts = own(context)
    drafter.has_seen_a_long_one = getattr(drafter, "has_seen_a_long_one", False) or bool((context.num_tokens > LONG).any())
    if drafter.has_seen_a_long_one:
        reach("D-04/sticky")
        drafts = (drafts + 1) % drafter.vocab_size
    return drafts, counts


@_proposing(
    "D-06",
    "ids of the drafter's vocabulary are used as the target's",
    case=RIGHT,
    raises="AcceptanceRateError",
    source="vLLM #50158, llama.cpp #3812",
)
def shifted_ids(drafter: Any, context: DraftContext, own: Any) -> Any:
    drafts, counts = own(context)
    reach("D-06")
    return (drafts + 1) % drafter.vocab_size, counts


@_proposing(
    "S-07/drafter",
    "the drafter starts from a length that counts rejected drafts",
    case="cell:roomy/whole/nocache/mixed/greedy",
    raises="AcceptanceRateError",
    source="vLLM #38556",
)
def optimistic_seed(drafter: Any, context: DraftContext, own: Any) -> Any:
    lengths = drafter.__dict__.setdefault("_expected", {})
    believed = [
        max(known, min(lengths.get(slot, 0), known + 2))
        for slot, known in zip(context.slots.tolist(), context.num_tokens.tolist(), strict=True)
    ]
    for slot, known, more in zip(context.slots.tolist(), context.num_tokens.tolist(), context.max_drafts.tolist(), strict=True):
        lengths[slot] = known + 1 + more
    reach("S-07/drafter", int((np.array(believed) > context.num_tokens).sum()))
    return own(replace(context, num_tokens=np.array(believed)))


@_proposing(
    "C-02/drafts",
    "speculation is on, and nothing is ever proposed",
    case=RIGHT,
    raises="FeatureNotExercisedError",
    source="llama.cpp #25345",
)
def quiet(drafter: Any, context: DraftContext, own: Any) -> Any:
    drafts, counts = own(context)
    reach("C-02/drafts", int(counts.sum()))
    return drafts, np.zeros_like(counts)


@fault(
    "H-06",
    "a draft model whose entries are all one token behind: dead, and nobody's text is wrong",
    part="drafter",
    case="identity:roomy/3",
    raises="AcceptanceRateError",
    source="sglang-jax #1586",
)
def one_behind(base: Any) -> type[Drafter]:
    class OneBehind(base):  # type: ignore[misc]
        def tokens_at(self, slots: Ints, positions: Ints) -> Ints:
            reach("H-06")
            return super().tokens_at(slots, np.maximum(positions - 1, 0))

    return OneBehind


@fault(
    "M-01",
    "drafts behind a stop count as accepted",
    part="scheduler",
    case="cell:roomy/whole/nocache/right/stop-strings",
    raises="ConservationError",
    source="vLLM #56101",
    simulated=True,
)
class CountsBeforeTheCut(Scheduler):
    def _commit_row(self, request: Request, row: PlanRow, index: int, result: StepResult) -> bool:
        self._verified = int(result.num_emitted[index])
        return super()._commit_row(request, row, index, result)

    def _count_tokens(self, request: Request, row: PlanRow, num_emitted: int, num_drafted: int) -> None:
        before = self.stats.num_generated_tokens
        reach("M-01", self._verified - num_emitted)
        super()._count_tokens(request, row, self._verified, num_drafted)
        self.stats.num_generated_tokens = before + num_emitted


@fault(
    "M-02/negative",
    "accepted is what came back less one, also where nothing came back",
    part="scheduler",
    case="simulation:300",
    raises="ConservationError",
    source="vLLM #26372, #33729",
    simulated=True,
)
class CountsLessThanNothing(Scheduler):
    def _count_tokens(self, request: Request, row: PlanRow, num_emitted: int, num_drafted: int) -> None:
        super()._count_tokens(request, row, num_emitted, num_drafted)
        if num_drafted and not num_emitted:
            reach("M-02/negative")
            self.stats.num_accepted_tokens -= 1
            request.num_accepted_tokens -= 1


@fault(
    "M-02/prefix",
    "accepted drafts are counted at their last position alone",
    part="stats",
    case=RIGHT,
    raises="ConservationError",
    source="vLLM #10604",
    simulated=True,
)
class CountsTheLastPosition(EngineStats):
    def count_draft(self, num_drafted: int, num_accepted: int) -> None:
        before = list(self.num_accepted_tokens_per_pos)
        super().count_draft(num_drafted, num_accepted)
        if num_accepted > 1:
            reach("M-02/prefix")
            before[num_accepted - 1] += 1
            self.num_accepted_tokens_per_pos = before


@fault(
    "M-04",
    "drafted tokens are K for each round, however many were proposed",
    part="scheduler",
    case=RIGHT,
    raises="AcceptanceRateError",
    source="TensorRT-LLM #14724",
    simulated=True,
)
class CountsFromTheConfiguration(Scheduler):
    def _count_tokens(self, request: Request, row: PlanRow, num_emitted: int, num_drafted: int) -> None:
        counted = self.num_speculative_tokens if num_drafted else 0
        reach("M-04", counted != num_drafted)
        super()._count_tokens(request, row, num_emitted, counted)
