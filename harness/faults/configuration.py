"""Faults of the configuration: what is on, and whether anybody is told."""

from __future__ import annotations

from typing import Any

from engine.async_scheduling import AsyncDecision, AsyncFacts, resolve_async_scheduling
from harness.faults.fault import fault, reach


@fault(
    "C-01",
    "the list of the default path lacks draft_model and dflash, that of the explicit path has them",
    part="decide_async",
    case="resolution:draft_model",
    raises="ConfigResolutionError",
    source="vLLM #38929, #48341",
)
def default_list_out_of_step(requested: bool | None, facts: AsyncFacts) -> AsyncDecision:
    decision: Any = resolve_async_scheduling(requested, facts)
    if requested is None and facts.method in ("draft_model", "dflash"):
        reach("C-01")
        return AsyncDecision(False, "speculative_method", f"speculative method {facts.method!r} is not supported.")
    return decision  # type: ignore[no-any-return]


@fault(
    "C-02/async",
    "asynchronous scheduling is off, and nobody says so",
    part="decide_async",
    case="cell:roomy/whole/nocache/plain/greedy",
    raises="AsyncSchedulingNotEnabledError",
    source="a comment in vLLM #40768, #37916",
)
def quietly_off(requested: bool | None, facts: AsyncFacts) -> AsyncDecision:
    reach("C-02/async", requested is None)
    return AsyncDecision(False, "quiet")
