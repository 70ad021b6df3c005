"""A position has the same attention bits on every path (prefill, chunks, a verify window, a decode), in any blocks."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.interface import Kernels
from tests.kernels.support import NATIVE, assert_same_bits, few, generator, kernels_of, normal, seeds

LENGTH, HEADS, KV_HEADS, DIM = 70, 6, 2, 16
QUERY, KEY, VALUE = normal(0, LENGTH, HEADS, DIM), normal(1, LENGTH, KV_HEADS, DIM), normal(2, LENGTH, KV_HEADS, DIM)


@pytest.fixture(
    params=[(name, threads) for name in NATIVE for threads in (1, 2)], ids=lambda p: f"{p[0]}-{p[1]}-threads", scope="module"
)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return kernels_of(*request.param)


def run(
    kernels: Kernels, windows: list[tuple[int, int]], block_size: int = 16, seed: int = 0, filler: float = 0.0
) -> torch.Tensor:
    """The attention of the positions of `windows` (begin, end), each window one call that stores its own keys first."""
    num_blocks = -(-LENGTH // block_size)
    blocks = torch.randperm(num_blocks + 3, generator=generator(seed))[:num_blocks].int()
    caches = [torch.full((num_blocks + 3, block_size, KV_HEADS, DIM), filler) for _ in range(2)]
    out = []
    stored = 0
    for begin, end in windows:
        positions = torch.arange(stored, end)
        slots = blocks[positions // block_size].long() * block_size + positions % block_size
        kernels.store_kv(KEY[stored:end], VALUE[stored:end], *caches, slots)
        stored = end
        tables, rows = blocks[None], torch.zeros(end - begin, dtype=torch.int64)
        out.append(kernels.paged_attention(QUERY[begin:end], *caches, tables, rows, torch.arange(begin, end), 0.25))
    return torch.cat(out)


def test_decoded_one_by_one(kernels: Kernels) -> None:
    assert_same_bits(run(kernels, [(i, i + 1) for i in range(LENGTH)]), run(kernels, [(0, LENGTH)]))


@few
@given(seeds, st.lists(st.integers(1, LENGTH - 1), unique=True, max_size=8), st.integers(1, 32))
def test_chunks_block_sizes_and_placements(kernels: Kernels, seed: int, cuts: list[int], block_size: int) -> None:
    edges = [0, *sorted(cuts), LENGTH]
    # What nobody wrote (the rest of a block, other blocks) is NaN here, as a reused block might be.
    chunked = run(kernels, list(itertools.pairwise(edges)), block_size, seed, torch.nan)
    assert_same_bits(chunked, run(kernels, [(0, LENGTH)]))


@pytest.mark.parametrize("width", [2, 3, 5, 9])
def test_verify_windows_that_overwrite_rejected_drafts(kernels: Kernels, width: int) -> None:
    windows = [(0, 40), *((i, i + width) for i in range(40, LENGTH - width))]
    rows = run(kernels, windows)
    whole = run(kernels, [(0, LENGTH)])
    first_of_each = torch.arange(len(windows) - 1) * width + 40
    assert_same_bits(rows[first_of_each], whole[40 : LENGTH - width])


def test_beside_other_sequences(kernels: Kernels) -> None:
    """Tokens of several sequences of unequal length in one call, in an order that interleaves them."""
    tables = torch.arange(15, dtype=torch.int32).view(3, 5)
    caches = normal(3, 15, 16, KV_HEADS, DIM), normal(4, 15, 16, KV_HEADS, DIM)
    rows, positions = torch.tensor([0, 0, 1, 2, 2, 2, 2, 2, 2, 1, 0]), torch.tensor([3, 79, 41, 0, 1, 2, 3, 4, 5, 12, 66])
    query = normal(5, len(rows), HEADS, DIM)
    together = kernels.paged_attention(query, *caches, tables, rows, positions, 0.25)
    for i in range(len(rows)):
        one = slice(i, i + 1)
        alone = kernels.paged_attention(query[one], *caches, tables, rows[one], positions[one], 0.25)
        assert_same_bits(together[one], alone)
