"""The hash model sees what it should, and its closed form is that of the engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine import SamplingParams
from harness.cli.simulate import describe
from harness.errors import FinishReasonMismatchError, TokenMismatchError, WorkBoundError
from harness.simulation import scenario as scenarios
from harness.simulation.campaign import ACTIVITY, simulate
from harness.simulation.scenario import check_scenario, draw_scenario
from harness.simulation.truth import Truth


def test_the_same_seed_is_the_same_scenario() -> None:
    assert draw_scenario(7) == draw_scenario(7)
    assert draw_scenario(7) != draw_scenario(8)


def test_everything_happens_within_a_few_hundred_scenarios() -> None:
    campaign = simulate(0, 200)
    assert not campaign.violations
    assert not campaign.idle
    assert set(campaign.activity) == set(ACTIVITY)
    assert {"length", "stop", "abort", "error"} <= set(campaign.endings)
    assert "200 scenarios in 3 s: 0 violations" in describe(campaign, 3.4)


def test_two_processes_find_what_one_finds() -> None:
    one, two = simulate(400, 250), simulate(400, 250, num_processes=2)
    assert (one.activity, one.endings) == (two.activity, two.endings)


@pytest.mark.parametrize(
    ("change", "error"),
    [({"token_ids": [1, 2, 3]}, TokenMismatchError), ({"finish_reason": "stop"}, FinishReasonMismatchError)],
)
def test_a_wrong_truth_is_not_met(change: dict[str, object], error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the check compares with the truth, and with all of it."""
    plain = next(
        s
        for s in map(draw_scenario, range(1000))
        if not s.num_speculative_tokens and all(i.abort_after_tokens is None for i in s.items)
    )
    item = replace(plain.items[0], params=SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
    alone = replace(plain, items=(item,), is_in_turn=False)
    check_scenario(alone)
    real = Truth.of

    def wrong(*arguments: object) -> Truth:
        return replace(real(*arguments), **change)  # type: ignore[arg-type]

    monkeypatch.setattr(scenarios.Truth, "of", wrong)
    with pytest.raises(error):
        check_scenario(alone)


def test_a_lost_prefix_hit_is_seen_where_requests_come_in_turn() -> None:
    in_turn = next(s for s in map(draw_scenario, range(1000)) if s.is_in_turn and check_scenario(s).num_prefix_hits)
    with pytest.raises(WorkBoundError, match="the prefix cache found"):
        check_scenario(in_turn, ("harness.faults.caching:LosesAPrefixHit",))
