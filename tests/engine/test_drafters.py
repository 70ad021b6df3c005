"""Prompt lookup against a loop that a reader can follow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.drafters.base import DraftContext
from engine.drafters.ngram import NgramDrafter, lookup


def slow_lookup(tokens: list[int], num_drafts: int, low: int, high: int) -> list[int]:
    for n in range(high, low - 1, -1):
        for start in range(len(tokens) - n):
            if n < len(tokens) and tokens[start : start + n] == tokens[len(tokens) - n :]:
                return tokens[start + n : start + n + num_drafts]
    return []


@settings(max_examples=300, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 2), min_size=1, max_size=16),
    num_drafts=st.integers(1, 5),
    low=st.integers(1, 4),
    more=st.integers(0, 3),
)
def test_lookup(tokens: list[int], num_drafts: int, low: int, more: int) -> None:
    found = lookup(np.array(tokens, dtype=np.int32), num_drafts, low, low + more)
    assert found.tolist() == slow_lookup(tokens, num_drafts, low, low + more)


def test_each_row_looks_at_its_own_known_tokens_only() -> None:
    """Old drafts behind the known tokens, and other slots, are not part of the text."""
    table = np.full((3, 20), 7, dtype=np.int32)
    table[2, :5] = [1, 2, 3, 1, 2]
    table[0, :4] = [4, 5, 6, 9]
    drafter = NgramDrafter(3, 100, {"prompt_lookup_max": 2})
    context = DraftContext(np.array([2, 0]), table, np.array([5, 4]), np.array([2, 3]))
    drafts, counts = drafter.propose(context)
    assert counts.tolist() == [2, 0]
    assert drafts[0, :2].tolist() == [3, 1]


@pytest.mark.parametrize(
    ("options", "bounds"),
    [
        ({}, (5, 5)),
        ({"prompt_lookup_max": 3}, (3, 3)),
        ({"prompt_lookup_min": 2}, (2, 2)),
        ({"prompt_lookup_min": 1, "prompt_lookup_max": 4}, (1, 4)),
    ],
    ids=str,
)
def test_bounds_are_those_of_vllm(options: dict[str, Any], bounds: tuple[int, int]) -> None:
    drafter = NgramDrafter(3, 100, options)
    assert (drafter.lookup_min, drafter.lookup_max) == bounds


@pytest.mark.parametrize("options", [{"prompt_lookup_min": 4, "prompt_lookup_max": 3}, {"prompt_lookup_min": -1}], ids=str)
def test_bounds_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="1 <= prompt_lookup_min <= prompt_lookup_max"):
        NgramDrafter(3, 100, options)
