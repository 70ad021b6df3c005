"""The operations of a decoder, as one small interface that every backend implements.

The contract of all of them (law 8 of the design): a row of the result is a function of that row's inputs alone. Its bits do
not depend on the other rows, on its place in the batch, on the number of threads or on the instruction set. Every backend
therefore computes the *same* bits, and `kernels/reference.py` is the readable definition of them:

* fp32 arithmetic with round-to-nearest; `fma(a, b, c)` is a fused multiply-add (one rounding).
* `linear`: each output is a sum of segments of 128 k: in a segment one chain `acc = fma(x[k], w[k], acc)` in k order from
  acc = +0; the chains are added in order, then the bias. (One chain over all k has twice the rounding error of torch's fp32.)
* Reductions inside a row (`dot`, a norm's sum of squares, ...) use 8 lanes: lane l takes the elements l, l + 8, l + 16, ... in
  order, as one chain of fused multiply-adds (a missing tail element leaves its lane alone), and the lanes are added as
  ((l0 + l4) + (l2 + l6)) + ((l1 + l5) + (l3 + l7)).
* `exp` and `log` are our own (polynomials stated in `kernels/elementary.py`), never a library's.
* A NaN is a NaN: its sign and payload are not part of the bits.

All tensors live on the CPU and are contiguous unless a docstring says otherwise. M is a number of token rows, R of sampling
rows, V the vocabulary size. Shapes and dtypes are checked with `ValueError` (`kernels/checks.py`), indices with `IndexError`;
a call that raises has written nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import IntEnum

import torch

__all__ = ["LINEAR_SEGMENT", "QUANTIZED_DTYPES", "SCALE_BLOCK", "DrawPurpose", "Kernels", "PackedWeight"]

LINEAR_SEGMENT = 128  # k of one chain of `linear`
SCALE_BLOCK = 128  # k that share a scale of a quantized weight, where not all of them do
QUANTIZED_DTYPES = (torch.int8, torch.float8_e4m3fn)


class DrawPurpose(IntEnum):
    """What a random draw is for; two purposes never share a draw (law 9)."""

    TARGET = 0
    DRAFT = 1
    ACCEPTANCE = 2
    RECOVERY = 3


class PackedWeight(ABC):
    """A linear layer's weight `[out_features, in_features]` in a backend's own layout."""

    out_features: int
    in_features: int
    dtype: torch.dtype  # of the storage: float32, bfloat16, int8 or float8_e4m3fn
    nbytes: int


class Kernels(ABC):
    """One backend. Instances are independent; calls release the GIL where the backend is native."""

    name: str
    num_threads: int

    # --- linear algebra -------------------------------------------------------------------------------------------
    @abstractmethod
    def pack(self, weight: torch.Tensor, scales: torch.Tensor | None = None) -> PackedWeight:
        """Pack `weight` [N, K]: float32, bfloat16 (widened exactly when used), or int8 or float8_e4m3fn with `scales` f32.

        scales is [N, 1], or [N, ceil(K / 128)]: one for every 128 columns. The weight then stands for `value * scale`, each
        rounded to fp32. It stays in its dtype in memory. `ValueError` also for a NaN among the values or the scales.
        """

    @abstractmethod
    def linear(self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x [M, K] f32 times weight [N, K] transposed, plus bias [N] f32 -> [M, N] f32."""

    @abstractmethod
    def embedding(self, weight: PackedWeight, token_ids: torch.Tensor) -> torch.Tensor:
        """Rows `token_ids` [M] int64 of weight [V, K], widened -> [M, K] f32. `IndexError` for an id outside [0, V)."""

    # --- rows -----------------------------------------------------------------------------------------------------
    @abstractmethod
    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x [M, D] (or [M, H, D], normalised over D) f32, weight [D] f32 -> same shape.

        `(x * (1 / sqrt(sum(x^2) / D + eps))) * weight`, the sum over 8 lanes.
        """

    @abstractmethod
    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """`residual += x` in place, then `rms_norm(residual)`; both [M, D] f32."""

    @abstractmethod
    def rope(self, x: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Rotate x [M, H, D] f32 in place (rows may be strided: stride(1) == D, stride(2) == 1), halves convention.

        With h = D / 2, a = x[..., :h], b = x[..., h:], and c, s = cos, sin [max_positions, h] f32 at `positions` [M] int64:
        `a' = fma(a, c, -(b * s))`, `b' = fma(b, c, a * s)`. `IndexError` for a position outside of the tables.
        """

    @abstractmethod
    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """gate_up [M, 2F] f32 -> [M, F]: `(g / (1 + exp(-g))) * u` with g the first half and u the second."""

    # --- attention ------------------------------------------------------------------------------------------------
    @abstractmethod
    def store_kv(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write key, value [M, KVH, D] f32 (rows may be strided) to caches [num_blocks, block_size, KVH, D] f32 at
        `slot_mapping` [M] int64 = block * block_size + offset, in row order. `IndexError` outside of the cache."""

    @abstractmethod
    def paged_attention(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_tables: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Causal attention of each query token over the cached entries of its own sequence.

        query [M, H, D] f32 (rows may be strided), H a multiple of KVH; block_tables [S, max_blocks] int32; rows [M] int64 = the
        row of `block_tables` of each token; positions [M] int64: token i sees the positions 0..positions[i] -> [M, H, D] f32.
        Score j = dot(q, k_j) * scale (8 lanes); m = the largest score; e_j = exp(score_j - m); the denominator is one chain of
        additions in j order; output d = (chain of fma(e_j, v_j[d], acc) in j order) / denominator. `IndexError` for a row, a
        position or a needed block outside of the table or the cache.
        """

    # --- sampling -------------------------------------------------------------------------------------------------
    @abstractmethod
    def argmax(self, logits: torch.Tensor) -> torch.Tensor:
        """logits [R, V] f32 -> ids [R] int64: the first index of the largest value; -1 for a row that holds a NaN or whose
        largest value is not finite."""

    @abstractmethod
    def sample(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor,
        top_k: torch.Tensor,
        top_p: torch.Tensor,
        min_p: torch.Tensor,
        seeds: torch.Tensor,
        sample_index: torch.Tensor,
        positions: torch.Tensor,
        purpose: DrawPurpose,
    ) -> torch.Tensor:
        """One token for each row: argmax(filtered logits / temperature + Gumbel noise at (seed, sample_index, position,
        purpose)), the first index on ties, in float64.

        logits [R, V] f32; temperature, top_p, min_p [R] f32; top_k [R] int32 (0: off); seeds [R] int64 (the 64 bits are used);
        sample_index [R] int32; positions [R] int64 in [0, 2^56) -> ids [R] int64. temperature 0 means argmax, and then nothing
        is drawn. Filters in this order, each on what the one before kept: temperature, min_p (e_i >= min_p with
        e = exp(logit / temperature - max) in float64), top_k (the k largest, ties to the lower id), top_p (the shortest prefix,
        by falling logit and ties to the lower id, whose mass reaches top_p times the kept mass; at least one; the kept mass is
        one chain in id order, the prefix's one chain in its own). -1 for a row as in `argmax`. `ValueError` unless temperature
        is finite and >= 0, top_k >= 0, 0 < top_p <= 1 and 0 <= min_p <= 1.
        """

    @abstractmethod
    def gumbel(
        self, seeds: torch.Tensor, sample_index: torch.Tensor, positions: torch.Tensor, purpose: DrawPurpose, vocab_size: int
    ) -> torch.Tensor:
        """The noise that `sample` adds: [R, V] float64, `-log(-log(u))` with u from Philox4x32-10, addressed as
        `kernels/random.py` states. `ValueError` for a position outside of [0, 2^56)."""

    @abstractmethod
    def log_sum_exp(self, logits: torch.Tensor) -> torch.Tensor:
        """logits [R, V] f32 -> [R] float64: m + log(sum(exp(logit - m))), all in float64, one chain in index order; NaN
        for a row where `argmax` is -1."""
