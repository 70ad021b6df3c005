"""Speculative decoding says exactly what the engine says without it, with every method.

With coupled verification the *path* is equal, greedy and sampled, so the comparison has no tolerance. With `standard` only the
distribution is: then each emitted token is tested against the target's exact distribution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from harness.compare import assert_async_was_on, assert_conservation, assert_exercised, assert_same_outputs
from harness.draft_cells import FILTERS, NUM_DRAWS, rejection_cell
from harness.engines import open_engine
from harness.recording import Notes
from harness.reference import Reference
from harness.spec_methods import METHODS
from harness.workload import prompt_hash, run_workload
from harness.workloads import BLOCK_SIZE, real_items, tight_pool, zoo_prompts

ReferenceFor = Callable[..., Reference]

# What each place does to the requests: options, and the counters that show that it happened.
PLACES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "roomy": ({"num_kv_blocks": 256, "enable_prefix_caching": False}, ()),
    "cached": ({"num_kv_blocks": 256, "enable_prefix_caching": True}, ("num_prefix_hits",)),
    "chunked": ({"num_kv_blocks": 256, "max_num_batched_tokens": 40}, ("num_partial_prefills",)),
    "preempted": ({"num_kv_blocks": "tight", "max_num_batched_tokens": 64}, ("num_preemptions",)),
}


# The smallest depth where the pool is tight, and a large one among chunks, since lengths matter most there.
DEPTHS: dict[str, Callable[[int], list[int]]] = {
    "roomy": lambda most: [3],
    "cached": lambda most: [3],
    "chunked": lambda most: sorted({3, min(most, 7)}),
    "preempted": lambda most: [1, 3],
}


def cells() -> list[Any]:
    """Every method in every place; see `DEPTHS`."""
    found = []
    for name, method in METHODS.items():
        modes = ("async", "sync") if method.supports_async else ("sync",)
        for place in PLACES:
            for depth in DEPTHS[place](method.max_depth):
                for sampling in ("greedy", "all-filters"):
                    # Greedy runs take the modes in turn; sampled ones take both, as their draws are what may go astray.
                    chosen = modes if sampling == "all-filters" else modes[:1]
                    found += [(name, place, depth, sampling, mode) for mode in chosen]
    return [pytest.param(*cell, id="-".join(map(str, cell))) for cell in found]


@pytest.mark.parametrize(("name", "place", "depth", "sampling", "mode"), cells())
def test_with_drafts_and_without(
    name: str, place: str, depth: int, sampling: str, mode: str, reference_for: ReferenceFor, record: Notes
) -> None:
    method = METHODS[name]
    case = f"{name}-{place}-{depth}-{sampling}-{mode}"
    items = real_items(sampling, zoo_prompts(method.target))
    options, exercised = PLACES[place]
    if options["num_kv_blocks"] == "tight":
        options = options | {"num_kv_blocks": tight_pool(items, BLOCK_SIZE, depth)}
    reference = reference_for(method.target, {"max_model_len": 512}, items, num_beyond=0)
    options = {
        "block_size": BLOCK_SIZE,
        "max_num_seqs": 4,
        "max_model_len": 512,
        **options,
        "speculative_config": method.speculative_config(depth),
        "async_scheduling": None if mode == "async" else False,
    }
    with open_engine(method.target, options) as llm:
        run = run_workload(llm, items, label=f"{name}, {mode}")
        compared = assert_same_outputs(reference.run, run, case=case, engines=(llm, llm))
        if mode == "async":
            assert_async_was_on(llm, run, case=case)
        assert_conservation(run, case=case)
        assert_exercised(run, "num_drafts", *exercised, case=case)
        record.config(llm.config.as_record())
    record.activity(asdict(run.stats))
    record.count("requests_compared", compared)
    record.provenance({"prompts": prompt_hash(items)})


# --- rejection sampling: distributions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("closeness", [0.0, 0.7, 1.0], ids=["unlike", "alike", "equal"])
@pytest.mark.parametrize("method", ["probabilistic", "greedy"])
@pytest.mark.parametrize("filters", FILTERS)
def test_rejection_sampling_follows_the_target(filters: str, method: str, closeness: float, record: Notes) -> None:
    """What is emitted has the target's distribution at every place; given a rejection, that of what is left to recover."""
    record.figure("chi_square_tests", rejection_cell(filters, method, closeness), n=NUM_DRAWS)
