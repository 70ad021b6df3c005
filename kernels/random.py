"""Addressed random numbers (law 9): each draw is a pure function of its address, by Philox4x32-10 (Salmon et al., SC 2011).

    key     = the low and the high 32 bits of the seed
    counter = (token id / 2, position bits 0..31, position bits 32..55 | purpose << 24, sample_index)

so no two of (seed, sample_index, position < 2^56, purpose, token id) share bits. Words 0 and 1 of a block belong to its even
id, words 2 and 3 to the odd one: with `low` the first word, u = (((high << 32 | low) >> 12) + 1/2) * 2^-52, inside (0, 1).
52 bits and not 53, so that u is exact in float64: with 53 the largest one would round to 1 and the noise would be infinite.
"""

from __future__ import annotations

import torch

from kernels.elementary import log64
from kernels.interface import DrawPurpose

__all__ = ["gumbel_noise", "philox", "uniforms"]

_WORD = 0xFFFFFFFF


def philox(counter: list[torch.Tensor], key: list[torch.Tensor]) -> list[torch.Tensor]:
    """Ten rounds. counter: four int64 tensors that hold 32-bit words, key: two; they broadcast. -> four words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2  # int64 wraps, which keeps all 64 bits of the unsigned product
        c0, c1, c2, c3 = (b >> 32) & _WORD ^ c1 ^ k0, b & _WORD, (a >> 32) & _WORD ^ c3 ^ k1, a & _WORD
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return [c0, c1, c2, c3]


def gumbel_noise(
    seeds: torch.Tensor, sample_index: torch.Tensor, positions: torch.Tensor, purpose: DrawPurpose, vocab_size: int
) -> torch.Tensor:
    """`-log(-log(u))` for each token id: seeds [R] int64, sample_index [R] int32, positions [R] int64 -> [R, V] float64."""
    return -log64(-log64(uniforms(seeds, sample_index, positions, purpose, vocab_size)))


def uniforms(
    seeds: torch.Tensor, sample_index: torch.Tensor, positions: torch.Tensor, purpose: DrawPurpose, vocab_size: int
) -> torch.Tensor:
    """u for each token id, shapes as in `gumbel_noise`."""
    seeds, positions = seeds[:, None], positions[:, None]
    block = torch.arange((vocab_size + 1) // 2)
    counter = [block, positions & _WORD, (positions >> 32) | int(purpose) << 24, sample_index.long()[:, None] & _WORD]
    words = philox(counter, [seeds & _WORD, (seeds >> 32) & _WORD])
    even = words[1] << 20 | words[0] >> 12
    odd = words[3] << 20 | words[2] >> 12
    bits = torch.stack([even, odd], dim=-1).flatten(1)[:, :vocab_size]
    return (bits.double() + 0.5) * 2.0**-52
