"""How often drafts are right: within floors and ceilings, and a matter of the tokens alone.

Tokens say nothing about a drafter that has died: its drafts are rejected and the text stays right. So acceptance is measured on
the zoo's drafters against bounds that come from a measurement (`acceptance_bounds.toml`), and where the exact value is known it
must be met exactly: 1 for a draft that is the target, 0 for one that is always wrong.
"""

from __future__ import annotations

from dataclasses import asdict

import pytest

from harness.acceptance import by_category
from harness.acceptance_bounds import NUM_DRAFTS
from harness.compare import assert_acceptance_exactly
from harness.draft_cells import EVENTS, bounds_cell, identity_cell, neighbours_cell, run_draft_model
from harness.recording import Notes
from harness.spec_methods import METHODS
from harness.workloads import BLOCK_SIZE
from harness.wrong_model import always_wrong_model


@pytest.mark.parametrize("name", METHODS)
def test_within_bounds(name: str, record: Notes) -> None:
    """Word problems and every text task, greedy, K = 3."""
    run, config = bounds_cell(name)
    record.config(config)
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


# --- exact values ---------------------------------------------------------------------------------------------------------

DEPTHS = (1, 2, 3, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 16)
# A pool that is tight for two requests with BLOCK_SIZE - 1 drafts has room for what they become: nobody is preempted.
CELLS = [(event, depth) for event in EVENTS for depth in DEPTHS if (event, depth) != ("preempted", BLOCK_SIZE - 1)]


@pytest.mark.parametrize(("event", "depth"), CELLS)
def test_a_draft_that_is_the_target_is_always_right(event: str, depth: int, record: Notes) -> None:
    """At every depth, prompt length and event: one entry at a wrong place in the draft's cache, and a draft would differ."""
    record.count("drafted_tokens", identity_cell(event, depth))


@pytest.mark.parametrize("event", EVENTS)
def test_a_draft_that_is_always_wrong_is_never_accepted(event: str, record: Notes) -> None:
    case = f"wrong-{event}"
    run = run_draft_model(str(always_wrong_model("zoo:tiny")), event, NUM_DRAFTS, label=case)
    record.count("drafted_tokens", assert_acceptance_exactly(run, 0, case=case))


# --- a matter of the tokens alone -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.history])
def test_neither_neighbours_nor_the_past_change_acceptance(name: str, record: Notes) -> None:
    """Each request alone in a new engine, all together, and all together once more over a cache that has their prompts."""
    record.count("requests_compared", neighbours_cell(name))
