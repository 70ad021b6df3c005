"""The cells of the suites on the toy model: a workload, an engine's options and the oracles, by the names of the axes.

The suites run them as they are; `harness.faults` runs the same ones with a fault in the engine (`plugins`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from harness.equivalence import DRAFTERS, EquivalenceResult, check_async_equals_sync
from harness.judge import Judge
from harness.reference import Reference
from harness.toy_model import toy_model_path
from harness.workload import WorkItem
from harness.workloads import BUDGETS, CACHES, EXERCISED, POOLS, PREFILLS, TOY, conversation_items, toy_items

__all__ = ["EXECUTORS", "NUM_DRAFTS", "Cell", "ReferenceFor", "conversation_cell", "equivalence_cell", "staggered_cell"]

NUM_DRAFTS = 3  # the reference knows one token more behind each end, so that an accepted run can go beyond a stop
EXECUTORS = {"uni": {"distributed_executor_backend": "uni"}, "mp": {"distributed_executor_backend": "mp"}}
ReferenceFor = Callable[..., Reference]


@dataclass(frozen=True)
class Cell:
    items: Sequence[WorkItem]
    result: EquivalenceResult


def equivalence_cell(
    executor: str,
    pool: str,
    prefill: str,
    cache: str,
    drafts: str,
    sampling: str,
    *,
    reference_for: ReferenceFor,
    plugins: Sequence[str] = (),
    judge: Judge | None = None,
) -> Cell:
    """Eight requests at once."""
    items = toy_items(sampling)
    model = str(toy_model_path())
    result = check_async_equals_sync(
        model,
        {**TOY, **EXECUTORS[executor], **POOLS[pool], **(PREFILLS | BUDGETS)[prefill], **CACHES[cache], "plugins": plugins},
        items,
        reference_for(model, {"max_model_len": 128}, items, num_beyond=NUM_DRAFTS + 1),
        case=f"{executor}-{pool}-{prefill}-{cache}-{drafts}-{sampling}",
        drafting=DRAFTERS[drafts],
        num_speculative_tokens=NUM_DRAFTS,
        exercised=[EXERCISED[axis] for axis in (pool, prefill, cache) if axis in EXERCISED],
        judge=judge,
    )
    return Cell(items, result)


def staggered_cell(
    executor: str,
    pool: str,
    drafts: str,
    *,
    reference_for: ReferenceFor,
    plugins: Sequence[str] = (),
    judge: Judge | None = None,
) -> Cell:
    """Requests come while others run; two are aborted, one as soon as it was added, one in the middle."""
    items = toy_items("temperature")
    staggered = [replace(item, arrive_at_step=3 * i) for i, item in enumerate(items)]
    staggered[2] = replace(staggered[2], abort_after_tokens=0)
    staggered[3] = replace(staggered[3], abort_after_tokens=9)
    model = str(toy_model_path())
    result = check_async_equals_sync(
        model,
        {**TOY, **EXECUTORS[executor], **POOLS[pool], **PREFILLS["chunked"], **CACHES["cache"], "plugins": plugins},
        staggered,
        reference_for(model, {"max_model_len": 128}, items, num_beyond=NUM_DRAFTS + 1),
        case=f"staggered-{executor}-{pool}-{drafts}",
        drafting=DRAFTERS[drafts],
        num_speculative_tokens=NUM_DRAFTS,
        judge=judge,
    )
    return Cell(staggered, result)


def conversation_cell(
    drafts: str,
    sampling: str,
    *,
    reference_for: ReferenceFor,
    plugins: Sequence[str] = (),
    judge: Judge | None = None,
) -> Cell:
    """Each request goes on where one before ended, so it reads what generated tokens have left in the cache."""
    first = toy_items(sampling)[:3]
    model = str(toy_model_path())
    plain = reference_for(model, {"max_model_len": 128}, first, num_beyond=0)
    items = conversation_items(first, plain.run)
    result = check_async_equals_sync(
        model,
        # So many blocks that none is used again: then it is known what the cache holds.
        {**TOY, "num_kv_blocks": 256, **PREFILLS["whole"], **CACHES["cache"], "plugins": plugins},
        items,
        reference_for(model, {"max_model_len": 128}, items, num_beyond=NUM_DRAFTS + 1),
        case=f"conversation-{drafts}-{sampling}",
        drafting=DRAFTERS[drafts],
        num_speculative_tokens=NUM_DRAFTS,
        exercised=["num_prefix_hits"],
        is_in_turn=True,
        judge=judge,
    )
    return Cell(items, result)
