"""A GGUF file read as a checkpoint: Hugging Face names, and query/key rows in Hugging Face's order."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.checkpoint.config import ModelConfig
from engine.checkpoint.weights import Checkpoint, Shape, check_tensors, expected_tensors, file_fingerprint
from engine.errors import CheckpointError

__all__ = ["GgufCheckpoint", "hf_name", "unpermute_rope_rows"]

ROOT_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True)
class PackedEntry:
    """Where one packed tensor lies and how to unpack it."""

    kind: Any  # gguf.GGMLQuantizationType
    shape: Shape  # unpacked
    packed_shape: Shape
    packed_dtype: np.dtype[Any]
    offset: int


class GgufCheckpoint(Checkpoint):
    """See `Checkpoint`. Every type that the gguf package can dequantize is read; bfloat16 stays bfloat16."""

    def __init__(self, path: Path) -> None:
        self.path = path
        reader = _open_reader(path)
        self.config = ModelConfig.from_gguf(reader, source=path)
        self._header_bytes = int(reader.data_offset)
        self._entries: dict[str, PackedEntry] = {}
        for tensor in reader.tensors:
            shape = tuple(int(n) for n in reversed(tensor.shape))
            entry = PackedEntry(tensor.tensor_type, shape, tensor.data.shape, tensor.data.dtype, int(tensor.data_offset))
            self._entries[hf_name(tensor.name)] = entry
        check_tensors(self.config, {name: (path, entry.shape) for name, entry in self._entries.items()}, path)

    def names(self) -> list[str]:
        return list(expected_tensors(self.config))

    def tensor(self, name: str) -> torch.Tensor:
        entry = self._entries[name]
        unpacked = _unpack(self._read(name, entry), entry, f"{self.path}: tensor {name!r}")
        if self.config.architecture == "LlamaForCausalLM":
            if ".q_proj." in name:
                return unpermute_rope_rows(unpacked, self.config.num_heads)
            if ".k_proj." in name:
                return unpermute_rope_rows(unpacked, self.config.num_kv_heads)
        return unpacked

    @functools.cached_property
    def fingerprint(self) -> str:
        return file_fingerprint(self.config, {self.path: self._header_bytes})

    def _read(self, name: str, entry: PackedEntry) -> np.ndarray[Any, Any]:
        count = math.prod(entry.packed_shape)
        packed = np.fromfile(self.path, dtype=entry.packed_dtype, count=count, offset=entry.offset)
        if packed.size != count:
            raise CheckpointError(f"{self.path}: ends inside of tensor {name!r}; the file has changed since it was opened")
        return packed.reshape(entry.packed_shape)


def hf_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; a name without a counterpart stays as it is."""
    parts = name.split(".")
    if len(parts) == 2 and parts[0] in ROOT_NAMES:
        return f"{ROOT_NAMES[parts[0]]}.{parts[1]}"
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER_NAMES:
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.{parts[3]}"
    return name


def unpermute_rope_rows(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows of a llama query or key projection (or its bias), from rotation pairs side by side to halves apart.

    GGUF keeps row 2i + j of a head where Hugging Face has row j * head_dim / 2 + i.
    """
    half = weight.shape[0] // num_heads // 2
    return weight.view(num_heads, half, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape).contiguous()


def _open_reader(path: Path) -> Any:
    from gguf import GGUFReader

    if not path.is_file():
        raise CheckpointError(f"{path}: is missing")
    try:
        return GGUFReader(path)
    except Exception as error:  # whatever numpy raises for a damaged file
        raise CheckpointError(f"{path}: not a whole GGUF file ({error}). Fetch it again") from error


def _unpack(packed: np.ndarray[Any, Any], entry: PackedEntry, what: str) -> torch.Tensor:
    from gguf import GGMLQuantizationType, quants

    if entry.kind == GGMLQuantizationType.BF16:
        return torch.from_numpy(packed.view(np.int16)).view(torch.bfloat16).reshape(entry.shape)
    try:
        values = quants.dequantize(packed, entry.kind)
    except NotImplementedError as error:
        raise CheckpointError(f"{what} is stored as {entry.kind.name}, which the gguf package cannot read") from error
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).reshape(entry.shape)
