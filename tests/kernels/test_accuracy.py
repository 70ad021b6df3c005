"""The operations compute what they are named after: against float64, with errors of the size that fp32 explains."""

from __future__ import annotations

import pytest
import torch

from kernels.interface import Kernels
from tests.kernels.support import BACKENDS, assert_same_bits, kernels_of, normal


@pytest.fixture(params=BACKENDS, scope="module")
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return kernels_of(request.param)


def test_linear(kernels: Kernels) -> None:
    x, weight, bias = normal(0, 5, 200), normal(1, 30, 200), normal(2, 30)
    exact = x.double() @ weight.double().T + bias
    bound = 200 * 2**-24 * (x.abs().double() @ weight.abs().double().T + bias.abs())
    assert ((kernels.linear(x, kernels.pack(weight), bias) - exact).abs() <= bound).all()


def test_bf16_weights_are_fp32_math_on_the_widened_weights(kernels: Kernels) -> None:
    x, weight = normal(0, 9, 50), normal(1, 37, 50).bfloat16()
    packed = kernels.pack(weight)
    assert packed.dtype == torch.bfloat16
    assert packed.nbytes <= 2 * 48 * 50
    assert_same_bits(kernels.linear(x, packed), kernels.linear(x, kernels.pack(weight.float())))


def test_rms_norm(kernels: Kernels) -> None:
    x, weight = normal(0, 7, 100), normal(1, 100)
    exact = x.double() * (x.double().square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight
    torch.testing.assert_close(kernels.rms_norm(x, weight, 1e-5).double(), exact, rtol=1e-6, atol=0)


def test_rope_and_silu_mul(kernels: Kernels) -> None:
    x, cos, sin = normal(0, 4, 2, 16), normal(1, 9, 8), normal(2, 9, 8)
    positions = torch.tensor([8, 0, 3, 3])
    a, b, c, s = x[..., :8].double(), x[..., 8:].double(), cos[positions][:, None], sin[positions][:, None]
    rotated = x.clone()
    kernels.rope(rotated, positions, cos, sin)
    torch.testing.assert_close(rotated.double(), torch.cat([a * c - b * s, b * c + a * s], -1), rtol=0, atol=1e-6)

    gate_up = normal(3, 4, 60) * 10
    gate, up = gate_up[:, :30].double(), gate_up[:, 30:].double()
    torch.testing.assert_close(kernels.silu_mul(gate_up).double(), gate * gate.sigmoid() * up, rtol=1e-6, atol=1e-30)


def test_attention(kernels: Kernels) -> None:
    query, key, value = normal(0, 50, 6, 32), normal(1, 50, 2, 32), normal(2, 50, 2, 32)
    tables, rows = torch.arange(5, dtype=torch.int32)[None], torch.zeros(50, dtype=torch.int64)
    caches = key.view(5, 10, 2, 32), value.view(5, 10, 2, 32)
    out = kernels.paged_attention(query, *caches, tables, rows, torch.arange(50), 32**-0.5)
    heads_first = [x.double().transpose(0, 1) for x in (query, key.repeat_interleave(3, 1), value.repeat_interleave(3, 1))]
    exact = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(0, 1)
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=2e-6)


def test_log_sum_exp(kernels: Kernels) -> None:
    logits = normal(0, 4, 3000) * 10
    torch.testing.assert_close(kernels.log_sum_exp(logits), logits.double().logsumexp(-1), rtol=1e-14, atol=0)
