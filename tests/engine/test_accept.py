"""The accept rule against a loop that a reader can follow."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.accept import accept_coupled


def slow(choices: list[int], drafts: list[int], num_drafts: int) -> tuple[int, bool]:
    """Walk through the choices of one row as single steps would make them."""
    emitted = 0
    while True:
        choice = choices[emitted]
        if choice < 0:
            return emitted, True
        emitted += 1
        if emitted > num_drafts or drafts[emitted - 1] != choice:
            return emitted, False


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_every_small_case(depth: int) -> None:
    """All choices (NaN among them), drafts and draft counts over two ids, in one batch."""
    rows = [
        (choices, drafts, count)
        for choices in product((-1, 0, 1), repeat=depth + 1)
        for drafts in product((0, 1), repeat=depth)
        for count in range(depth + 1)
    ]
    emitted, nan = accept_coupled(
        np.array([row[0] for row in rows]),
        np.array([row[1] for row in rows]).reshape(len(rows), depth),
        np.array([r[2] for r in rows]),
    )
    expected = [slow(list(choices), list(drafts), count) for choices, drafts, count in rows]
    assert list(zip(emitted.tolist(), nan.tolist(), strict=True)) == expected
    assert len(rows) == 3 ** (depth + 1) * 2**depth * (depth + 1)


@given(
    st.integers(0, 6).flatmap(
        lambda k: st.lists(
            st.tuples(
                st.lists(st.integers(-1, 2), min_size=k + 1, max_size=k + 1),
                st.lists(st.integers(0, 2), min_size=k, max_size=k),
                st.integers(0, k),
            ),
            min_size=1,
            max_size=8,
        )
    )
)
def test_a_row_does_not_depend_on_the_others(rows: list[tuple[list[int], list[int], int]]) -> None:
    depth = len(rows[0][1])
    emitted, nan = accept_coupled(
        np.array([r[0] for r in rows]), np.array([r[1] for r in rows]).reshape(len(rows), depth), np.array([r[2] for r in rows])
    )
    assert [(e, n) for e, n in zip(emitted.tolist(), nan.tolist(), strict=True)] == [slow(*row) for row in rows]


@pytest.mark.parametrize("place", range(4))
def test_nan_behind_accepted_drafts_keeps_them(place: int) -> None:
    """P-04: three right drafts; the choice at `place` is NaN."""
    choices = np.array([[5, 6, 7, 8]])
    choices[0, place] = -1
    emitted, nan = accept_coupled(choices, np.array([[5, 6, 7]]), np.array([3]))
    assert (emitted[0], nan[0]) == (place, True)


def test_nan_behind_a_rejected_draft_does_not_matter() -> None:
    emitted, nan = accept_coupled(np.array([[5, -1, -1]]), np.array([[4, 6]]), np.array([2]))
    assert (emitted[0], nan[0]) == (1, False)


def test_what_stands_behind_the_counted_drafts_is_not_a_draft() -> None:
    """An old proposal that happens to be right is not accepted (S-01, P-12)."""
    emitted, _ = accept_coupled(np.array([[5, 6, 7]]), np.array([[5, 6]]), np.array([0]))
    assert emitted[0] == 1


def test_a_single_wrong_draft_is_never_accepted() -> None:
    """P-12: verification that compares from the second draft on would accept it."""
    emitted, _ = accept_coupled(np.array([[5, 6]]), np.array([[4]]), np.array([1]))
    assert emitted[0] == 1
