"""Asynchronous scheduling says exactly what synchronous scheduling says, and what each request says alone.

Every cell of the table runs the same requests three ways and compares ids, text, finish and stop reasons, with no tolerance.
It also asserts that what its name claims really happened (steps overlapped, drafts, preemptions, cache hits, chunks), that no
token is lost or counted twice, that no work was wasted, and that every slot and block is back at the end.
"""

from __future__ import annotations

from typing import Any

import pytest

from harness.cells import (
    EXECUTORS,
    NUM_DRAFTS,
    Cell,
    ReferenceFor,
    conversation_cell,
    equivalence_cell,
    staggered_cell,
)
from harness.datasets.gsm8k import Questions
from harness.equivalence import DRAFTERS, check_async_equals_sync
from harness.recording import Notes
from harness.workload import WorkItem, prompt_hash
from harness.workloads import (
    BLOCK_SIZE,
    BUDGETS,
    CACHES,
    EXERCISED,
    POOLS,
    PREFILLS,
    SAMPLING,
    TOY,
    ZOO_TARGETS,
    real_items,
    tight_pool,
    toy_items,
    zoo_prompts,
)


def note(record: Notes, cell: Cell) -> None:
    record.config(cell.result.config)
    record.activity(cell.result.activity)
    record.count("requests_compared", cell.result.num_compared)
    record.provenance({"prompts": prompt_hash(cell.items)})


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("drafts", DRAFTERS)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("prefill", PREFILLS)
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_async_equals_sync(
    executor: str,
    pool: str,
    prefill: str,
    cache: str,
    drafts: str,
    sampling: str,
    reference_for: ReferenceFor,
    record: Notes,
) -> None:
    note(record, equivalence_cell(executor, pool, prefill, cache, drafts, sampling, reference_for=reference_for))


@pytest.mark.parametrize("drafts", DRAFTERS)
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("budget", BUDGETS)
def test_a_step_too_small_for_the_batch(
    budget: str, pool: str, drafts: str, reference_for: ReferenceFor, record: Notes
) -> None:
    """Rows wait for the next step with their drafts in hand, or go with fewer."""
    note(record, equivalence_cell("uni", pool, budget, "nocache", drafts, "greedy", reference_for=reference_for))


@pytest.mark.parametrize("drafts", DRAFTERS)
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_staggered_arrivals_and_aborts(
    executor: str, pool: str, drafts: str, reference_for: ReferenceFor, record: Notes
) -> None:
    """Requests come while others run; two are aborted (one as soon as it was added, one in the middle); nobody else notices."""
    note(record, staggered_cell(executor, pool, drafts, reference_for=reference_for))


@pytest.mark.parametrize("sampling", ["greedy-ignore-eos", "temperature"])
@pytest.mark.parametrize("drafts", DRAFTERS)
def test_conversations(drafts: str, sampling: str, reference_for: ReferenceFor, record: Notes) -> None:
    """Each request goes on where one before ended, so it reads entries that generated tokens have left in the cache: the
    last one that was written, and none that was not. As many are found as there must be."""
    note(record, conversation_cell(drafts, sampling, reference_for=reference_for))


@pytest.mark.parametrize("num_speculative_tokens", [1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 16])
@pytest.mark.parametrize("drafts", ["right", "wrong", "mixed"])
def test_draft_length_meets_block_size(
    drafts: str, num_speculative_tokens: int, toy_model: str, reference_for: ReferenceFor, record: Notes
) -> None:
    """Verify windows that end before, at and behind a block's end, and that span blocks."""
    items = toy_items("stop-strings")
    result = check_async_equals_sync(
        toy_model,
        {**TOY, **POOLS["roomy"], **PREFILLS["whole"], **CACHES["cache"]},
        items,
        reference_for(toy_model, {"max_model_len": 128}, items, num_beyond=num_speculative_tokens + 1),
        case=f"k{num_speculative_tokens}-{drafts}",
        drafting=DRAFTERS[drafts],
        num_speculative_tokens=num_speculative_tokens,
    )
    note(record, Cell(items, result))


# --- the same on trained models: those of the zoo, and a real checkpoint ---------------------------------------------------

REAL_POOLS = ("roomy", "tight")
REAL_PREFILLS = {"whole": {"max_num_batched_tokens": 2048}, "chunked": {"max_num_batched_tokens": 40}}
REAL = {"block_size": BLOCK_SIZE, "max_num_seqs": 4, "max_model_len": 512}


def in_default_tier(executor: str, pool: str, prefill: str, drafts: str, sampling: str) -> bool:
    """Fourteen cells that have every value of every axis, and each kind of draft with both pools; the rest is tier `real`."""
    if (pool == "tight") != (prefill == "chunked") or sampling == "temperature":
        return False
    if drafts in ("plain", "ngram"):
        return sampling == ("greedy" if executor == "uni" else "all-filters")
    return executor == "uni" and sampling == ("all-filters" if pool == "tight" else "greedy")


def real_cells() -> list[Any]:
    cells = [
        (executor, pool, prefill, drafts, sampling)
        for executor in EXECUTORS
        for pool in REAL_POOLS
        for prefill in REAL_PREFILLS
        for drafts in DRAFTERS
        for sampling in ("greedy", "temperature", "all-filters")
    ]
    return [
        pytest.param(*cell, marks=() if in_default_tier(*cell) else pytest.mark.tier("real"), id="-".join(cell))
        for cell in cells
    ]


@pytest.mark.parametrize("sampling", ["greedy", "temperature", "all-filters"])
@pytest.mark.parametrize("drafts", DRAFTERS)
@pytest.mark.parametrize(("pool", "prefill"), [("roomy", "whole"), ("tight", "chunked")])
@pytest.mark.parametrize("model", ZOO_TARGETS)
def test_async_equals_sync_on_the_zoo(
    model: str, pool: str, prefill: str, drafts: str, sampling: str, reference_for: ReferenceFor, record: Notes
) -> None:
    """Word problems, a long repetition and a copy: text that means something, and that n-grams draft well."""
    items = real_items(sampling, zoo_prompts(model))
    check_on_trained_model(model, "uni", pool, prefill, drafts, items, reference_for, record, case=f"{model}-{sampling}")


@pytest.mark.real
@pytest.mark.parametrize(("executor", "pool", "prefill", "drafts", "sampling"), real_cells())
def test_async_equals_sync_on_a_real_checkpoint(
    executor: str,
    pool: str,
    prefill: str,
    drafts: str,
    sampling: str,
    real_model: str,
    real_prompts: list[list[int]],
    questions: Questions,
    reference_for: ReferenceFor,
    record: Notes,
) -> None:
    items = real_items(sampling, real_prompts)
    check_on_trained_model(
        real_model, executor, pool, prefill, drafts, items, reference_for, record, case=f"real-{executor}-{sampling}"
    )
    record.provenance({"questions": questions.source})


def check_on_trained_model(
    model: str,
    executor: str,
    pool: str,
    prefill: str,
    drafts: str,
    items: list[WorkItem],
    reference_for: ReferenceFor,
    record: Notes,
    *,
    case: str,
) -> None:
    num_kv_blocks = 256 if pool == "roomy" else tight_pool(items, BLOCK_SIZE, NUM_DRAFTS)
    result = check_async_equals_sync(
        model,
        {**REAL, **EXECUTORS[executor], **REAL_PREFILLS[prefill], "num_kv_blocks": num_kv_blocks},
        items,
        reference_for(model, {"max_model_len": 512}, items, num_beyond=NUM_DRAFTS + 1),
        case=f"{case}-{pool}-{prefill}-{drafts}",
        drafting=DRAFTERS[drafts],
        num_speculative_tokens=NUM_DRAFTS,
        exercised=[EXERCISED[axis] for axis in (pool, prefill) if axis in EXERCISED] + ["num_prefix_hits"],
    )
    note(record, Cell(items, result))
