"""A row's bits depend on that row alone: not on the batch, its place in it, the other rows' content, the threads (law 8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from kernels.interface import DrawPurpose, Kernels
from tests.kernels.support import NATIVE, assert_same_bits, generator, kernels_of, normal

ROWS = 37


@dataclass
class Operation:
    """`call` takes the tensors of `rows`, whose first dimension is the batch, and returns one row for each."""

    rows: tuple[torch.Tensor, ...]
    call: Callable[..., torch.Tensor]


def linear(kernels: Kernels, dtype: torch.dtype) -> Operation:
    weight, bias = kernels.pack(normal(1, 211, 300).to(dtype)), normal(2, 211)
    return Operation((normal(0, ROWS, 300),), lambda x: kernels.linear(x, weight, bias))


def quantized_linear(kernels: Kernels, dtype: torch.dtype) -> Operation:
    values = (normal(1, 211, 300) * 40).round().clamp(-127, 127).to(dtype)
    weight = kernels.pack(values, normal(2, 211, 3))
    return Operation((normal(0, ROWS, 300),), lambda x: kernels.linear(x, weight))


def add_rms_norm(kernels: Kernels) -> Operation:
    weight = normal(2, 900)

    def call(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        total = residual.clone()
        return torch.cat([kernels.add_rms_norm(x, total, weight, 1e-5), total], dim=1)

    return Operation((normal(0, ROWS, 900), normal(1, ROWS, 900)), call)


def rope(kernels: Kernels) -> Operation:
    cos, sin = normal(1, 50, 32), normal(2, 50, 32)

    def call(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        rotated = x.clone()
        kernels.rope(rotated, positions, cos, sin)
        return rotated

    return Operation((normal(0, ROWS, 9, 64), torch.arange(ROWS)), call)


def store_kv(kernels: Kernels) -> Operation:
    def call(key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        k_cache, v_cache = torch.zeros(10, 4, 2, 8), torch.zeros(10, 4, 2, 8)
        kernels.store_kv(key, value, k_cache, v_cache, slots)
        return torch.cat([k_cache, v_cache], dim=-1).view(40, -1)[slots]

    return Operation((normal(0, ROWS, 2, 8), normal(1, ROWS, 2, 8), torch.randperm(40, generator=generator(0))[:ROWS]), call)


def attention(kernels: Kernels) -> Operation:
    k_cache, v_cache = normal(1, 40, 4, 3, 64), normal(2, 40, 4, 3, 64)
    tables = torch.randperm(40, generator=generator(0)).view(2, 20).int()

    def call(query: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return kernels.paged_attention(query, k_cache, v_cache, tables, rows, positions, 0.125)

    rows = torch.arange(ROWS) // 20
    return Operation((normal(0, ROWS, 9, 64), rows, torch.arange(ROWS) * 31 % 80), call)


def draws() -> tuple[torch.Tensor, ...]:
    return torch.arange(ROWS), torch.arange(ROWS, dtype=torch.int32) % 3, torch.arange(ROWS) % 5


def sample(kernels: Kernels) -> Operation:
    temperature = torch.arange(ROWS).float() % 3 / 2
    top_k = torch.arange(ROWS, dtype=torch.int32) % 4 * 20
    top_p, min_p = 1 - torch.arange(ROWS).float() % 5 / 10, torch.arange(ROWS).float() % 2 / 50
    rows = (normal(0, ROWS, 2000) * 3, temperature, top_k, top_p, min_p, *draws())
    return Operation(rows, lambda *rows: kernels.sample(*rows, DrawPurpose.TARGET))


OPERATIONS: dict[str, Callable[[Kernels], Operation]] = {
    "linear-f32": lambda kernels: linear(kernels, torch.float32),
    "linear-bf16": lambda kernels: linear(kernels, torch.bfloat16),
    "linear-int8": lambda kernels: quantized_linear(kernels, torch.int8),
    "linear-fp8": lambda kernels: quantized_linear(kernels, torch.float8_e4m3fn),
    "rms_norm": lambda kernels: Operation((normal(0, ROWS, 900),), lambda x: kernels.rms_norm(x, normal(1, 900), 1e-5)),
    "add_rms_norm": add_rms_norm,
    "rope": rope,
    "silu_mul": lambda kernels: Operation((normal(0, ROWS, 3000),), kernels.silu_mul),
    "store_kv": store_kv,
    "paged_attention": attention,
    "argmax": lambda kernels: Operation((normal(0, ROWS, 3001),), kernels.argmax),
    "log_sum_exp": lambda kernels: Operation((normal(0, ROWS, 3001),), kernels.log_sum_exp),
    "sample": sample,
    "gumbel": lambda kernels: Operation(draws(), lambda *rows: kernels.gumbel(*rows, DrawPurpose.DRAFT, 999)),
}


@pytest.fixture(params=[(name, threads) for name in NATIVE for threads in (1, 2, 3)], ids=lambda p: f"{p[0]}-{p[1]}-threads")
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return kernels_of(*request.param)


@pytest.mark.parametrize("name", OPERATIONS)
def test_alone_shuffled_and_repeated(kernels: Kernels, name: str) -> None:
    operation = OPERATIONS[name](kernels)
    whole = operation.call(*operation.rows)
    one_thread = OPERATIONS[name](kernels_of(kernels.name, 1))
    assert_same_bits(whole, one_thread.call(*one_thread.rows))
    for row in (0, 17, ROWS - 1):
        assert_same_bits(operation.call(*[x[row : row + 1] for x in operation.rows]), whole[row : row + 1])
    shuffled = torch.randperm(ROWS, generator=generator(1))
    for index in (shuffled, shuffled[:8], shuffled[:5], shuffled[:3], shuffled[:2]):
        assert_same_bits(operation.call(*[x[index] for x in operation.rows]), whole[index])
    for _ in range(5):  # chunks go to threads in another way each time
        assert_same_bits(operation.call(*operation.rows), whole)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "gumbel"])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_neighbours_that_are_not_numbers(kernels: Kernels, name: str, poison: float) -> None:
    operation = OPERATIONS[name](kernels)
    whole = operation.call(*operation.rows)
    kept = torch.arange(ROWS) % 5 == 2
    tensor = operation.rows[0].clone()  # the activations or logits
    tensor[~kept] = poison
    assert_same_bits(operation.call(tensor, *operation.rows[1:])[kept], whole[kept])
