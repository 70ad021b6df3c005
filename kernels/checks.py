"""The shape and dtype checks of the contract, one function for each operation; every backend calls them, so all raise the same.

They run on each call, some hundreds of times in a step: one pass of cheap attribute reads, and a message only on failure. Each
returns the sizes that the operation needs.
"""

from __future__ import annotations

import torch

from kernels.interface import QUANTIZED_DTYPES, SCALE_BLOCK, PackedWeight

F32, I32, I64 = torch.float32, torch.int32, torch.int64


def _tensor(name: str, x: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], contiguous: bool = True) -> torch.Size:
    """Checks that `x` is a CPU tensor of this dtype and shape, where -1 is any size. -> its shape."""
    actual = x.shape
    if x.dtype is dtype and x.is_cpu and len(actual) == len(shape) and (not contiguous or x.is_contiguous()):
        if actual == shape:
            return actual
        for want, size in zip(shape, actual, strict=True):
            if want != size and want >= 0:
                break
        else:
            return actual
    kind = "contiguous CPU" if contiguous else "CPU"
    wanted = ", ".join("any" if size < 0 else str(size) for size in shape)
    layout = "" if x.is_contiguous() else ", not contiguous"
    raise ValueError(f"{name}: expected a {kind} {dtype} tensor [{wanted}], got {x.device} {x.dtype} {list(actual)}{layout}")


def _heads(name: str, x: torch.Tensor, shape: tuple[int, int, int]) -> torch.Size:
    """Checks that `x` is an f32 tensor [M, heads, dim] whose rows may be strided. -> its shape."""
    actual = _tensor(name, x, F32, shape, contiguous=False)
    if not x.is_contiguous():
        _, heads, dim = actual
        _, head_stride, element_stride = x.stride()
        if (heads > 1 and head_stride != dim) or (dim > 1 and element_stride != 1):
            raise ValueError(f"{name}: each row must be contiguous, got strides {x.stride()} for shape {list(actual)}")
    return actual


def check_pack(weight: torch.Tensor, scales: torch.Tensor | None) -> tuple[int, int]:
    """-> (N, K)."""
    known = (torch.float32, torch.bfloat16) if scales is None else QUANTIZED_DTYPES
    if weight.dtype not in known:
        names = " or ".join(str(dtype) for dtype in known)
        raise ValueError(f"weight: expected {names} {'without' if scales is None else 'with'} scales, got {weight.dtype}")
    n, k = _tensor("weight", weight, weight.dtype, (-1, -1), contiguous=False)
    if scales is not None:
        num_blocks = _tensor("scales", scales, F32, (n, -1))[1]
        if num_blocks not in (1, -(-k // SCALE_BLOCK)):
            raise ValueError(
                f"scales: expected one for each of {n} rows, or {-(-k // SCALE_BLOCK)} (one for every {SCALE_BLOCK} of {k} "
                f"columns), got {num_blocks}"
            )
        for name, x in (("weight", weight), ("scales", scales)):
            if x.is_floating_point() and x.isnan().any():
                raise ValueError(f"{name}: a quantized weight has no NaN")
    return n, k


def check_linear(x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None) -> int:
    """-> M."""
    if bias is not None:
        _tensor("bias", bias, F32, (weight.out_features,))
    return _tensor("x", x, F32, (-1, weight.in_features))[0]


def check_embedding(token_ids: torch.Tensor) -> int:
    """-> M."""
    return _tensor("token_ids", token_ids, I64, (-1,))[0]


def check_rms_norm(x: torch.Tensor, weight: torch.Tensor) -> tuple[int, int]:
    """-> (number of rows, D)."""
    dim = _tensor("x", x, F32, (-1, -1) if x.dim() != 3 else (-1, -1, -1))[-1]
    _tensor("weight", weight, F32, (dim,))
    if dim == 0:
        raise ValueError("x: expected at least one element in a row")
    return x.numel() // dim, dim


def check_add_rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[int, int]:
    """-> (M, D)."""
    shape = _tensor("x", x, F32, (-1, -1))
    _tensor("residual", residual, F32, shape)
    rows, dim = shape
    _tensor("weight", weight, F32, (dim,))
    if dim == 0:
        raise ValueError("x: expected at least one element in a row")
    return rows, dim


def check_rope(x: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[int, int, int, int]:
    """-> (M, H, D, max_positions)."""
    rows, heads, dim = _heads("x", x, (-1, -1, -1))
    if dim % 2:
        raise ValueError(f"x: expected an even head size, got {dim}")
    _tensor("positions", positions, I64, (rows,))
    table = _tensor("cos", cos, F32, (-1, dim // 2))
    _tensor("sin", sin, F32, table)
    return rows, heads, dim, table[0]


def check_silu_mul(gate_up: torch.Tensor) -> tuple[int, int]:
    """-> (M, F)."""
    rows, width = _tensor("gate_up", gate_up, F32, (-1, -1))
    if width % 2:
        raise ValueError(f"gate_up: expected an even width, got {width}")
    return rows, width // 2


def check_store_kv(
    key: torch.Tensor, value: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> tuple[int, int, int]:
    """-> (M, KVH * D, number of slots)."""
    cache = _tensor("k_cache", k_cache, F32, (-1, -1, -1, -1))
    _tensor("v_cache", v_cache, F32, cache)
    num_blocks, block_size, kv_heads, dim = cache
    rows, _, _ = _heads("key", key, (-1, kv_heads, dim))
    _heads("value", value, (rows, kv_heads, dim))
    _tensor("slot_mapping", slot_mapping, I64, (rows,))
    return rows, kv_heads * dim, num_blocks * block_size


def check_paged_attention(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
) -> tuple[int, int, int, int, int, int, int, int]:
    """-> (M, H, KVH, D, num_blocks, block_size, S, max_blocks)."""
    cache = _tensor("k_cache", k_cache, F32, (-1, -1, -1, -1))
    _tensor("v_cache", v_cache, F32, cache)
    num_blocks, block_size, kv_heads, dim = cache
    tokens, heads, _ = _heads("query", query, (-1, -1, dim))
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"query: expected a multiple of {kv_heads} heads, got {heads}")
    num_rows, max_blocks = _tensor("block_tables", block_tables, I32, (-1, -1))
    _tensor("rows", rows, I64, (tokens,))
    _tensor("positions", positions, I64, (tokens,))
    return tokens, heads, kv_heads, dim, num_blocks, block_size, num_rows, max_blocks


def check_logits(logits: torch.Tensor) -> tuple[int, int]:
    """-> (R, V)."""
    rows, vocab_size = _tensor("logits", logits, F32, (-1, -1))
    return rows, vocab_size


def check_draws(seeds: torch.Tensor, sample_index: torch.Tensor, positions: torch.Tensor) -> int:
    """-> R."""
    (rows,) = _tensor("seeds", seeds, I64, (-1,))
    _tensor("sample_index", sample_index, I32, (rows,))
    _tensor("positions", positions, I64, (rows,))
    return rows


def check_sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    sample_index: torch.Tensor,
    positions: torch.Tensor,
) -> tuple[int, int]:
    """-> (R, V)."""
    rows, vocab_size = check_logits(logits)
    for name, x in (("temperature", temperature), ("top_p", top_p), ("min_p", min_p)):
        _tensor(name, x, F32, (rows,))
    for name, x in (("seeds", seeds), ("positions", positions)):
        _tensor(name, x, I64, (rows,))
    for name, x in (("top_k", top_k), ("sample_index", sample_index)):
        _tensor(name, x, I32, (rows,))
    return rows, vocab_size


# What a bad value is called; the values themselves are checked by each backend, before it writes anything.


def token_id_error(token_ids: torch.Tensor, row: int, vocab_size: int) -> IndexError:
    return IndexError(f"row {row}: token id {int(token_ids[row])} is outside of [0, {vocab_size})")


def position_error(positions: torch.Tensor, row: int, max_positions: int) -> IndexError:
    return IndexError(f"row {row}: position {int(positions[row])} is outside of [0, {max_positions})")


def slot_error(slot_mapping: torch.Tensor, row: int, num_slots: int) -> IndexError:
    return IndexError(f"row {row}: slot {int(slot_mapping[row])} is outside of the cache's [0, {num_slots})")


def attention_error(rows: torch.Tensor, positions: torch.Tensor, row: int) -> IndexError:
    return IndexError(
        f"query {row} (block table row {int(rows[row])}, position {int(positions[row])}): that row, that position or one of "
        "its blocks is outside of the block table or the cache"
    )


def draw_error(positions: torch.Tensor, row: int) -> ValueError:
    return ValueError(f"row {row}: position {int(positions[row])} is outside of [0, 2^56)")


def sample_error(
    temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor, positions: torch.Tensor, row: int
) -> ValueError:
    return ValueError(
        f"row {row}: expected temperature >= 0 and finite, top_k >= 0, 0 < top_p <= 1, 0 <= min_p <= 1, 0 <= position < 2^56, "
        f"got temperature {float(temperature[row])}, top_k {int(top_k[row])}, top_p {float(top_p[row])}, "
        f"min_p {float(min_p[row])}, position {int(positions[row])}"
    )
