"""A quantized weight gives the bits of its dequantized one, in every backend."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.interface import Kernels
from tests.kernels.support import all_kernels, assert_same_bits, few, generator, kernels_of, normal, seeds

DTYPES = (torch.int8, torch.float8_e4m3fn)


def quantized(seed: int, n: int, k: int, dtype: torch.dtype, blocks: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Any values of the dtype but NaN, and scales of both signs, from subnormal products to overflowing ones."""
    g = generator(seed)
    values = torch.randint(-128, 128, (n, k), generator=g).to(torch.int8)
    if dtype != torch.int8:
        values[values.bitwise_and(127) == 127] = 48  # no NaN
        values = values.view(dtype)
    exponents = torch.randint(-140, 126, (n, -(-k // 128) if blocks else 1), generator=g)
    return values, torch.ldexp(normal(seed + 1, *exponents.shape), exponents)


def dequantized(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """By hand, column for column."""
    columns = [values[:, k].float() * scales[:, k // 128 if scales.shape[1] > 1 else 0] for k in range(values.shape[1])]
    return torch.stack(columns, dim=1)


@few
@given(
    seeds,
    st.sampled_from([0, 1, 2, 3, 6, 7, 13]),
    st.sampled_from([1, 15, 16, 17, 70]),
    st.sampled_from([1, 40, 127, 128, 129, 300]),
    st.sampled_from(DTYPES),
    st.booleans(),
    st.booleans(),
)
def test_linear(seed: int, m: int, n: int, k: int, dtype: torch.dtype, blocks: bool, has_bias: bool) -> None:
    x, bias = normal(seed + 2, m, k), normal(seed + 3, n) if has_bias else None
    values, scales = quantized(seed, n, k, dtype, blocks)
    reference = kernels_of("reference")
    expected = reference.linear(x, reference.pack(dequantized(values, scales)), bias)
    for kernels in all_kernels():
        assert_same_bits(kernels.linear(x, kernels.pack(values, scales), bias), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [119, 121])
def test_linear_at_the_edges_of_its_blocks(m: int, dtype: torch.dtype) -> None:
    x = normal(m, m, 400)
    values, scales = quantized(1, 35, 400, dtype, blocks=True)
    reference, *others = all_kernels()
    expected = reference.linear(x, reference.pack(dequantized(values, scales)))
    for kernels in others:
        assert_same_bits(kernels.linear(x, kernels.pack(values, scales)), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("blocks", [False, True])
def test_embedding(dtype: torch.dtype, blocks: bool) -> None:
    values, scales = quantized(0, 40, 300, dtype, blocks)
    ids = torch.tensor([39, 0, 16, 15])
    for kernels in all_kernels():
        assert_same_bits(kernels.embedding(kernels.pack(values, scales), ids), dequantized(values, scales)[ids])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_value_of_the_dtype(dtype: torch.dtype) -> None:
    values = torch.arange(256, dtype=torch.uint8).view(dtype)
    values = values[~values.float().isnan()][None]
    for kernels in all_kernels():
        packed = kernels.pack(values, torch.ones(1, 1))
        assert packed.dtype == dtype
        assert_same_bits(kernels.embedding(packed, torch.tensor([0])), values.float())


def test_it_takes_a_byte_for_each_value() -> None:
    for kernels in all_kernels():
        values, scales = quantized(0, 64, 256, torch.int8, blocks=True)
        assert kernels.pack(values, scales).nbytes == 64 * 256 + 64 * 2 * 4


def test_what_cannot_be_packed() -> None:
    values, scales = quantized(0, 20, 300, torch.float8_e4m3fn, blocks=True)
    bad = values.clone()
    bad.view(torch.int8)[3, 4] = -1
    no_number = scales.clone()
    no_number[3, 1] = torch.nan

    def check(kernels: Kernels) -> None:
        for weight, given_scales, match in (
            (values, None, "without scales"),
            (values.float(), scales, "with scales"),
            (values, scales[:, :2].contiguous(), "one for every 128 of 300 columns"),
            (values, scales[:19], "scales: expected"),
            (values, scales.double(), "scales: expected"),
            (bad, scales, "weight: .* NaN"),
            (values, no_number, "scales: .* NaN"),
        ):
            with pytest.raises(ValueError, match=match):
                kernels.pack(weight, given_scales)

    for kernels in all_kernels():
        check(kernels)
