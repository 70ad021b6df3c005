"""The exact building blocks of the reference, against exact arithmetic and float64."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernels.elementary import exp32, exp64, fma32, log64

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


def round_to_f32(exact: Fraction) -> float:
    """The nearest f32, ties to even. From the float64 neighbourhood, decided exactly."""
    limit = Fraction(2) ** 128 - Fraction(2) ** 103  # halfway between the largest f32 and 2^128
    if abs(exact) >= limit:
        return float("inf") if exact > 0 else float("-inf")
    if exact == 0:
        return 0.0
    exponent = max(-149, (abs(exact.numerator).bit_length() - exact.denominator.bit_length()) - 24)
    while abs(exact) >= Fraction(2) ** (exponent + 24):
        exponent += 1
    return float(round(exact / Fraction(2) ** exponent) * Fraction(2) ** exponent)


@settings(max_examples=1000, deadline=None)
@given(floats, floats, floats)
@example(1 + 2**-12, 1 + 2**-12, 2**-60)  # just above a tie of the f32 rounding
@example(1 + 2**-12, 1 + 2**-12, -(2**-60))  # just below it
@example((1 + 2**-23) * 2**-24, 1 - 2**-23, 1 + 2**-23)  # just below a tie, by less than float64 sees
@example(-(1 + 2**-23) * 2**-24, 1 - 2**-23, -(1 + 2**-23))
@example(1.5, 2.0**-149, 0.0)  # a tie of subnormals
@example(-(2.0**-100), 2.0**-100, 0.0)
def test_fma32_rounds_once(a: float, b: float, c: float) -> None:
    actual = fma32(*(torch.tensor([value], dtype=torch.float32) for value in (a, b, c))).item()
    assert actual == round_to_f32(Fraction(a) * Fraction(b) + Fraction(c))


@pytest.mark.parametrize(
    ("a", "b", "c", "expected"),
    [
        (0.0, -1.0, 0.0, "0.0"),
        (0.0, -1.0, -0.0, "-0.0"),
        (1.0, 1.0, -1.0, "0.0"),
        (-1e-45, 1e-45, 0.0, "-0.0"),
        (3e38, 2.0, 0.0, "inf"),
        (3e38, 2.0, float("-inf"), "-inf"),
        (float("inf"), 0.0, 1.0, "nan"),
    ],
)
def test_fma32_special_values(a: float, b: float, c: float, expected: str) -> None:
    assert str(fma32(*(torch.tensor([value], dtype=torch.float32) for value in (a, b, c))).item()) == expected


def ulps(actual: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """The error in units of the last place of the exact f32 result (both float64)."""
    return (actual - exact).abs() / torch.exp2(exact.abs().log2().floor() - 23)


def test_exp32_is_within_one_ulp() -> None:
    x = torch.cat([torch.linspace(-87, 88.71, 500_001), torch.linspace(-1, 1, 500_001)])
    assert ulps(exp32(x).double(), x.double().exp()).max() < 1.0


def test_exp32_ends() -> None:
    x = torch.tensor([0.0, -0.0, 1e-45, -87.0, -87.00001, -torch.inf, 88.72, 88.73, torch.inf, torch.nan])
    y = exp32(x)
    assert y[:3].tolist() == [1.0, 1.0, 1.0]
    assert y[3] >= torch.finfo(torch.float32).tiny
    assert y[4:6].tolist() == [0.0, 0.0]
    assert y[6].isfinite()
    assert y[7:9].tolist() == [torch.inf, torch.inf]
    assert y[9].isnan()


def test_exp64_and_log64_are_within_two_ulp() -> None:
    x = -torch.logspace(-20, 2.84, 200_001, dtype=torch.float64)
    assert ((exp64(x) / x.exp() - 1).abs() < 2 * 2**-52).all()
    y = torch.cat(
        [torch.logspace(-300, 300, 200_001, dtype=torch.float64), 1 - torch.logspace(-15, -1, 1001, dtype=torch.float64)]
    )
    assert ((log64(y) - y.log()).abs() <= 2 * 2**-52 * y.log().abs()).all()
    assert log64(torch.ones(1, dtype=torch.float64)).item() == 0.0
    assert exp64(torch.tensor([0.0, -709.0, -torch.inf], dtype=torch.float64)).tolist() == [1.0, 0.0, 0.0]
