"""The native backend: the C++ of `csrc/`, built once for each instruction set and called through ctypes without the GIL."""

from __future__ import annotations

import ctypes
import functools
import weakref
from pathlib import Path
from typing import Any

import torch

from kernels import checks
from kernels.interface import DrawPurpose, Kernels, PackedWeight
from kernels.source_digest import SOURCE_DIR, source_digest

__all__ = ["ISAS", "NativeKernels", "NativeUnavailableError", "library_path", "supported_isas"]

ISAS = ("avx2", "portable")  # the best first
STORAGES = (torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn)  # `Storage` of `csrc/linear.cpp`

_PTR, _INT, _I64, _F32 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float

# name -> (result, arguments); the first argument of all but the first four is the instance.
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "ls_create": (_PTR, [_INT]),
    "ls_source_digest": (ctypes.c_char_p, []),
    "ls_cpu_has_avx2": (_INT, []),
    "ls_philox": (None, [_PTR] * 3),
    "ls_destroy": (None, [_PTR]),
    "ls_pack": (None, [_PTR, _PTR, _INT, _I64, _I64, _I64, _I64, _PTR]),
    "ls_linear": (None, [_PTR, _PTR, _PTR, _INT, _PTR, _I64, _PTR, _PTR, _I64, _I64, _I64]),
    "ls_embedding": (_I64, [_PTR, _PTR, _INT, _PTR, _I64, _PTR, _PTR, _I64, _I64, _I64]),
    "ls_rms_norm": (None, [_PTR, _PTR, _PTR, _PTR, _I64, _I64, _F32]),
    "ls_add_rms_norm": (None, [_PTR, _PTR, _PTR, _PTR, _PTR, _I64, _I64, _F32]),
    "ls_rope": (_I64, [_PTR, _PTR, _I64, _PTR, _PTR, _PTR, _I64, _I64, _I64, _I64]),
    "ls_silu_mul": (None, [_PTR, _PTR, _PTR, _I64, _I64]),
    "ls_store_kv": (_I64, [_PTR, _PTR, _I64, _PTR, _I64, _PTR, _PTR, _PTR, _I64, _I64, _I64]),
    "ls_paged_attention": (_I64, [_PTR, _PTR, _I64, _PTR, _PTR, _PTR, _PTR, _PTR, _F32, _PTR] + [_I64] * 8),
    "ls_argmax": (None, [_PTR, _PTR, _PTR, _I64, _I64]),
    "ls_sample": (_I64, [_PTR] * 9 + [_INT, _PTR, _I64, _I64]),
    "ls_gumbel": (_I64, [_PTR] * 4 + [_INT, _PTR, _I64, _I64]),
    "ls_log_sum_exp": (None, [_PTR, _PTR, _PTR, _I64, _I64]),
}


class NativeUnavailableError(RuntimeError):
    """The library is not built, is built from other sources, or this CPU cannot run it."""


HOW_TO_BUILD = "with a C++ compiler on the PATH run `pip install .` or, in a checkout, `python setup.py build_ext --inplace`"


def library_path(isa: str) -> Path:
    return Path(__file__).with_name(f"_native_{isa}.so")


@functools.cache
def load_library(isa: str) -> ctypes.CDLL:
    """The library for `isa`; loaded once in a process, it has no state of its own."""
    path = library_path(isa)
    if not path.exists():
        raise NativeUnavailableError(f"the native-{isa} kernels are not built ({path.name} is missing); {HOW_TO_BUILD}")
    if isa == "avx2" and not load_library("portable").ls_cpu_has_avx2():
        raise NativeUnavailableError("the native-avx2 kernels need a CPU with AVX2 and FMA")
    library = ctypes.CDLL(str(path))
    try:
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        digest = library.ls_source_digest().decode()
    except AttributeError as error:  # a function that this library does not have yet, or no more
        digest = str(error)
    if SOURCE_DIR.exists() and digest != source_digest():
        raise NativeUnavailableError(f"{path.name} was built from other sources than those in `csrc/`; {HOW_TO_BUILD}")
    return library


def supported_isas() -> list[str]:
    """The instruction sets whose library is built and runs here, the best first."""
    found = []
    for isa in ISAS:
        try:
            load_library(isa)
        except NativeUnavailableError:
            continue
        found.append(isa)
    return found


class NativePackedWeight(PackedWeight):
    """Panels of 16 outputs, [ceil(N / 16)][K][16], and their scales, [ceil(N / 16)][blocks][16] (`csrc/linear.cpp`)."""

    def __init__(self, data: torch.Tensor, scales: torch.Tensor | None, out_features: int, in_features: int) -> None:
        self.data, self.scales = data, scales
        self.out_features = out_features
        self.in_features = in_features
        self.dtype = data.dtype
        self.nbytes = data.nbytes + (0 if scales is None else scales.nbytes)
        self.pointer = data.data_ptr()
        self.storage = STORAGES.index(data.dtype)
        no_scales = (None, 0)
        self.arguments = (self.pointer, self.storage, *(no_scales if scales is None else (scales.data_ptr(), scales.shape[1])))


class NativeKernels(Kernels):
    """`isa` is "avx2" or "portable"; both give the bits of the reference. Calls on one instance run one after the other."""

    def __init__(self, isa: str, num_threads: int = 1) -> None:
        if num_threads < 1:
            raise ValueError(f"num_threads: expected at least 1, got {num_threads}")
        self._lib = load_library(isa)
        self.name = f"native-{isa}"
        self.num_threads = num_threads
        self._handle = self._lib.ls_create(num_threads)
        if self._handle is None:
            raise ValueError(f"num_threads={num_threads}: the system does not give that many threads")
        # Not at exit: a daemon thread may still be inside of a call then, and the process takes the threads with it.
        weakref.finalize(self, self._lib.ls_destroy, self._handle).atexit = False

    def pack(self, weight: torch.Tensor, scales: torch.Tensor | None = None) -> PackedWeight:
        n, k = checks.check_pack(weight, scales)
        panels = -(-n // 16)
        if scales is not None:
            padded = torch.nn.functional.pad(scales, (0, 0, 0, panels * 16 - n))
            scales = padded.view(panels, 16, -1).transpose(1, 2).contiguous()
        packed = NativePackedWeight(weight.new_empty(panels, k, 16), scales, n, k)
        self._lib.ls_pack(self._handle, weight.data_ptr(), packed.storage, n, k, *weight.stride(), packed.pointer)
        return packed

    def linear(self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
        weight = _own(weight)
        m = checks.check_linear(x, weight, bias)
        n, k = weight.out_features, weight.in_features
        out = x.new_empty(m, n)
        bias_pointer = None if bias is None else bias.data_ptr()
        self._lib.ls_linear(self._handle, x.data_ptr(), *weight.arguments, bias_pointer, out.data_ptr(), m, n, k)
        return out

    def embedding(self, weight: PackedWeight, token_ids: torch.Tensor) -> torch.Tensor:
        weight = _own(weight)
        m = checks.check_embedding(token_ids)
        n, k = weight.out_features, weight.in_features
        out = torch.empty((m, k), dtype=torch.float32, device=token_ids.device)
        bad = self._lib.ls_embedding(self._handle, *weight.arguments, token_ids.data_ptr(), out.data_ptr(), m, n, k)
        if bad:
            raise checks.token_id_error(token_ids, bad - 1, n)
        return out

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        m, d = checks.check_rms_norm(x, weight)
        out = torch.empty_like(x)
        self._lib.ls_rms_norm(self._handle, x.data_ptr(), weight.data_ptr(), out.data_ptr(), m, d, eps)
        return out

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        m, d = checks.check_add_rms_norm(x, residual, weight)
        out = x.new_empty(m, d)
        self._lib.ls_add_rms_norm(self._handle, x.data_ptr(), residual.data_ptr(), weight.data_ptr(), out.data_ptr(), m, d, eps)
        return out

    def rope(self, x: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        m, heads, d, max_positions = checks.check_rope(x, positions, cos, sin)
        pointers = (positions.data_ptr(), cos.data_ptr(), sin.data_ptr())
        bad = self._lib.ls_rope(self._handle, x.data_ptr(), x.stride(0), *pointers, m, heads, d, max_positions)
        if bad:
            raise checks.position_error(positions, bad - 1, max_positions)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        m, f = checks.check_silu_mul(gate_up)
        out = gate_up.new_empty(m, f)
        self._lib.ls_silu_mul(self._handle, gate_up.data_ptr(), out.data_ptr(), m, f)
        return out

    def store_kv(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        m, width, num_slots = checks.check_store_kv(key, value, k_cache, v_cache, slot_mapping)
        rows = (key.data_ptr(), key.stride(0), value.data_ptr(), value.stride(0))
        pointers = (k_cache.data_ptr(), v_cache.data_ptr(), slot_mapping.data_ptr())
        bad = self._lib.ls_store_kv(self._handle, *rows, *pointers, m, width, num_slots)
        if bad:
            raise checks.slot_error(slot_mapping, bad - 1, num_slots)

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
        m, heads, _, d, *_ = sizes
        out = query.new_empty(m, heads, d)
        bad = self._lib.ls_paged_attention(
            self._handle,
            query.data_ptr(),
            query.stride(0),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            block_tables.data_ptr(),
            rows.data_ptr(),
            positions.data_ptr(),
            scale,
            out.data_ptr(),
            *sizes,
        )
        if bad:
            raise checks.attention_error(rows, positions, bad - 1)
        return out

    def argmax(self, logits: torch.Tensor) -> torch.Tensor:
        r, v = checks.check_logits(logits)
        out = torch.empty(r, dtype=torch.int64, device=logits.device)
        self._lib.ls_argmax(self._handle, logits.data_ptr(), out.data_ptr(), r, v)
        return out

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
        out = torch.empty(r, dtype=torch.int64, device=logits.device)
        inputs = (logits, temperature, top_k, top_p, min_p, seeds, sample_index, positions)
        bad = self._lib.ls_sample(self._handle, *[x.data_ptr() for x in inputs], purpose, out.data_ptr(), r, v)
        if bad:
            raise checks.sample_error(temperature, top_k, top_p, min_p, positions, bad - 1)
        return out

    def gumbel(
        self, seeds: torch.Tensor, sample_index: torch.Tensor, positions: torch.Tensor, purpose: DrawPurpose, vocab_size: int
    ) -> torch.Tensor:
        r = checks.check_draws(seeds, sample_index, positions)
        out = torch.empty((r, vocab_size), dtype=torch.float64, device=seeds.device)
        pointers = (seeds.data_ptr(), sample_index.data_ptr(), positions.data_ptr())
        bad = self._lib.ls_gumbel(self._handle, *pointers, purpose, out.data_ptr(), r, vocab_size)
        if bad:
            raise checks.draw_error(positions, bad - 1)
        return out

    def log_sum_exp(self, logits: torch.Tensor) -> torch.Tensor:
        r, v = checks.check_logits(logits)
        out = torch.empty(r, dtype=torch.float64, device=logits.device)
        self._lib.ls_log_sum_exp(self._handle, logits.data_ptr(), out.data_ptr(), r, v)
        return out


def _own(weight: PackedWeight) -> NativePackedWeight:
    if not isinstance(weight, NativePackedWeight):
        raise ValueError(f"weight: packed by another backend ({type(weight).__name__})")
    return weight
