"""Every backend, whatever its instruction set and thread count, gives the bits of the reference, for every operation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.elementary import exp32
from kernels.interface import DrawPurpose, Kernels
from tests.kernels.support import NATIVE, all_kernels, assert_same_bits, few, generator, kernels_of, normal, seeds


def assert_all_agree(operation: Callable[[Kernels], torch.Tensor]) -> None:
    reference, *others = all_kernels()
    expected = operation(reference)
    for kernels in others:
        assert_same_bits(operation(kernels), expected)


@few
@given(
    seeds,
    st.sampled_from([0, 1, 2, 5, 6, 7, 13, 40]),
    st.sampled_from([1, 15, 16, 17, 33, 80]),
    st.sampled_from([0, 1, 7, 40]),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.booleans(),
    st.booleans(),
)
def test_linear(seed: int, m: int, n: int, k: int, dtype: torch.dtype, has_bias: bool, special: bool) -> None:
    x, weight = normal(seed, m, k, special=special), normal(seed + 1, n, k, special=special).to(dtype)
    bias = normal(seed + 2, n, special=special) if has_bias else None
    assert_all_agree(lambda kernels: kernels.linear(x, kernels.pack(weight), bias))


@pytest.mark.parametrize("m", [119, 120, 121, 126, 127])
@pytest.mark.parametrize("k", [287, 288, 289])
def test_linear_at_the_edges_of_its_blocks(m: int, k: int) -> None:
    x, weight, bias = normal(m, m, k), normal(k, 35, k), normal(1, 35)
    assert_all_agree(lambda kernels: kernels.linear(x, kernels.pack(weight), bias))


@pytest.mark.parametrize("name", [*NATIVE, "reference"])
def test_pack_takes_any_strides(name: str) -> None:
    kernels = kernels_of(name)
    x, weight = normal(0, 3, 20), normal(1, 20, 34)
    strided = weight.T[::2]  # [17, 20]
    assert_same_bits(kernels.linear(x, kernels.pack(strided)), kernels.linear(x, kernels.pack(strided.contiguous())))


@few
@given(seeds, st.integers(1, 40), st.integers(0, 20), st.sampled_from([torch.float32, torch.bfloat16]))
def test_embedding_returns_the_rows_of_the_packed_weight(seed: int, n: int, k: int, dtype: torch.dtype) -> None:
    weight = normal(seed, n, k, special=True).to(dtype)
    ids = torch.randint(n, (9,), generator=generator(seed))
    for kernels in all_kernels():
        assert_same_bits(kernels.embedding(kernels.pack(weight), ids), weight[ids].float())


@few
@given(seeds, st.integers(0, 9), st.integers(1, 40), st.booleans())
def test_norms(seed: int, m: int, d: int, special: bool) -> None:
    x, weight, residual = normal(seed, m, d, special=special), normal(seed + 1, d, special=special), normal(seed + 2, m, d)

    def add_rms_norm(kernels: Kernels) -> torch.Tensor:
        total = residual.clone()
        out = kernels.add_rms_norm(x, total, weight, 1e-6)
        assert_same_bits(total, residual + x)
        return out

    assert_all_agree(lambda kernels: kernels.rms_norm(x, weight, 1e-5))
    assert_all_agree(lambda kernels: kernels.rms_norm(x[:, None].repeat(1, 3, 1), weight, 1e-5))
    assert_all_agree(add_rms_norm)


@few
@given(seeds, st.integers(0, 9), st.integers(1, 4), st.sampled_from([2, 8, 16, 24, 64]), st.booleans())
def test_rope_on_strided_rows(seed: int, m: int, heads: int, d: int, special: bool) -> None:
    source = normal(seed, m, heads * d + 5, special=special)
    cos, sin = normal(seed + 1, 30, d // 2), normal(seed + 2, 30, d // 2)
    positions = torch.randint(30, (m,), generator=generator(seed))

    def rope(kernels: Kernels) -> torch.Tensor:
        whole = source.clone()
        kernels.rope(whole[:, 2 : 2 + heads * d].unflatten(1, (heads, d)), positions, cos, sin)
        return whole  # what lies around the rows must be as it was

    assert_all_agree(rope)


@few
@given(seeds, st.integers(0, 9), st.integers(0, 40), st.booleans())
def test_silu_mul(seed: int, m: int, f: int, special: bool) -> None:
    gate_up = normal(seed, m, 2 * f, special=special) * 10
    assert_all_agree(lambda kernels: kernels.silu_mul(gate_up))


def test_silu_mul_over_the_whole_range_of_exp() -> None:
    gate = torch.linspace(-100, 100, 200_001)
    gate_up = torch.stack([gate, torch.ones_like(gate)], dim=1)
    assert_all_agree(lambda kernels: kernels.silu_mul(gate_up))


def test_exp_bit_by_bit() -> None:
    """Attention over the scores 0 and s with the values 0 and 1 is exp(s) itself, once exp(s) vanishes beside 1."""
    odd_nan = torch.tensor([0x7FC001FF], dtype=torch.int32).view(torch.float32)  # its low bits must not leak into the exponent
    scores = torch.cat([torch.linspace(-89, -17, 5000), odd_nan])
    query = torch.zeros(len(scores), 1, 8)
    query[:, 0, 0] = scores
    k_cache, v_cache = torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 1, 8)
    k_cache[0, 1, 0, 0] = v_cache[0, 1] = 1.0
    arguments = (
        torch.zeros(1, 1, dtype=torch.int32),
        torch.zeros(len(scores), dtype=torch.int64),
        torch.ones(len(scores)).long(),
    )
    expected = exp32(scores)[:, None, None].expand(-1, 1, 8).contiguous()
    for kernels in all_kernels()[1:]:
        assert_same_bits(kernels.paged_attention(query, k_cache, v_cache, *arguments, 1.0), expected)


@few
@given(
    seeds,
    st.sampled_from([8, 16, 20, 24, 64, 128]),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([1, 2, 5, 16, 32]),
    st.booleans(),
)
def test_attention(seed: int, d: int, group: int, kv_heads: int, block_size: int, special: bool) -> None:
    g = generator(seed)
    max_blocks = -(-40 // block_size)
    shape = (2 * max_blocks + 1, block_size, kv_heads, d)
    k_cache, v_cache = normal(seed, *shape, special=special), normal(seed + 1, *shape, special=special)
    block_tables = torch.randperm(2 * max_blocks, generator=g).view(2, max_blocks).int() + 1
    rows = torch.tensor([0, 0, 0, 0, 0, 1, 1, 0])
    positions = torch.randint(40, (8,), generator=g)
    query = normal(seed + 2, 8, group * kv_heads * d + 3, special=special)[:, 3:].unflatten(1, (group * kv_heads, d))
    assert_all_agree(lambda kernels: kernels.paged_attention(query, k_cache, v_cache, block_tables, rows, positions, d**-0.5))


@few
@given(seeds, st.integers(0, 6), st.integers(1, 700), st.booleans())
def test_argmax_and_log_sum_exp(seed: int, r: int, v: int, special: bool) -> None:
    # Rounded, so that there are ties; special values make most rows invalid, a few stay.
    logits = (normal(seed, r, v) * 2).round()
    if special:
        logits[: r // 2] = normal(seed + 1, r // 2, v, special=True)
        logits[r // 2 :, ::3] = -torch.inf
    assert_all_agree(lambda kernels: kernels.argmax(logits))
    assert_all_agree(lambda kernels: kernels.log_sum_exp(logits))


@few
@given(seeds, st.integers(1, 600), st.sampled_from([0, 1, 2, 7, 50, 400]), st.booleans(), st.booleans(), st.booleans())
def test_sample(seed: int, v: int, top_k: int, has_top_p: bool, has_min_p: bool, rounded: bool) -> None:
    g, r = generator(seed), 6
    logits = normal(seed, r, v) * 3
    if rounded:
        logits = logits.round()  # ties, and zeros of both signs
    logits[4, v // 2] = torch.nan
    logits[5, ::2] = -torch.inf
    temperature = torch.tensor([0.0, 0.01, 0.7, 1.0, 1.0, 5.0])
    top_p = torch.rand(r, generator=g) * 0.99 + 0.01 if has_top_p else torch.ones(r)
    min_p = torch.rand(r, generator=g) * 0.2 if has_min_p else torch.zeros(r)
    address = draw_address(seed, r)
    limits = (torch.full((r,), top_k, dtype=torch.int32), top_p, min_p)
    assert_all_agree(lambda kernels: kernels.sample(logits, temperature, *limits, *address, DrawPurpose.TARGET))


@few
@given(seeds, st.integers(0, 4), st.integers(0, 1200), st.sampled_from(DrawPurpose))
def test_gumbel(seed: int, r: int, v: int, purpose: DrawPurpose) -> None:
    address = draw_address(seed, r)
    assert_all_agree(lambda kernels: kernels.gumbel(*address, purpose, v))


def draw_address(seed: int, r: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Seeds, sample indices and positions over their whole ranges."""
    g = generator(seed)
    return (
        torch.randint(-(2**63), 2**63 - 1, (r,), generator=g),
        torch.randint(-(2**31), 2**31 - 1, (r,), generator=g, dtype=torch.int32),
        torch.randint(2**56, (r,), generator=g),
    )
