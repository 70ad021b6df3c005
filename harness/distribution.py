"""Does rejection sampling emit what the target would? Draws by the hundred thousand through the engine's own verification.

The models are two tables, the target's and the draft's logits behind each token of a small vocabulary, so that every
conditional distribution is known exactly. The drafts, their verification and what is emitted go through the engine's own
sampler, picker, verifier and accept rule; each draw has an address of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats

from engine.config import SpeculativeConfig
from engine.drafters.pick import DraftPicker
from engine.parts import Parts
from engine.step import SlotSampling
from engine.verify import Positions, Verifier
from harness.errors import DistributionMismatchError, FeatureNotExercisedError
from kernels.backend import create_kernels

__all__ = ["Draws", "assert_follows", "assert_lossless", "draw_many", "expected_distributions"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
MIN_EXPECTED = 5.0  # of a cell of the chi-square test; smaller ones are joined
SIGNIFICANCE = 1e-6  # with some dozens of tests in a run, a false alarm once in ten thousand runs
START = 0  # the last known token
SLOTS = 1000  # requests with a seed of their own; more draws come from their later positions


@dataclass(frozen=True)
class Draws:
    """N requests. `emitted` [N, K + 1], of which the first `num_emitted` [N] count; drafts [N, K]."""

    drafts: Ints
    emitted: Ints
    num_emitted: Ints


def draw_many(
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor,
    *,
    n: int,
    depth: int,
    draft_sample_method: str = "probabilistic",
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    rejection_sample_method: str = "standard",
    parts: Parts | None = None,
    first_seed: int = 0,
) -> Draws:
    """target_logits, draft_logits: [V, V] f32, row t behind token t. One verified window of `depth` drafts for each request."""
    vocab_size = target_logits.shape[0]
    parts = parts or Parts()
    sampler = parts.sampler(create_kernels("auto", 1), SLOTS)
    for slot in range(SLOTS):
        sampler.admit(slot, SlotSampling(temperature, top_k, top_p, min_p, first_seed + slot, 0, 0, (), None), 1)
    picker = parts.picker(sampler, SLOTS, depth, vocab_size, draft_sample_method)
    speculative = SpeculativeConfig("draft_model", depth, rejection_sample_method=rejection_sample_method)
    verifier = parts.verifier(speculative, sampler, picker)
    windows = [
        _window(target_logits, draft_logits, picker, verifier, parts.accept, depth, 1 + index * (depth + 1))
        for index in range(-(-n // SLOTS))
    ]
    return Draws(*(np.concatenate(parts) for parts in zip(*windows, strict=True)))


def _window(
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor,
    picker: DraftPicker,
    verifier: Verifier,
    accept: Callable[..., Any],
    depth: int,
    position: int,
) -> tuple[Ints, Ints, Ints]:
    """The fields of `Draws` for one window of every slot, whose first token stands at `position`."""
    slots, places = np.arange(SLOTS), np.arange(depth + 1)
    tokens = np.full((SLOTS, depth + 1), START, dtype=np.int64)
    for place in range(depth):
        logits = draft_logits[torch.from_numpy(tokens[:, place])]
        tokens[:, place + 1] = picker(logits, slots, np.full(SLOTS, position + place), np.full(SLOTS, place))
    drafts = tokens[:, 1:]
    at = Positions(
        slots=np.repeat(slots, depth + 1),
        places=np.tile(places, SLOTS),
        positions=np.tile(position + places, SLOTS),
        drafts=np.concatenate((drafts, np.full((SLOTS, 1), -1)), axis=1).ravel(),
    )
    choices = verifier.choose(target_logits[torch.from_numpy(tokens.ravel())], at).reshape(SLOTS, depth + 1)
    num_emitted, _ = accept(choices, drafts, np.full(SLOTS, depth))
    return drafts, choices, num_emitted


def expected_distributions(
    logits: torch.Tensor, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Floats:
    """[V, V] float64: the distribution behind each token, in numpy and in the textbook's words; parameters are f32."""
    temperature, top_p, min_p = (float(np.float32(value)) for value in (temperature, top_p, min_p))
    rows = []
    for row in logits.double().numpy() / temperature:
        p = np.exp(row - row.max())
        p[p < min_p] = 0.0
        order = np.argsort(-row, kind="stable")
        if top_k:
            p[order[top_k:]] = 0.0
        if top_p < 1:
            before = np.cumsum(p[order]) - p[order]
            p[order[before >= top_p * p.sum()]] = 0.0
        rows.append(p / p.sum())
    return np.stack(rows)


def assert_follows(found: Ints, distribution: Floats, *, case: str) -> float:
    """The tokens `found` are draws from `distribution` [V], by a chi-square test; gives its p-value.

    Raises `DistributionMismatchError`, also for a token that cannot occur, and `FeatureNotExercisedError` for too few tokens.
    """
    counts = np.bincount(found, minlength=len(distribution)).astype(np.float64)
    impossible = np.flatnonzero((distribution == 0) & (counts > 0))
    if len(impossible):
        token = int(impossible[0])
        raise DistributionMismatchError(
            f"{case}: token {token} has probability 0 and came {int(counts[token])} times", case=case, actual=token
        )
    possible = distribution > 0
    expected, counts = distribution[possible] * len(found), counts[possible]
    order = np.argsort(expected)
    expected, counts = expected[order], counts[order]
    joined = int(np.searchsorted(expected, MIN_EXPECTED))
    if joined:  # what is rare counts as one cell, with the smallest of the others if need be
        joined = min(joined + (expected[:joined].sum() < MIN_EXPECTED), len(expected))
        expected = np.append(expected[joined:], expected[:joined].sum())
        counts = np.append(counts[joined:], counts[:joined].sum())
    if len(expected) < 2:
        if possible.sum() == 1 and len(found):
            return 1.0  # only one token can come, and no other did
        raise FeatureNotExercisedError(f"{case}: {len(found)} tokens are too few for a test", case=case)
    p_value = float(stats.chisquare(counts, expected * counts.sum() / expected.sum()).pvalue)
    if p_value < SIGNIFICANCE:
        worst = int(np.argmax(np.abs(counts - expected) / np.sqrt(expected)))
        raise DistributionMismatchError(
            f"{case}: {len(found)} tokens do not follow the distribution (chi-square p = {p_value:.1e}); the worst cell came "
            f"{counts[worst]:.0f} times, {expected[worst]:.0f} expected",
            case=case,
            expected=float(expected[worst]),
            actual=float(counts[worst]),
        )
    return p_value


def assert_lossless(draws: Draws, target: Floats, *, case: str) -> int:
    """Every emitted token follows the target's distribution behind the one before it, at each place.

    The distributions `target` [V, V] are conditional on the token before, so the places are tested apart for each of them,
    where there are enough draws. Returns the number of tests.
    """
    tests = 0
    depth = draws.drafts.shape[1]
    for place in range(depth + 1):
        reached = draws.num_emitted > place
        before = np.full(len(reached), START) if place == 0 else draws.emitted[:, place - 1]
        for token in range(target.shape[0]):
            chosen = reached & (before == token)
            if chosen.sum() < 50 * target.shape[0]:
                continue
            where = f"{case}, place {place}, behind token {token}"
            assert_follows(draws.emitted[chosen, place], target[token], case=where)
            tests += 1
    if not tests:
        raise FeatureNotExercisedError(f"{case}: no place has enough draws", case=case)
    return tests
