"""Random scenarios against a closed form: the real scheduler, KV cache, runner and step queue on a model of microseconds.

The model's next token is a hash of all that it reads back through its block table, so anything misplaced, stale or foreign
changes what comes next; what must come follows from the prompt alone. See `harness/simulation`.
"""

from __future__ import annotations

import pytest

from harness.errors import FeatureNotExercisedError
from harness.judge import Judge
from harness.recording import Notes
from harness.simulation.campaign import CHUNK, as_replay, simulate
from harness.simulation.scenario import check_scenario, draw_scenario


def chunks(first: int, count: int, *marks: pytest.MarkDecorator) -> list[object]:
    starts = range(first, first + count * CHUNK, CHUNK)
    return [pytest.param(start, marks=marks, id=f"{start}-{start + CHUNK - 1}") for start in starts]


@pytest.mark.parametrize("start", [*chunks(0, 10), *chunks(10 * CHUNK, 90, pytest.mark.tier("nightly"))])
def test_scenarios_say_the_truth(start: int, record: Notes) -> None:
    """Ids, endings, books, work and prefix hits of every scenario, and everything that may happen did."""
    campaign = simulate(start, CHUNK)
    record.activity(dict(campaign.activity))
    record.count("scenarios", campaign.num_scenarios)
    for seed, _, _ in campaign.violations[:1]:
        scenario = draw_scenario(seed)
        with Judge().for_replay(as_replay(scenario, ())):
            check_scenario(scenario)
    assert not campaign.violations
    if campaign.idle:
        raise FeatureNotExercisedError(f"scenarios from {start} on: {', '.join(campaign.idle)} never happened")
