"""One layer of a decoder, and how its weights get from a checkpoint into a backend's layout.

The target is a stack of these; drafters of one layer (EAGLE, MTP) and of a few (DFlash) are made of the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from engine.checkpoint import ModelConfig
from engine.checkpoint.quantization import QuantizedTensor, quantized
from kernels.interface import Kernels, PackedWeight

__all__ = ["Batch", "KVCache", "Layer", "Rope", "TensorSource", "WeightLoader", "new_kv_cache"]

KVCache = tuple[torch.Tensor, torch.Tensor]
"""Keys and values, each [num_blocks, block_size, num_kv_heads, head_dim] f32."""

Rope = tuple[torch.Tensor, torch.Tensor]
"""(cos, sin), see `rope_tables`."""


def new_kv_cache(config: ModelConfig, num_blocks: int, block_size: int) -> KVCache:
    shape = (num_blocks, block_size, config.num_kv_heads, config.head_dim)
    return torch.zeros(shape), torch.zeros(shape)


@dataclass(frozen=True)
class Batch:
    """M tokens, in any order but for one rule: the tokens of a sequence come by rising position."""

    token_ids: torch.Tensor  # [M] int64
    positions: torch.Tensor  # [M] int64
    rows: torch.Tensor  # [M] int64, the row of `block_tables`
    slot_mapping: torch.Tensor  # [M] int64, where the KV entry of the token is written
    block_tables: torch.Tensor  # [max_num_seqs, max_blocks] int32
    visible: torch.Tensor | None = None  # [M] int64, each sees the positions up to this; None: up to its own


class TensorSource(Protocol):
    def tensor(self, name: str) -> torch.Tensor:
        """One tensor by its name, float32 or bfloat16."""

    def quantized(self, name: str) -> QuantizedTensor | None:
        """The same, where the source holds it quantized."""


class WeightLoader:
    """Reads tensors by their names, one at a time, into the backend's layout. dtype, quantization: see `Decoder`."""

    def __init__(self, source: TensorSource, kernels: Kernels, dtype: str, quantization: str | None = None) -> None:
        self._source = source
        self._kernels = kernels
        self._quantization = quantization
        self._dtype = {"auto": None, "float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]

    def packed(self, *names: str) -> PackedWeight:
        """The named matrices stacked along their outputs."""
        tensors = [self._source.tensor(name) for name in names]
        weight = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        del tensors
        return self._kernels.pack(weight if self._dtype is None else weight.to(self._dtype))

    def layer_matrix(self, *names: str) -> PackedWeight:
        """The same for the matrices of a layer, which may be quantized, by the source or by `quantization`."""
        parts = []
        for name in names:
            part = self._source.quantized(name)
            if part is None and self._quantization is not None:
                part = quantized(self._source.tensor(name), self._quantization)
            if part is None:  # also where only some are quantized: all of them widened
                return self.packed(*names)
            parts.append(part)
        if len({part.values.dtype for part in parts}) > 1 or len({part.scales.shape[1] for part in parts}) > 1:
            return self._kernels.pack(torch.cat([part.dequantized() for part in parts]))
        scales = torch.cat([part.scales for part in parts])
        return self._kernels.pack(torch.cat([part.values for part in parts]), scales)

    def vector(self, *names: str) -> torch.Tensor:
        return torch.cat([self._source.tensor(name).float() for name in names])


class Layer:
    """Attention and MLP with what is added around them; the norms between layers belong to whoever stacks them."""

    def __init__(self, loader: WeightLoader, prefix: str, config: ModelConfig) -> None:
        """prefix: of the tensors' names, such as `model.layers.3.`."""
        self.config = config
        self.scale = config.head_dim**-0.5
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        qkv = [f"{attention}{part}_proj" for part in "qkv"]
        gate_up = [f"{mlp}gate_proj", f"{mlp}up_proj"]

        def bias(wanted: bool, *modules: str) -> torch.Tensor | None:
            return loader.vector(*(f"{module}.bias" for module in modules)) if wanted else None

        self.qkv = loader.layer_matrix(*(f"{module}.weight" for module in qkv))  # stacked, so that they are one call
        self.qkv_bias = bias(config.qkv_bias, *qkv)
        self.q_norm = loader.vector(f"{attention}q_norm.weight") if config.qk_norm else None
        self.k_norm = loader.vector(f"{attention}k_norm.weight") if config.qk_norm else None
        self.output = loader.layer_matrix(f"{attention}o_proj.weight")
        self.output_bias = bias(config.output_bias, f"{attention}o_proj")
        self.post_norm = loader.vector(f"{prefix}post_attention_layernorm.weight")
        self.gate_up = loader.layer_matrix(*(f"{module}.weight" for module in gate_up))
        self.gate_up_bias = bias(config.mlp_bias, *gate_up)
        self.down = loader.layer_matrix(f"{mlp}down_proj.weight")
        self.down_bias = bias(config.mlp_bias, f"{mlp}down_proj")

    def forward(
        self, kernels: Kernels, x: torch.Tensor, residual: torch.Tensor, cache: KVCache, rope: Rope, batch: Batch
    ) -> torch.Tensor:
        """x [M, any]: what the attention reads; residual [M, hidden_size] gets the attention's output added, in place.

        Returns the MLP's output [M, hidden_size], which is still to be added to `residual`.
        """
        x = kernels.linear(self._attend(kernels, x, cache, rope, batch), self.output, self.output_bias)
        x = kernels.add_rms_norm(x, residual, self.post_norm, self.config.rms_norm_eps)
        x = kernels.silu_mul(kernels.linear(x, self.gate_up, self.gate_up_bias))
        return kernels.linear(x, self.down, self.down_bias)

    def _attend(self, kernels: Kernels, x: torch.Tensor, cache: KVCache, rope: Rope, batch: Batch) -> torch.Tensor:
        """[M, any] -> [M, num_heads * head_dim]"""
        config = self.config
        num_q, num_kv = config.num_heads, config.num_kv_heads
        qkv = kernels.linear(x, self.qkv, self.qkv_bias).view(-1, num_q + 2 * num_kv, config.head_dim)
        query, key, value = qkv[:, :num_q], qkv[:, num_q : num_q + num_kv], qkv[:, num_q + num_kv :]
        if self.q_norm is not None and self.k_norm is not None:
            query = kernels.rms_norm(query.contiguous(), self.q_norm, config.rms_norm_eps)
            key = kernels.rms_norm(key.contiguous(), self.k_norm, config.rms_norm_eps)
            kernels.rope(query, batch.positions, *rope)
            kernels.rope(key, batch.positions, *rope)
        else:
            kernels.rope(qkv[:, : num_q + num_kv], batch.positions, *rope)
        kernels.store_kv(key, value, *cache, batch.slot_mapping)
        visible = batch.positions if batch.visible is None else batch.visible
        attended = kernels.paged_attention(query, *cache, batch.block_tables, batch.rows, visible, self.scale)
        return attended.view(len(attended), num_q * config.head_dim)
