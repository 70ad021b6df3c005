"""Suffix decoding against a tree-free definition that counts substrings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drafters.suffix import SuffixDrafter, continuation


def occurrences(text: list[int], piece: list[int]) -> int:
    return sum(text[i : i + len(piece)] == piece for i in range(len(text) - len(piece) + 1))


def slow(text: list[int], end: list[int], max_drafts: int, depth: int, factor: float, least: float) -> tuple[list[int], float]:
    """Counts how often each continuation stands in the text, instead of following places."""
    best: tuple[list[int], float] = ([], 0.0)
    for length in range(1, min(depth - 1, len(end)) + 1):
        match = end[-length:]
        # The end of the text itself, with nothing behind it, is no place.
        if occurrences(text[:-1], match) == 0:
            break
        drafts: list[int] = []
        probability, score = 1.0, 0.0
        room = min(max_drafts, int(length * factor), depth - length)
        while len(drafts) < room:
            here = match + drafts
            counts = {t: occurrences(text, [*here, t]) for t in sorted(set(text) - {-1})}
            followed = sum(occurrences(text, [*here, t]) for t in set(text))
            top = max(counts.values(), default=0)
            if not top:
                break
            probability *= top / followed
            if probability < least:
                break
            drafts.append(min(t for t, c in counts.items() if c == top))
            score += probability
        if drafts and score >= best[1]:
            best = (drafts, score)
    return best


@settings(max_examples=300, deadline=None)
@given(
    text=st.lists(st.integers(-1, 3), max_size=24),
    end=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    max_drafts=st.integers(1, 6),
    depth=st.integers(2, 8),
    factor=st.sampled_from([0.5, 1.0, 2.0]),
    least=st.sampled_from([0.05, 0.3, 0.6]),
    is_own=st.booleans(),
)
def test_continuation(
    text: list[int], end: list[int], max_drafts: int, depth: int, factor: float, least: float, is_own: bool
) -> None:
    if is_own:
        text = end
    found = continuation(np.array(text, dtype=np.int32), np.array(end, dtype=np.int32), max_drafts, depth, factor, least)
    assert found == slow(text, end, max_drafts, depth, factor, least)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"suffix_decoding_max_tree_depth": 1}, "at least 2"),
        ({"suffix_decoding_max_cached_requests": -1}, "at least 0"),
        ({"suffix_decoding_max_spec_factor": 0}, "above 0"),
        ({"suffix_decoding_min_token_prob": 1.5}, "at most 1.0"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SuffixDrafter(3, 100, options)
