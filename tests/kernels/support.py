"""What the kernel tests share: the backends that run here, inputs from a seed, and equality of bits."""

from __future__ import annotations

import functools

import torch
from hypothesis import settings
from hypothesis import strategies as st

from kernels.backend import available_kernels, create_kernels
from kernels.interface import Kernels

BACKENDS = available_kernels()
NATIVE = [name for name in BACKENDS if name != "reference"]

seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=25, deadline=None)

# Zeros of both signs, subnormals, the ends of the range, infinities, NaN.
SPECIAL = torch.tensor(
    [
        0.0,
        -0.0,
        1e-45,
        -1e-45,
        1e-40,
        -3e-39,
        1.1754944e-38,
        3.4028235e38,
        -3.4028235e38,
        1e30,
        -1e-30,
        torch.inf,
        -torch.inf,
        torch.nan,
    ]
)


@functools.cache
def kernels_of(name: str, num_threads: int = 1) -> Kernels:
    return create_kernels(name, num_threads)


def all_kernels() -> list[Kernels]:
    """Every backend that runs here, the native ones with 1, 2 and 3 threads. The reference comes first."""
    return [kernels_of("reference"), *(kernels_of(name, threads) for name in NATIVE for threads in (1, 2, 3))]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(seed: int, *shape: int, special: bool = False) -> torch.Tensor:
    """Normal f32 numbers; with `special`, a fifth of them from the edges of the format."""
    g = generator(seed)
    x = torch.randn(shape, generator=g)
    if special:
        chosen = SPECIAL[torch.randint(len(SPECIAL), shape, generator=g)]
        x = torch.where(torch.rand(shape, generator=g) < 0.2, chosen, x)
    return x


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal, also in the signs of zeros; a NaN equals a NaN."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if actual.is_floating_point():
        integer = {torch.float32: torch.int32, torch.float64: torch.int64}[actual.dtype]
        both_nan = actual.isnan() & expected.isnan()
        differs = (actual.view(integer) != expected.view(integer)) & ~both_nan
    else:
        differs = actual != expected
    if differs.any():
        where = tuple(differs.nonzero()[0].tolist())
        raise AssertionError(
            f"{int(differs.sum())} of {differs.numel()} differ, first at {where}: {actual[where]} and {expected[where]}"
        )
