"""The statistics behind accuracy and acceptance: intervals, tests, and how many questions a comparison needs.

Everything returned is plain numbers (`dataclasses.asdict` makes them JSON). A caller's mistake (counts out of range, nothing to
compare) is a `ValueError`. Proportions lie in [0, 1]; acceptance lengths are tokens per draft, the bonus token included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import stats

__all__ = [
    "AcceptanceDifference",
    "AcceptanceLength",
    "Accepted",
    "Interval",
    "Paired",
    "ProportionDifference",
    "acceptance_length_interval",
    "detectable_drop",
    "mcnemar",
    "paired",
    "required_n",
    "required_n_one_sample",
    "two_proportions",
    "two_sample_acceptance",
    "wilson_interval",
]

# One entry for each request: how many tokens each of its drafts had accepted (empty: the request had no drafts).
Accepted: TypeAlias = Sequence[Sequence[int] | npt.NDArray[np.integer[Any]]]
Sums: TypeAlias = npt.NDArray[np.int64]  # [requests, 2]: drafts, accepted tokens

# Elements of one block of resamples, which bounds the memory. NOTE: part of what a seed means, as is the order of the draws.
BLOCK = 1 << 20


@dataclass(frozen=True)
class Interval:
    """Both ends, included."""

    low: float
    high: float


@dataclass(frozen=True)
class Paired:
    """The same items judged in two runs, counted by who was right."""

    n: int
    both: int
    only_first: int
    only_second: int
    neither: int
    p_value: float  # exact two-sided McNemar


@dataclass(frozen=True)
class ProportionDifference:
    """Proportion a - proportion b of two independent samples."""

    difference: float
    interval: Interval  # Newcombe's method 10
    p_value: float  # Fisher's exact test, two-sided


@dataclass(frozen=True)
class AcceptanceLength:
    """Acceptance length of one run in tokens per draft, and what it was computed from."""

    length: float
    interval: Interval
    num_requests: int
    num_drafts: int
    num_accepted_tokens: int


@dataclass(frozen=True)
class AcceptanceDifference:
    """Acceptance length a - acceptance length b of two independent runs, in tokens per draft."""

    difference: float
    interval: Interval
    p_value: float  # permutation of the requests, two-sided


# --- proportions ---------------------------------------------------------------------------------------------------------


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Two-sided score interval of one proportion, without continuity correction.

    Raises `ValueError` unless both counts are whole, 0 <= successes <= n, n > 0 and 0 < confidence < 1.
    Source: Wilson, J. Am. Stat. Assoc. 22 (1927) 209; method 3 of Newcombe, Stat. Med. 17 (1998) 857.
    """
    successes, n = _counts(successes, n)
    _check_confidence(confidence)
    z = _z((1 - confidence) / 2)
    p = successes / n
    centre = 2 * successes + z**2
    spread = z * math.sqrt(z**2 + 4 * successes * (1 - p))
    scale = 2 * (n + z**2)
    # 0 and 1 are exact there; the clamp on p is for one ulp of rounding.
    low = 0.0 if successes == 0 else min((centre - spread) / scale, p)
    high = 1.0 if successes == n else max((centre + spread) / scale, p)
    return Interval(low, high)


def two_proportions(successes_a: int, n_a: int, successes_b: int, n_b: int, confidence: float = 0.95) -> ProportionDifference:
    """Compares two runs that answered different questions; for the same questions `paired` sees more.

    Raises `ValueError` for counts or a confidence that `wilson_interval` refuses.
    Sources: Fisher's exact test for the p-value; Newcombe's hybrid score interval without continuity correction (method 10),
    Stat. Med. 17 (1998) 873, for the difference. The two may disagree at the border of significance.
    """
    successes_a, n_a = _counts(successes_a, n_a)
    successes_b, n_b = _counts(successes_b, n_b)
    a, b = wilson_interval(successes_a, n_a, confidence), wilson_interval(successes_b, n_b, confidence)
    p_a, p_b = successes_a / n_a, successes_b / n_b
    below = math.hypot(p_a - a.low, b.high - p_b)
    above = math.hypot(a.high - p_a, p_b - b.low)
    table = [[successes_a, n_a - successes_a], [successes_b, n_b - successes_b]]
    difference = p_a - p_b
    interval = Interval(max(difference - below, -1.0), min(difference + above, 1.0))
    return ProportionDifference(difference, interval, float(stats.fisher_exact(table).pvalue))


def mcnemar(b: int, c: int) -> float:
    """Exact two-sided p-value for b items right only in the first run and c only in the second; 1.0 if there are none.

    Under the null hypothesis b is binomial(b + c, 1/2). Raises `ValueError` for a count that is negative or not whole.
    Source: McNemar, Psychometrika 12 (1947) 153, with the exact binomial in place of chi-squared.
    """
    b, c = _whole_counts(b, c)
    return float(stats.binomtest(b, b + c, 0.5).pvalue) if b + c else 1.0


def paired(first: Sequence[bool], second: Sequence[bool]) -> Paired:
    """Compares two runs item by item: entry i of both says whether item i was right.

    Raises `ValueError` for lists of unequal length or without items.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} items in the first run, {len(second)} in the second")
    if len(first) == 0:
        raise ValueError("there are no items to compare")
    cells = [[0, 0], [0, 0]]
    for a, b in zip(first, second, strict=True):
        cells[bool(a)][bool(b)] += 1
    (neither, only_second), (only_first, both) = cells
    return Paired(len(first), both, only_first, only_second, neither, mcnemar(only_first, only_second))


# --- acceptance length ---------------------------------------------------------------------------------------------------


def acceptance_length_interval(
    accepted_per_draft: Accepted, *, confidence: float = 0.95, seed: int = 0, resamples: int = 10_000
) -> AcceptanceLength:
    """Acceptance length 1 + accepted / drafts (1 without drafts), pooled over the run, with its percentile bootstrap interval.

    Requests are resampled, not drafts: the drafts of one request are alike, and taken for independent they would give an
    interval that is too narrow. With few requests (tens) it still is somewhat. Equal input and seed give equal numbers.
    Raises `ValueError` for fewer than two requests (their spread is unknown), for counts that are not non-negative integers,
    and for a confidence outside of (0, 1) or no resamples.
    Source: Davison and Hinkley, Bootstrap Methods and their Application (1997), chapters 3 (hierarchical data) and 5.
    """
    _check_resampling(confidence, resamples)
    sums = _sums(accepted_per_draft)
    lengths = _bootstrap(sums, np.random.default_rng(seed), resamples)
    drafts, accepted = (int(total) for total in sums.sum(axis=0))
    length = float(_length(sums.sum(axis=0)))
    return AcceptanceLength(length, _percentiles(lengths, confidence), len(sums), drafts, accepted)


def two_sample_acceptance(
    a: Accepted, b: Accepted, *, confidence: float = 0.95, seed: int = 0, resamples: int = 10_000
) -> AcceptanceDifference:
    """Compares the acceptance lengths of two independent runs, request by request as in `acceptance_length_interval`.

    The p-value is the share of random relabellings of the requests with a difference at least as far from 0, the observed
    labelling counted among them, so it is at least 1 / (resamples + 1). Its null hypothesis: requests of both runs come from
    one distribution. Where both runs answered the same prompts, which this does not use, it is conservative.
    Raises `ValueError` as `acceptance_length_interval` does.
    Source: Phipson and Smyth, Stat. Appl. Genet. Mol. Biol. 9 (2010) article 39, for the p-value.
    """
    _check_resampling(confidence, resamples)
    sums_a, sums_b = _sums(a), _sums(b)
    rng = np.random.default_rng(seed)
    difference = float(_length(sums_a.sum(axis=0)) - _length(sums_b.sum(axis=0)))
    differences = _bootstrap(sums_a, rng, resamples) - _bootstrap(sums_b, rng, resamples)
    relabelled = _permutations(sums_a, sums_b, rng, resamples)
    # Ties count as extreme; the tolerance keeps them ties whatever the order of a division's rounding.
    extreme = int(np.count_nonzero(np.abs(relabelled) >= abs(difference) - 1e-12))
    return AcceptanceDifference(difference, _percentiles(differences, confidence), (extreme + 1) / (resamples + 1))


def _sums(accepted_per_draft: Accepted) -> Sums:
    rows = []
    for index, request in enumerate(accepted_per_draft):
        counts = np.asarray(request)
        if counts.ndim != 1 or (counts.size and (counts.dtype.kind not in "iu" or counts.min() < 0)):
            raise ValueError(f"request {index}: accepted counts must be a list of non-negative integers: {request!r}")
        rows.append((counts.size, int(counts.sum())))
    if len(rows) < 2:
        raise ValueError(f"{len(rows)} requests: at least two are needed to know how much they differ")
    return np.array(rows, dtype=np.int64)


def _length(sums: Sums) -> npt.NDArray[np.float64]:
    """Sums [..., 2] to acceptance lengths [...]."""
    drafts, accepted = sums[..., 0], sums[..., 1]
    return 1.0 + accepted / np.maximum(drafts, 1)


def _totals(sums: Sums, chosen: npt.NDArray[np.int64]) -> Sums:
    """The sums of the chosen requests [resamples, requests], as [resamples, 2]."""
    return np.stack([np.ascontiguousarray(column)[chosen].sum(axis=1) for column in sums.T], axis=1)


def _bootstrap(sums: Sums, rng: np.random.Generator, resamples: int) -> npt.NDArray[np.float64]:
    def block(rows: int) -> npt.NDArray[np.float64]:
        return _length(_totals(sums, rng.integers(len(sums), size=(rows, len(sums)))))

    return _in_blocks(block, resamples, len(sums))


def _permutations(sums_a: Sums, sums_b: Sums, rng: np.random.Generator, resamples: int) -> npt.NDArray[np.float64]:
    pool = np.concatenate((sums_a, sums_b))
    total = pool.sum(axis=0)

    def block(rows: int) -> npt.NDArray[np.float64]:
        orders = rng.permuted(np.tile(np.arange(len(pool)), (rows, 1)), axis=1)
        chosen = _totals(pool, orders[:, : len(sums_a)])
        return _length(chosen) - _length(total - chosen)

    return _in_blocks(block, resamples, len(pool))


def _in_blocks(block: Callable[[int], npt.NDArray[np.float64]], resamples: int, num_requests: int) -> npt.NDArray[np.float64]:
    rows = max(1, BLOCK // num_requests)
    whole, rest = divmod(resamples, rows)
    return np.concatenate([block(size) for size in [*repeat(rows, whole), *([rest] if rest else [])]])


def _percentiles(values: npt.NDArray[np.float64], confidence: float) -> Interval:
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high))


# --- sample sizes --------------------------------------------------------------------------------------------------------


def required_n(baseline: float, drop: float, power: float = 0.8, alpha: float = 0.05, sided: Literal[1, 2] = 1) -> int:
    """Questions *for each run* that show a drop from `baseline` to `baseline - drop` between runs with different questions.

    Normal approximation without continuity correction, so somewhat small for Fisher's exact test and for proportions at the
    edges. Raises `ValueError` unless 0 < drop <= baseline <= 1, 0 < alpha < 0.5 <= power < 1 and sided is 1 or 2.
    Source: Fleiss, Levin and Paik, Statistical Methods for Rates and Proportions (3rd ed., 2003), chapter 4.
    """
    _check_plan(baseline, power, alpha, sided, drop)
    return _whole(_unpaired_n(baseline, drop, _z(alpha / sided), _z(1 - power)))


def required_n_one_sample(
    baseline: float, drop: float, power: float = 0.8, alpha: float = 0.05, sided: Literal[1, 2] = 1
) -> int:
    """Questions of one run that show a drop below a *fixed* `baseline` (a floor that was not itself measured).

    Normal approximation without continuity correction. Raises `ValueError` as `required_n` does.
    Source: Rosner, Fundamentals of Biostatistics, chapter 7 (one-sample inference for the binomial).
    """
    _check_plan(baseline, power, alpha, sided, drop)
    spread = _z(alpha / sided) * _deviation(baseline) + _z(1 - power) * _deviation(baseline - drop)
    return _whole((spread / drop) ** 2)


def detectable_drop(baseline: float, n: int, power: float = 0.8, alpha: float = 0.05, sided: Literal[1, 2] = 1) -> float | None:
    """The smallest drop that `n` questions for each run show: the inverse of `required_n`, to 1e-9.

    None if they could not even show a drop to zero. Raises `ValueError` unless n > 0 and 0 < baseline <= 1, and for a power,
    alpha or sided that `required_n` refuses.
    """
    _check_plan(baseline, power, alpha, sided)
    if n <= 0:
        raise ValueError(f"n must be positive, not {n}")
    z_alpha, z_beta = _z(alpha / sided), _z(1 - power)
    if _unpaired_n(baseline, baseline, z_alpha, z_beta) > n:
        return None
    low, high = 0.0, baseline
    while high - low > 1e-9:
        # The number falls as the drop grows: the spread is concave in the drop and not negative at 0.
        middle = (low + high) / 2
        if _unpaired_n(baseline, middle, z_alpha, z_beta) > n:
            low = middle
        else:
            high = middle
    return high


def _unpaired_n(baseline: float, drop: float, z_alpha: float, z_beta: float) -> float:
    pooled = math.sqrt(2) * _deviation(baseline - drop / 2)
    return ((z_alpha * pooled + z_beta * math.hypot(_deviation(baseline), _deviation(baseline - drop))) / drop) ** 2


def _deviation(p: float) -> float:
    return math.sqrt(max(p * (1 - p), 0.0))  # `baseline - drop` may round below 0


def _whole(n: float) -> int:
    return max(1, math.ceil(n - 1e-9))


def _z(tail: float) -> float:
    """The standard normal deviate with `tail` above it."""
    return float(stats.norm.isf(tail))


# --- what is refused -----------------------------------------------------------------------------------------------------


def _whole_counts(*counts: int) -> tuple[int, ...]:
    """As Python's own integers, whatever NumPy had them in."""
    if any(count < 0 or count != int(count) for count in counts):
        raise ValueError(f"counts must be whole and not negative: {', '.join(map(str, counts))}")
    return tuple(int(count) for count in counts)


def _counts(successes: int, n: int) -> tuple[int, int]:
    successes, n = _whole_counts(successes, n)
    if n == 0:
        raise ValueError("n must be positive, not 0")
    if successes > n:
        raise ValueError(f"{successes} successes of {n}")
    return successes, n


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, not {confidence}")


def _check_resampling(confidence: float, resamples: int) -> None:
    _check_confidence(confidence)
    if resamples <= 0:
        raise ValueError(f"resamples must be positive, not {resamples}")


def _check_plan(baseline: float, power: float, alpha: float, sided: int, drop: float | None = None) -> None:
    if not 0 < baseline <= 1:
        raise ValueError(f"baseline must lie in (0, 1], not {baseline}")
    if drop is not None and not 0 < drop <= baseline:
        raise ValueError(f"drop must lie in (0, baseline {baseline}], not {drop}")
    if not 0 < alpha < 0.5 <= power < 1:
        raise ValueError(f"0 < alpha < 0.5 <= power < 1 does not hold: alpha {alpha}, power {power}")
    if sided not in (1, 2):
        raise ValueError(f"sided must be 1 or 2, not {sided}")
