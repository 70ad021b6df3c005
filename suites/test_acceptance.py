"""How often drafts are right: within floors and ceilings, and a matter of the tokens alone.

Tokens say nothing about a drafter that has died: its drafts are rejected and the text stays right. So acceptance is measured on
the zoo's drafters against bounds that come from a measurement (`acceptance_bounds.toml`), and where the exact value is known it
must be met exactly: 1 for a draft that is the target, 0 for one that is always wrong.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from harness.acceptance import assert_within, by_category, categorized_items, embedded_prompts
from harness.acceptance_bounds import ACCEPTANCE_PARAMS, NUM_DRAFTS, acceptance_options
from harness.compare import (
    assert_acceptance_exactly,
    assert_async_was_on,
    assert_conservation,
    assert_exercised,
    assert_same_drafts,
)
from harness.engines import open_engine
from harness.recording import Notes
from harness.spec_methods import METHODS, SpecMethod
from harness.workload import Run, WorkItem, run_workload
from harness.workloads import BLOCK_SIZE, real_items, tight_pool, zoo_prompts
from harness.wrong_model import always_wrong_model

BOUNDS: Mapping[str, Any] = tomllib.loads((Path(__file__).parent / "acceptance_bounds.toml").read_text(encoding="utf-8"))
SMALL = {"max_model_len": 512, "block_size": BLOCK_SIZE}


@pytest.mark.parametrize("name", METHODS)
def test_within_bounds(name: str, record: Notes) -> None:
    """Word problems and every text task, greedy, K = 3."""
    method = METHODS[name]
    with open_engine(method.target, acceptance_options(method)) as llm:
        prompts = embedded_prompts(llm)
        run = run_workload(llm, categorized_items(prompts, ACCEPTANCE_PARAMS), label=name, audit=False)
        if method.supports_async:
            assert_async_was_on(llm, run, case=name)
        record.config(llm.config.as_record())
    assert_conservation(run, case=name)
    parts = by_category(run, NUM_DRAFTS)
    record.activity(asdict(run.stats))
    for category, part in parts.items():
        interval = part.interval
        record.figure(
            f"acceptance_length_{category}",
            part.length,
            n=part.num_requests,
            interval=None if interval is None else (interval.low, interval.high),
        )
    for category, bounds in BOUNDS["methods"][name].items():
        assert_within(parts[category], bounds, case=f"{name}, {category}")


# --- exact values ---------------------------------------------------------------------------------------------------------

EVENTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "roomy": ({"num_kv_blocks": 256}, ("num_prefix_hits",)),
    "chunked": ({"num_kv_blocks": 256, "max_num_batched_tokens": 40}, ("num_partial_prefills",)),
    "preempted": ({"num_kv_blocks": "tight"}, ("num_preemptions",)),
}


def run_draft_model(model: str, event: str, depth: int, sampling: str, *, label: str) -> Run:
    items = real_items(sampling, zoo_prompts("zoo:tiny"))
    options, exercised = EVENTS[event]
    if options["num_kv_blocks"] == "tight":
        options = options | {"num_kv_blocks": tight_pool(items, BLOCK_SIZE, depth)}
    config = {"method": "draft_model", "model": model, "num_speculative_tokens": depth}
    options = {"block_size": BLOCK_SIZE, "max_num_seqs": 4, "max_model_len": 512, **options, "speculative_config": config}
    with open_engine("zoo:tiny", options) as llm:
        run = run_workload(llm, items, label=label)
        assert_async_was_on(llm, run, case=label)
    assert_exercised(run, "num_drafts", *exercised, case=label)
    return run


DEPTHS = (1, 2, 3, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 16)
# A pool that is tight for two requests with BLOCK_SIZE - 1 drafts has room for what they become: nobody is preempted.
CELLS = [(event, depth) for event in EVENTS for depth in DEPTHS if (event, depth) != ("preempted", BLOCK_SIZE - 1)]


@pytest.mark.parametrize(("event", "depth"), CELLS)
def test_a_draft_that_is_the_target_is_always_right(event: str, depth: int, record: Notes) -> None:
    """At every depth, prompt length and event: one entry at a wrong place in the draft's cache, and a draft would differ."""
    case = f"identity-{event}-{depth}"
    run = run_draft_model("zoo:tiny", event, depth, "greedy", label=case)
    record.count("drafted_tokens", assert_acceptance_exactly(run, 1, case=case))


@pytest.mark.parametrize("event", EVENTS)
def test_a_draft_that_is_always_wrong_is_never_accepted(event: str, record: Notes) -> None:
    case = f"wrong-{event}"
    run = run_draft_model(str(always_wrong_model("zoo:tiny")), event, NUM_DRAFTS, "greedy", label=case)
    record.count("drafted_tokens", assert_acceptance_exactly(run, 0, case=case))


# --- a matter of the tokens alone -----------------------------------------------------------------------------------------


def neighbours(method: SpecMethod) -> list[WorkItem]:
    return real_items("greedy", zoo_prompts(method.target))


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.history])
def test_neither_neighbours_nor_the_past_change_acceptance(name: str, record: Notes) -> None:
    """Each request alone in a new engine, all together, and all together once more over a cache that has their prompts."""
    method = METHODS[name]
    items = neighbours(method)
    alone: dict[str, Any] = {}
    for item in items:
        with open_engine(method.target, acceptance_options(method) | SMALL) as llm:
            alone |= run_workload(llm, [item], label="alone").outputs
            stats = llm.stats
    expected = Run("alone", alone, stats)
    with open_engine(method.target, acceptance_options(method) | SMALL) as llm:
        together = run_workload(llm, items, label="together")
        again = run_workload(llm, items, label="over a cached prefix")
    assert_exercised(again, "num_prefix_hits", "num_drafts", case=name)
    compared = assert_same_drafts(expected, together, case=name) + assert_same_drafts(expected, again, case=name)
    record.count("requests_compared", compared)
