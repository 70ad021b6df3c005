"""The statistics give the numbers of the papers and books that they come from, cover what they claim, and refuse nonsense."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from harness.stats import (
    Interval,
    Paired,
    acceptance_length_interval,
    detectable_drop,
    mcnemar,
    paired,
    required_n,
    required_n_one_sample,
    two_proportions,
    two_sample_acceptance,
    wilson_interval,
)

COUNTS = st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def rounded(interval: Interval) -> tuple[float, float]:
    return round(interval.low, 4), round(interval.high, 4)


# --- one proportion ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("successes", "n", "expected"),
    [
        pytest.param(81, 263, (0.2553, 0.3662), id="81 of 263"),
        pytest.param(15, 148, (0.0624, 0.1605), id="15 of 148"),
        pytest.param(0, 20, (0.0, 0.1611), id="0 of 20"),
        pytest.param(1, 29, (0.0061, 0.1718), id="1 of 29"),
    ],
)
def test_wilson_gives_table_1_of_newcombe_1998(successes: int, n: int, expected: tuple[float, float]) -> None:
    """Newcombe, Two-sided confidence intervals for the single proportion, Stat. Med. 17 (1998) 857, table I, method 3."""
    assert rounded(wilson_interval(successes, n)) == expected


@given(COUNTS, st.floats(0.5, 0.9999))
def test_wilson_contains_the_estimate_within_0_and_1(counts: tuple[int, int], confidence: float) -> None:
    successes, n = counts
    interval = wilson_interval(successes, n, confidence)
    assert 0 <= interval.low <= successes / n <= interval.high <= 1
    assert interval.low < interval.high
    complement = wilson_interval(n - successes, n, confidence)
    assert interval.low == pytest.approx(1 - complement.high, abs=1e-12)
    assert interval.high == pytest.approx(1 - complement.low, abs=1e-12)


@given(COUNTS, st.floats(0.5, 0.9999))
def test_wilson_is_what_scipy_gives(counts: tuple[int, int], confidence: float) -> None:
    other = binomtest(*counts).proportion_ci(confidence, method="wilson")
    interval = wilson_interval(*counts, confidence)
    assert (interval.low, interval.high) == pytest.approx((other.low, other.high), abs=1e-12)


# --- two proportions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        pytest.param((56, 70, 48, 80), (0.0524, 0.3339), id="56 of 70, 48 of 80"),
        pytest.param((9, 10, 3, 10), (0.1705, 0.8090), id="9 of 10, 3 of 10"),
        pytest.param((5, 56, 0, 29), (-0.0381, 0.1926), id="5 of 56, 0 of 29"),
    ],
)
def test_the_difference_gives_table_2_of_newcombe_1998(
    counts: tuple[int, int, int, int], expected: tuple[float, float]
) -> None:
    """Newcombe, Interval estimation for the difference between independent proportions, Stat. Med. 17 (1998) 873, method 10."""
    found = two_proportions(*counts)
    assert rounded(found.interval) == expected
    assert found.difference == counts[0] / counts[1] - counts[2] / counts[3]


def test_fishers_lady_tasting_tea() -> None:
    """Fisher, The Design of Experiments (1935), chapter 2: 8 cups, 4 of each; by hand (16 + 1) / 70 for one side."""
    assert two_proportions(3, 4, 1, 4).p_value == pytest.approx(34 / 70)
    assert two_proportions(4, 4, 0, 4).p_value == pytest.approx(2 / 70)


@given(COUNTS, COUNTS)
def test_exchanged_runs_give_the_opposite_difference(a: tuple[int, int], b: tuple[int, int]) -> None:
    forth, back = two_proportions(*a, *b), two_proportions(*b, *a)
    assert forth.difference == -back.difference
    assert (forth.interval.low, forth.interval.high) == pytest.approx((-back.interval.high, -back.interval.low), abs=1e-12)
    assert forth.p_value == pytest.approx(back.p_value, rel=1e-6)
    assert -1 <= forth.interval.low <= forth.difference <= forth.interval.high <= 1


# --- the same questions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("b", "c", "expected"),
    [
        pytest.param(0, 0, 1.0, id="none"),
        pytest.param(1, 9, 2 * (1 + 10) / 2**10, id="1 and 9"),
        pytest.param(0, 5, 2 / 2**5, id="0 and 5"),
        pytest.param(6, 0, 2 / 2**6, id="6 and 0"),
        pytest.param(2, 8, 2 * (1 + 10 + 45) / 2**10, id="2 and 8"),
        pytest.param(4, 4, 1.0, id="as many"),
    ],
)
def test_mcnemar_by_hand(b: int, c: int, expected: float) -> None:
    """Twice the smaller binomial tail at 1/2: sums of binomial coefficients over 2^(b + c)."""
    assert mcnemar(b, c) == pytest.approx(expected, rel=1e-12)


@given(st.integers(0, 300), st.integers(0, 300))
def test_mcnemar_is_twice_the_smaller_tail(b: int, c: int) -> None:
    tail = sum(math.comb(b + c, i) for i in range(min(b, c) + 1)) / 2 ** (b + c)
    assert mcnemar(b, c) == pytest.approx(min(1.0, 2 * tail), rel=1e-9)


def test_paired_counts_each_cell() -> None:
    cells = [(True, True)] * 4 + [(True, False)] * 9 + [(False, True)] * 1 + [(False, False)] * 2
    found = paired([a for a, _ in cells], [b for _, b in cells])
    assert found == Paired(n=16, both=4, only_first=9, only_second=1, neither=2, p_value=mcnemar(9, 1))


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1))
def test_paired_cells_add_up(answers: list[tuple[bool, bool]]) -> None:
    found = paired([a for a, _ in answers], [b for _, b in answers])
    assert found.both + found.only_first + found.only_second + found.neither == found.n == len(answers)
    assert found.both + found.only_first == sum(a for a, _ in answers)


# --- acceptance length ---------------------------------------------------------------------------------------------------


def simulate(rng: np.random.Generator, num_requests: int, mean: float = 0.6) -> list[np.ndarray]:
    """Requests with 8 drafts of 3 tokens each; every request has its own acceptance, so its drafts are alike."""
    rates = rng.beta(4 * mean, 4 * (1 - mean), size=num_requests)
    return list(rng.binomial(3, rates[:, None], size=(num_requests, 8)))


def test_acceptance_length_is_pooled_over_requests() -> None:
    found = acceptance_length_interval([[3, 1], np.array([0, 0, 2]), []], resamples=100)
    assert found.length == 1 + 6 / 5
    assert (found.num_requests, found.num_drafts, found.num_accepted_tokens) == (3, 5, 6)
    assert 1 <= found.interval.low <= found.length <= found.interval.high <= 3


def test_without_drafts_the_length_is_1() -> None:
    found = acceptance_length_interval([[], []], resamples=10)
    assert (found.length, found.interval, found.num_drafts) == (1.0, Interval(1.0, 1.0), 0)


def test_a_seed_fixes_every_number() -> None:
    a, b = (simulate(np.random.default_rng(seed), 30) for seed in (1, 2))
    assert acceptance_length_interval(a, seed=3) == acceptance_length_interval(a, seed=3)
    assert acceptance_length_interval(a, seed=3) != acceptance_length_interval(a, seed=4)
    assert two_sample_acceptance(a, b, seed=3) == two_sample_acceptance(a, b, seed=3)


def test_the_bootstrap_is_that_of_every_possible_resample() -> None:
    """Two requests, so four equally likely resamples: lengths 1, 2, 2 and 3."""
    found = acceptance_length_interval([[0], [2]], confidence=0.4, resamples=20_000)
    assert found.interval == Interval(2.0, 2.0)  # percentiles 30 and 70
    assert acceptance_length_interval([[0], [2]], confidence=0.6).interval == Interval(1.0, 3.0)  # 20 and 80


def test_blocks_hold_for_many_requests() -> None:
    requests = [[1, 0]] * 20_000
    assert acceptance_length_interval(requests, resamples=110).interval == Interval(1.5, 1.5)


def coverage(split: Callable[[list[np.ndarray]], Any], num_runs: int) -> Interval:
    """The share of simulated runs whose 95 % interval has the true length 1 + 3 x 0.6 in it, as a 99 % interval."""
    rng = np.random.default_rng(20)
    covered = 0
    for seed in range(num_runs):
        interval = acceptance_length_interval(split(simulate(rng, 80)), seed=seed, resamples=300).interval
        covered += interval.low <= 2.8 <= interval.high
    return wilson_interval(covered, num_runs, confidence=0.99)


def test_the_bootstrap_covers_what_it_claims() -> None:
    share = coverage(lambda requests: requests, num_runs=500)
    assert share.low <= 0.95 <= share.high


def test_drafts_taken_for_independent_would_cover_too_little() -> None:
    """Why requests are resampled: the same simulation with each draft as a request of its own."""
    assert coverage(lambda requests: np.concatenate(requests)[:, None], num_runs=60).high < 0.9


def test_the_permutation_test_is_that_of_every_relabelling() -> None:
    """3 + 3 requests: 20 relabellings, counted one by one."""
    a, b = [[3, 3], [2], [3]], [[0], [1, 2], [1]]
    pool = a + b

    def length(requests: list[list[int]]) -> float:
        return 1 + sum(map(sum, requests)) / sum(map(len, requests))

    observed = length(a) - length(b)
    differences = [
        length([pool[i] for i in chosen]) - length([pool[i] for i in range(6) if i not in chosen])
        for chosen in combinations(range(6), 3)
    ]
    exact = sum(abs(d) >= abs(observed) - 1e-12 for d in differences) / len(differences)
    found = two_sample_acceptance(a, b, resamples=40_000)
    assert found.difference == pytest.approx(observed)
    assert found.p_value == pytest.approx(exact, abs=0.01)


def test_equal_runs_have_p_1_and_different_ones_do_not() -> None:
    rng = np.random.default_rng(5)
    a, b = simulate(rng, 150), simulate(rng, 100, mean=0.3)
    same = two_sample_acceptance(a, a, resamples=1000)
    assert (same.difference, same.p_value) == (0.0, 1.0)
    assert same.interval.low < 0 < same.interval.high
    other = two_sample_acceptance(a, b, resamples=1000)
    assert other.p_value == 1 / 1001
    assert 0 < other.interval.low < 0.9 < other.interval.high


def test_the_permutation_test_rejects_no_more_than_it_claims() -> None:
    rng = np.random.default_rng(8)
    rejected = sum(
        two_sample_acceptance(simulate(rng, 40), simulate(rng, 25), seed=seed, resamples=199).p_value <= 0.05
        for seed in range(300)
    )
    claimed = wilson_interval(rejected, 300, confidence=0.99)
    assert claimed.low <= 0.05 <= claimed.high


# --- sample sizes --------------------------------------------------------------------------------------------------------


def test_required_n_gives_the_example_of_r() -> None:
    """The manual of R's power.prop.test, which has the same formula: p1 = .50, p2 = .75, power = .90 gives n = 76.7."""
    assert required_n(0.75, 0.25, power=0.9, sided=2) == 77


def test_required_n_by_hand() -> None:
    """Fleiss' formula with the tabled deviates 2.576 and 1.645 for 0.70 against 0.60, alpha = 0.01 two-sided, power 0.95."""
    by_hand = ((2.576 * math.sqrt(2 * 0.65 * 0.35) + 1.645 * math.sqrt(0.7 * 0.3 + 0.6 * 0.4)) / 0.1) ** 2
    assert required_n(0.7, 0.1, power=0.95, alpha=0.01, sided=2) == math.ceil(by_hand) == 808


def test_one_sided_is_two_sided_at_twice_alpha() -> None:
    assert required_n(0.5, 0.1) == required_n(0.5, 0.1, alpha=0.1, sided=2) < required_n(0.5, 0.1, sided=2)


def test_required_n_one_sample_gives_the_example_of_rosner() -> None:
    """Rosner, Fundamentals of Biostatistics, chapter 7: 2 % against 5 %, alpha = 0.05 two-sided, power 0.9 gives 341."""
    assert required_n_one_sample(0.98, 0.03, power=0.9, sided=2) == 341


def test_a_fixed_floor_needs_fewer_than_a_second_run() -> None:
    assert required_n_one_sample(0.5, 0.05) < required_n(0.5, 0.05)


def test_the_power_is_there() -> None:
    """2,000 simulated pairs of runs, z-test without continuity correction at one-sided 0.05."""
    n = required_n(0.6, 0.1)
    rng = np.random.default_rng(1)
    a, b = rng.binomial(n, 0.6, 2000), rng.binomial(n, 0.5, 2000)
    pooled = (a + b) / (2 * n)
    z = (a - b) / n / np.sqrt(2 * pooled * (1 - pooled) / n)
    found = wilson_interval(int((z > 1.6449).sum()), 2000, confidence=0.99)
    assert found.low <= 0.8 <= found.high


def test_detectable_drop_gives_the_example_of_r() -> None:
    """The manual of R's power.prop.test: n = 50, p1 = .50, p2 = .75 has power 0.740."""
    assert detectable_drop(0.75, 50, power=0.740, sided=2) == pytest.approx(0.25, abs=1e-4)


@given(st.floats(0.02, 1.0), st.integers(1, 100_000), st.sampled_from([1, 2]), st.floats(0.5, 0.99))
def test_detectable_drop_is_the_inverse(baseline: float, n: int, sided: Any, power: float) -> None:
    drop = detectable_drop(baseline, n, power=power, sided=sided)
    if drop is None:
        assert required_n(baseline, baseline, power=power, sided=sided) > n
    else:
        assert required_n(baseline, drop, power=power, sided=sided) <= n
        if drop > 1e-6:
            assert required_n(baseline, drop * 0.99, power=power, sided=sided) >= n


def test_too_few_questions_detect_nothing() -> None:
    assert detectable_drop(0.05, 12) is None


# --- records and mistakes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(lambda: wilson_interval(np.int64(3), np.int64(7)), id="wilson_interval"),
        pytest.param(lambda: two_proportions(np.int64(3), np.int64(7), np.int64(2), np.int64(9)), id="two_proportions"),
        pytest.param(lambda: paired(np.array([True, False]), np.array([True, True])), id="paired"),
        pytest.param(lambda: acceptance_length_interval(np.ones((3, 2), np.int64)), id="acceptance_length_interval"),
        pytest.param(lambda: two_sample_acceptance([[1], [2]], [[1], [3]]), id="two_sample_acceptance"),
    ],
)
def test_results_are_plain_numbers(result: Callable[[], Any]) -> None:
    record = asdict(result())
    assert json.loads(json.dumps(record)) == record

    def leaves(value: Any) -> list[Any]:
        return [leaf for item in value.values() for leaf in leaves(item)] if isinstance(value, dict) else [value]

    assert {type(leaf) for leaf in leaves(record)} <= {int, float}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(lambda: wilson_interval(0, 0), "n must be positive", id="wilson of none"),
        pytest.param(lambda: wilson_interval(3, 2), "3 successes of 2", id="more than all"),
        pytest.param(lambda: wilson_interval(-1, 2), "not negative: -1, 2", id="fewer than none"),
        pytest.param(lambda: wilson_interval(0.5, 2), "whole", id="a proportion for a count"),
        pytest.param(lambda: wilson_interval(1, 2, 95), "confidence", id="confidence in percent"),
        pytest.param(lambda: two_proportions(1, 2, 0, 0), "n must be positive", id="second run of none"),
        pytest.param(lambda: mcnemar(-1, 2), "not negative", id="negative discordant"),
        pytest.param(lambda: paired([True], [True, False]), "1 items in the first run, 2 in the second", id="unequal"),
        pytest.param(lambda: paired([], []), "no items", id="paired of none"),
        pytest.param(lambda: acceptance_length_interval([]), "0 requests", id="no requests"),
        pytest.param(lambda: acceptance_length_interval([[1, 2]]), "1 requests", id="one request"),
        pytest.param(lambda: acceptance_length_interval([[1], [0, -1]]), "request 1: .*non-negative", id="negative accepted"),
        pytest.param(lambda: acceptance_length_interval([[0.5], [1.0]]), "request 0: .*integers", id="rates for counts"),
        pytest.param(lambda: acceptance_length_interval([3, 4]), "request 0", id="sums for lists"),
        pytest.param(lambda: acceptance_length_interval([[1], [2]], resamples=0), "resamples", id="no resamples"),
        pytest.param(lambda: two_sample_acceptance([[1], [2]], [[1]]), "1 requests", id="one request in the second run"),
        pytest.param(lambda: required_n(0.5, 0.0), "drop", id="no drop"),
        pytest.param(lambda: required_n(0.5, 0.6), "drop", id="drop below zero"),
        pytest.param(lambda: required_n(50, 5), "baseline", id="percent"),
        pytest.param(lambda: required_n(0.5, 0.1, power=0.05), "power", id="power for alpha"),
        pytest.param(lambda: required_n(0.5, 0.1, sided=0), "sided", id="no side"),
        pytest.param(lambda: detectable_drop(0.5, 0), "n must be positive", id="drop of none"),
    ],
)
def test_a_callers_mistake_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
