"""The reference backend: plain torch, slow and clear. It defines the bits that every other backend has to give.

Only elementwise torch operations that round correctly (+, -, *, /, comparisons, bit operations) are used, since the result of
a reduction (`sum`, `matmul`, `softmax`) may depend on the shape. Chains run in Python loops.
"""

from __future__ import annotations

import math
from itertools import accumulate

import torch

from kernels import checks
from kernels.elementary import exp32, exp64, fma32, log64
from kernels.interface import LINEAR_SEGMENT, SCALE_BLOCK, DrawPurpose, Kernels, PackedWeight
from kernels.random import gumbel_noise

__all__ = ["ReferenceKernels"]


class ReferencePackedWeight(PackedWeight):
    """A copy of the weight as it is, and of its scales."""

    def __init__(self, data: torch.Tensor, scales: torch.Tensor | None) -> None:
        self.data, self.scales = data, scales
        self.out_features, self.in_features = data.shape
        self.dtype = data.dtype
        self.nbytes = data.nbytes + (0 if scales is None else scales.nbytes)

    def rows(self, indices: torch.Tensor | slice = slice(None)) -> torch.Tensor:
        """[rows, K] f32"""
        values = self.data[indices].float()
        if self.scales is None:
            return values
        scales = self.scales[indices]
        if scales.shape[1] == 1:
            return values * scales
        return values * scales.repeat_interleave(SCALE_BLOCK, dim=1)[:, : self.in_features]


class ReferenceKernels(Kernels):
    """`num_threads` is kept for the interface only."""

    name = "reference"

    def __init__(self, num_threads: int = 1) -> None:
        if num_threads < 1:
            raise ValueError(f"num_threads: expected at least 1, got {num_threads}")
        self.num_threads = num_threads

    def pack(self, weight: torch.Tensor, scales: torch.Tensor | None = None) -> PackedWeight:
        checks.check_pack(weight, scales)
        copy = weight.detach().clone(memory_format=torch.contiguous_format)
        return ReferencePackedWeight(copy, None if scales is None else scales.detach().clone())

    def linear(self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
        weight = _own(weight)
        m = checks.check_linear(x, weight, bias)
        columns = weight.rows().T.contiguous()  # [K, N]
        total = x.new_zeros(m, weight.out_features)
        for start in range(0, weight.in_features, LINEAR_SEGMENT):
            acc = x.new_zeros(m, weight.out_features)
            for k in range(start, min(start + LINEAR_SEGMENT, weight.in_features)):
                acc = fma32(x[:, k, None], columns[k], acc)
            total = acc if start == 0 else total + acc
        return total if bias is None else total + bias

    def embedding(self, weight: PackedWeight, token_ids: torch.Tensor) -> torch.Tensor:
        weight = _own(weight)
        checks.check_embedding(token_ids)
        row = _first_outside(token_ids, weight.out_features)
        if row is not None:
            raise checks.token_id_error(token_ids, row, weight.out_features)
        return weight.rows(token_ids)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        _, d = checks.check_rms_norm(x, weight)
        mean = lane_dot(x, x) / _f32(d)
        # NOTE: torch.sqrt of f32 may be MKL's and off by an ulp. Through float64 the result is the correctly rounded one.
        root = (mean + _f32(eps)).double().sqrt().float()
        scale = _f32(1.0) / root
        return (x * scale[..., None]) * weight

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        checks.check_add_rms_norm(x, residual, weight)
        residual += x
        return self.rms_norm(residual, weight, eps)

    def rope(self, x: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        _, _, d, max_positions = checks.check_rope(x, positions, cos, sin)
        row = _first_outside(positions, max_positions)
        if row is not None:
            raise checks.position_error(positions, row, max_positions)
        c, s = cos[positions][:, None], sin[positions][:, None]  # [M, 1, D / 2]
        a, b = x[..., : d // 2].clone(), x[..., d // 2 :].clone()
        x[..., : d // 2] = fma32(a, c, -(b * s))
        x[..., d // 2 :] = fma32(b, c, a * s)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        _, f = checks.check_silu_mul(gate_up)
        gate, up = gate_up[:, :f], gate_up[:, f:]
        return (gate / (_f32(1.0) + exp32(-gate))) * up

    def store_kv(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        m, _, num_slots = checks.check_store_kv(key, value, k_cache, v_cache, slot_mapping)
        row = _first_outside(slot_mapping, num_slots)
        if row is not None:
            raise checks.slot_error(slot_mapping, row, num_slots)
        block_size = k_cache.shape[1]
        for i in range(m):
            block, offset = divmod(int(slot_mapping[i]), block_size)
            k_cache[block, offset] = key[i]
            v_cache[block, offset] = value[i]

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
        sizes = checks.check_paged_attention(query, k_cache, v_cache, block_tables, rows, positions)
        m, heads, kv_heads, d, num_blocks, block_size, _, _ = sizes
        out = query.new_empty(m, heads, d)
        for i, (table_row, position) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
            slots = _visible_slots(block_tables, table_row, position, num_blocks, block_size)
            if slots is None:
                raise checks.attention_error(rows, positions, i)
            # [L, H, D]: each query head beside its KV head
            keys = k_cache.view(-1, kv_heads, d)[slots].repeat_interleave(heads // kv_heads, dim=1)
            values = v_cache.view(-1, kv_heads, d)[slots].repeat_interleave(heads // kv_heads, dim=1)
            scores = lane_dot(query[i].expand_as(keys), keys) * _f32(scale)  # [L, H]
            weights = exp32(scores - scores.amax(dim=0))
            denominator, acc = query.new_zeros(heads), query.new_zeros(heads, d)
            for j in range(position + 1):
                denominator = denominator + weights[j]
                acc = fma32(weights[j][:, None], values[j], acc)
            out[i] = acc / denominator[:, None]
        return out

    def argmax(self, logits: torch.Tensor) -> torch.Tensor:
        r, v = checks.check_logits(logits)
        if v == 0:
            return torch.full((r,), -1, dtype=torch.int64)
        largest = logits.amax(dim=1, keepdim=True)  # a NaN if there is one
        ids = torch.where(logits == largest, torch.arange(v), v).amin(dim=1)
        return torch.where(largest[:, 0].isfinite(), ids, -1)

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
        r, v = checks.check_sample(logits, temperature, top_k, top_p, min_p, seeds, sample_index, positions)
        valid = (
            (temperature >= 0)
            & temperature.isfinite()
            & (top_k >= 0)
            & (top_p > 0)
            & (top_p <= 1)
            & (min_p >= 0)
            & (min_p <= 1)
        )
        valid &= (positions >= 0) & (positions < 2**56)
        for row in range(r):
            if not valid[row]:
                raise checks.sample_error(temperature, top_k, top_p, min_p, positions, row)
        ids = self.argmax(logits)
        for row in range(r):
            if ids[row] < 0 or temperature[row] == 0:
                continue
            scaled = logits[row].double() / temperature[row].double()
            kept = _filter(scaled, logits[row], int(top_k[row]) or v, float(top_p[row]), float(min_p[row]))
            draw = slice(row, row + 1)
            noise = gumbel_noise(seeds[draw], sample_index[draw], positions[draw], purpose, v)[0]
            candidates = (scaled + noise)[kept].tolist()
            ids[row] = kept[candidates.index(max(candidates))]  # the first of equal ones
        return ids

    def gumbel(
        self, seeds: torch.Tensor, sample_index: torch.Tensor, positions: torch.Tensor, purpose: DrawPurpose, vocab_size: int
    ) -> torch.Tensor:
        checks.check_draws(seeds, sample_index, positions)
        row = _first_outside(positions, 2**56)
        if row is not None:
            raise checks.draw_error(positions, row)
        return gumbel_noise(seeds, sample_index, positions, purpose, vocab_size)

    def log_sum_exp(self, logits: torch.Tensor) -> torch.Tensor:
        r, _ = checks.check_logits(logits)
        largest = self.argmax(logits)
        out = torch.full((r,), math.nan, dtype=torch.float64)
        for row in range(r):
            if largest[row] >= 0:
                m = logits[row, largest[row]].double()
                total = _chain(exp64(logits[row].double() - m).tolist())
                out[row] = m + log64(torch.tensor(total, dtype=torch.float64))
        return out


def lane_dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The dot product over the last dimension of a and b [..., D] f32 -> [...]: 8 lanes and the fixed tree of the contract."""
    lanes = a.new_zeros(*a.shape[:-1], 8)
    for i in range(0, a.shape[-1], 8):
        width = min(8, a.shape[-1] - i)
        lanes[..., :width] = fma32(a[..., i : i + width], b[..., i : i + width], lanes[..., :width])
    l0, l1, l2, l3, l4, l5, l6, l7 = lanes.unbind(-1)
    return ((l0 + l4) + (l2 + l6)) + ((l1 + l5) + (l3 + l7))


def _filter(scaled: torch.Tensor, logits: torch.Tensor, top_k: int, top_p: float, min_p: float) -> list[int]:
    """The kept token ids, ascending. `scaled` is logits / temperature in float64."""
    probs = exp64(scaled - scaled.max()).tolist()  # relative to the largest
    kept = [i for i, e in enumerate(probs) if e >= min_p]
    # Falling logit, then rising id. Python compares -0.0 and 0.0 as equal, as the contract wants.
    values = logits.tolist()
    falling = sorted(kept, key=lambda i: (-values[i], i))[:top_k]
    if top_p < 1.0:
        wanted = top_p * _chain([probs[i] for i in sorted(falling)])
        for count, mass in enumerate(accumulate(probs[i] for i in falling), start=1):
            if mass >= wanted:
                falling = falling[:count]
                break
    return sorted(falling)


def _chain(values: list[float]) -> float:
    """values[0] + values[1] + ..., left to right (the built-in `sum` may compensate its rounding)."""
    total = 0.0
    for value in values:
        total += value
    return total


def _visible_slots(
    block_tables: torch.Tensor, row: int, position: int, num_blocks: int, block_size: int
) -> torch.Tensor | None:
    """The cache slots of the positions 0..position; None if one lies outside."""
    num_rows, max_blocks = block_tables.shape
    if not (0 <= row < num_rows and 0 <= position < max_blocks * block_size):
        return None
    visible = torch.arange(position + 1)
    blocks = block_tables[row].long()[visible // block_size]
    if _first_outside(blocks, num_blocks) is not None:
        return None
    return blocks * block_size + visible % block_size


def _first_outside(values: torch.Tensor, end: int) -> int | None:
    """The first index of a value that is not in [0, end)."""
    return next((i for i, value in enumerate(values.tolist()) if not 0 <= value < end), None)


def _f32(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float32)


def _own(weight: PackedWeight) -> ReferencePackedWeight:
    if not isinstance(weight, ReferencePackedWeight):
        raise ValueError(f"weight: packed by another backend ({type(weight).__name__})")
    return weight
