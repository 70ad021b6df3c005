"""`suites/test_simulation.py` in portions that kill sooner. Not collected unless it is named."""

from __future__ import annotations

import pytest

from harness.simulation.scenario import check_scenario, draw_scenario

CHUNK = 40


@pytest.mark.parametrize("first", range(0, 8 * CHUNK, CHUNK))
def test_drawn_scenarios_say_the_truth(first: int) -> None:
    for seed in range(first, first + CHUNK):
        check_scenario(draw_scenario(seed))
