"""Exact building blocks of the reference: a fused multiply-add, exp and log, from correctly rounded elementwise operations."""

from __future__ import annotations

import math

import torch

__all__ = ["exp32", "exp64", "fma32", "log64"]


def fma32(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """a * b + c for f32 tensors with one rounding.

    The product of two f32 is exact in float64. Its sum with c is rounded to odd there (Boldo and Melquiond 2008), so that the
    second rounding, to f32, sees on which side the exact sum lies.
    """
    product = a.double() * b.double()
    addend = c.double()
    total = product + addend
    # TwoSum (Knuth): the exact sum is total + error.
    back = total - product
    error = (product - (total - back)) + (addend - back)
    bits = total.view(torch.int64)
    # An inexact even total moves one step towards the exact sum, onto the odd neighbour. Infinity and NaN stay.
    moves = (error != 0) & (bits & 1 == 0) & total.isfinite()
    outwards = (error > 0) == (total > 0)
    step = torch.where(outwards, 1, -1)
    return torch.where(moves, bits + step, bits).view(torch.float64).float()


def exp32(x: torch.Tensor) -> torch.Tensor:
    """exp of f32, error below 1 ulp; 0 below -87 (so never a subnormal), infinity above 88.72; exp(0) is 1.

    x = n ln 2 + r with n an integer and |r| <= ln 2 / 2: exp(r) by the polynomial of Cephes `expf`, n into the exponent.
    """
    magic = 12582912.0  # 1.5 * 2^23: adding it rounds to an integer, which then sits in the low bits

    def f32(value: float) -> torch.Tensor:
        return torch.tensor(value, dtype=torch.float32)

    low, high = f32(-87.0), f32(88.72)
    clamped = torch.where(x < low, low, torch.where(x > high, high, x))
    shifted = fma32(clamped, f32(1.44269504088896341), f32(magic))
    n = shifted - f32(magic)
    r = fma32(n, f32(-0.693359375), clamped)
    r = fma32(n, f32(2.12194440e-4), r)
    p = f32(1.9875691500e-4)
    for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = fma32(p, r, f32(coefficient))
    p = fma32(p, r * r, r) + f32(1.0)
    exponent = (shifted.view(torch.int32) - f32(magic).view(torch.int32)) << 23
    y = (p.view(torch.int32) + exponent).view(torch.float32)
    y = torch.where(x < low, f32(0.0), torch.where(x > high, f32(math.inf), y))
    return torch.where(x.isnan(), x, y)


def exp64(x: torch.Tensor) -> torch.Tensor:
    """exp of float64 x <= 0, error below 1 ulp; 0 below -708. Method and coefficients: FDLIBM (Sun, 1993) `e_exp`."""
    magic = 6755399441055744.0  # 1.5 * 2^52
    clamped = torch.where(x < -708.0, -708.0, x)
    shifted = clamped * 1.44269504088896338700 + magic
    n = shifted - magic
    hi = clamped - n * 6.93147180369123816490e-01  # the product is exact
    lo = n * 1.90821492927058770002e-10
    r = hi - lo
    t = r * r
    p = t * 4.13813679705723846039e-08
    for coefficient in (-1.65339022054652515390e-06, 6.61375632143793436117e-05, -2.77777777770155933842e-03):
        p = t * (coefficient + p)
    c = r - t * (1.66666666666666019037e-01 + p)
    p = 1.0 - ((lo - (r * c) / (2.0 - c)) - hi)
    exponent = (shifted.view(torch.int64) - torch.tensor(magic, dtype=torch.float64).view(torch.int64)) << 52
    y = (p.view(torch.int64) + exponent).view(torch.float64)
    return torch.where(x.isnan(), x, torch.where(x < -708.0, 0.0, y))


def log64(x: torch.Tensor) -> torch.Tensor:
    """log of a positive normal float64, error below 1 ulp. Method and coefficients: FDLIBM `e_log`."""
    sqrt_half, one = 0x3FE6A09E00000000, 0x3FF0000000000000
    bits = x.view(torch.int64) + (one - sqrt_half)
    # x = 2^k m with m in [sqrt(1/2), sqrt(2))
    k = ((bits >> 52) - 1023).double()
    f = ((bits & 0x000FFFFFFFFFFFFF) + sqrt_half).view(torch.float64) - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    odd = w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01))
    odd = z * (6.666666666666735130e-01 + odd)
    half_square = 0.5 * f * f
    tail = s * (half_square + (odd + even)) + k * 1.90821492927058770002e-10
    return k * 6.93147180369123816490e-01 - ((half_square - tail) - f)
