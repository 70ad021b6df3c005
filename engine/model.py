"""The decoder of the Llama, Qwen2 and Qwen3 families: one class, since they differ by a bias and a norm.

It is stateless but for its weights and its KV caches. A forward takes a ragged batch: every token says which sequence it
belongs to and at which position it stands, so prefill, decode and verify are the same call.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.checkpoint import Checkpoint, ModelConfig
from engine.rope import rope_tables
from kernels.interface import Kernels, PackedWeight

__all__ = ["Batch", "Decoder"]


@dataclass(frozen=True)
class Batch:
    """M tokens, in any order but for one rule: the tokens of a sequence come by rising position."""

    token_ids: torch.Tensor  # [M] int64
    positions: torch.Tensor  # [M] int64
    rows: torch.Tensor  # [M] int64, the row of `block_tables`
    slot_mapping: torch.Tensor  # [M] int64, where the KV entry of the token is written
    block_tables: torch.Tensor  # [max_num_seqs, max_blocks] int32


@dataclass(frozen=True)
class _Layer:
    input_norm: torch.Tensor
    qkv: PackedWeight  # query, key and value stacked, so that they are one call
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    output: PackedWeight
    output_bias: torch.Tensor | None
    post_norm: torch.Tensor
    gate_up: PackedWeight
    gate_up_bias: torch.Tensor | None
    down: PackedWeight
    down_bias: torch.Tensor | None


class Decoder:
    def __init__(
        self,
        checkpoint: Checkpoint,
        kernels: Kernels,
        *,
        dtype: str,
        max_model_len: int,
        num_kv_blocks: int,
        block_size: int,
    ) -> None:
        """dtype: "auto", "float32" or "bfloat16", how the weights are stored; the arithmetic is fp32."""
        self.config = config = checkpoint.config
        self.kernels = kernels
        loader = _WeightLoader(checkpoint, kernels, dtype)
        # The largest tensor first: while it is packed it exists twice, and that is the peak of loading.
        self.embedding = loader.packed("model.embed_tokens.weight")
        self.lm_head = self.embedding if config.tie_word_embeddings else loader.packed("lm_head.weight")
        self.layers = [loader.layer(index) for index in range(config.num_layers)]
        self.final_norm = loader.vector("model.norm.weight")
        self.cos, self.sin = rope_tables(config, max_model_len)
        shape = (num_kv_blocks, block_size, config.num_kv_heads, config.head_dim)
        self.kv_caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(config.num_layers)]
        self.scale = config.head_dim**-0.5

    def forward(self, batch: Batch) -> torch.Tensor:
        """Write the KV entries of the batch; returns the hidden states behind the last norm, [M, hidden_size] f32."""
        kernels, eps = self.kernels, self.config.rms_norm_eps
        residual = kernels.embedding(self.embedding, batch.token_ids)
        x = kernels.rms_norm(residual, self.layers[0].input_norm, eps)
        next_norms = [layer.input_norm for layer in self.layers[1:]] + [self.final_norm]
        for layer, (k_cache, v_cache), next_norm in zip(self.layers, self.kv_caches, next_norms, strict=True):
            attended = self._attend(layer, x, k_cache, v_cache, batch)
            x = kernels.linear(attended, layer.output, layer.output_bias)
            x = kernels.add_rms_norm(x, residual, layer.post_norm, eps)
            x = kernels.silu_mul(kernels.linear(x, layer.gate_up, layer.gate_up_bias))
            x = kernels.linear(x, layer.down, layer.down_bias)
            x = kernels.add_rms_norm(x, residual, next_norm, eps)
        return x

    def _attend(
        self, layer: _Layer, x: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, batch: Batch
    ) -> torch.Tensor:
        """[M, hidden_size] -> [M, num_heads * head_dim]"""
        config, kernels = self.config, self.kernels
        num_q, num_kv = config.num_heads, config.num_kv_heads
        qkv = kernels.linear(x, layer.qkv, layer.qkv_bias).view(-1, num_q + 2 * num_kv, config.head_dim)
        query, key, value = qkv[:, :num_q], qkv[:, num_q : num_q + num_kv], qkv[:, num_q + num_kv :]
        if layer.q_norm is not None and layer.k_norm is not None:
            query = kernels.rms_norm(query.contiguous(), layer.q_norm, config.rms_norm_eps)
            key = kernels.rms_norm(key.contiguous(), layer.k_norm, config.rms_norm_eps)
            kernels.rope(query, batch.positions, self.cos, self.sin)
            kernels.rope(key, batch.positions, self.cos, self.sin)
        else:
            kernels.rope(qkv[:, : num_q + num_kv], batch.positions, self.cos, self.sin)
        kernels.store_kv(key, value, k_cache, v_cache, batch.slot_mapping)
        attended = kernels.paged_attention(query, k_cache, v_cache, batch.block_tables, batch.rows, batch.positions, self.scale)
        return attended.view(len(attended), num_q * config.head_dim)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden_size] -> [R, vocab_size] f32"""
        return self.kernels.linear(hidden, self.lm_head)


class _WeightLoader:
    """Reads tensors by their Hugging Face names, one at a time, into the backend's layout."""

    def __init__(self, checkpoint: Checkpoint, kernels: Kernels, dtype: str) -> None:
        self._checkpoint = checkpoint
        self._kernels = kernels
        self._dtype = {"auto": None, "float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]

    def packed(self, *names: str) -> PackedWeight:
        """The named matrices stacked along their outputs."""
        tensors = [self._checkpoint.tensor(name) for name in names]
        weight = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        del tensors
        return self._kernels.pack(weight if self._dtype is None else weight.to(self._dtype))

    def vector(self, *names: str) -> torch.Tensor:
        return torch.cat([self._checkpoint.tensor(name).float() for name in names])

    def layer(self, index: int) -> _Layer:
        config: ModelConfig = self._checkpoint.config
        prefix = f"model.layers.{index}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        qkv = [f"{attention}{part}_proj" for part in "qkv"]
        gate_up = [f"{mlp}gate_proj", f"{mlp}up_proj"]

        def bias(wanted: bool, *modules: str) -> torch.Tensor | None:
            return self.vector(*(f"{module}.bias" for module in modules)) if wanted else None

        return _Layer(
            input_norm=self.vector(f"{prefix}input_layernorm.weight"),
            qkv=self.packed(*(f"{module}.weight" for module in qkv)),
            qkv_bias=bias(config.qkv_bias, *qkv),
            q_norm=self.vector(f"{attention}q_norm.weight") if config.qk_norm else None,
            k_norm=self.vector(f"{attention}k_norm.weight") if config.qk_norm else None,
            output=self.packed(f"{attention}o_proj.weight"),
            output_bias=bias(config.output_bias, f"{attention}o_proj"),
            post_norm=self.vector(f"{prefix}post_attention_layernorm.weight"),
            gate_up=self.packed(*(f"{module}.weight" for module in gate_up)),
            gate_up_bias=bias(config.mlp_bias, *gate_up),
            down=self.packed(f"{mlp}down_proj.weight"),
            down_bias=bias(config.mlp_bias, f"{mlp}down_proj"),
        )
