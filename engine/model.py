"""The decoder of the Llama, Qwen2 and Qwen3 families: one class, since they differ by a bias and a norm.

It is stateless but for its weights and its KV caches. A forward takes a ragged batch: every token says which sequence it
belongs to and at which position it stands, so prefill, decode and verify are the same call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from engine.checkpoint import Checkpoint
from engine.checkpoint.quantization import agreed_method
from engine.layer import Batch, Layer, WeightLoader, new_kv_cache
from engine.rope import rope_tables
from kernels.interface import Kernels

__all__ = ["Batch", "Decoder", "Hidden"]


class Hidden(NamedTuple):
    normed: torch.Tensor  # behind the last norm: what the LM head reads, [M, hidden_size] f32
    layers: tuple[torch.Tensor, ...]  # those that were asked for, each [M, hidden_size] f32


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
        quantization: str | None = None,
    ) -> None:
        """dtype: "auto", "float32" or "bfloat16", how the weights are stored; the arithmetic is fp32.

        quantization: None, "int8" or "fp8", which the layers' matrices are rounded to, with a scale for each row. Those that a
        checkpoint has quantized stay as they are; `ValueError` if that is to another format.
        """
        self.config = config = checkpoint.config
        self.kernels = kernels
        quantization = agreed_method(quantization, config.quantization, checkpoint.path)
        loader = WeightLoader(checkpoint, kernels, dtype, quantization)
        # The largest tensor first: while it is packed it exists twice, and that is the peak of loading.
        self.embedding = loader.packed("model.embed_tokens.weight")
        self.lm_head = self.embedding if config.tie_word_embeddings else loader.packed("lm_head.weight")
        prefixes = [f"model.layers.{index}." for index in range(config.num_layers)]
        self.layers = [Layer(loader, prefix, config) for prefix in prefixes]
        # A layer is given its input normed, so the norm in front of each, and the one behind the last, stand in one list.
        self.norms = [loader.vector(f"{prefix}input_layernorm.weight") for prefix in prefixes]
        self.norms.append(loader.vector("model.norm.weight"))
        self.rope = rope_tables(config, max_model_len)
        self.kv_caches = [new_kv_cache(config, num_kv_blocks, block_size) for _ in range(config.num_layers)]

    def forward(self, batch: Batch, layer_ids: Sequence[int] = ()) -> Hidden:
        """Write the KV entries of the batch; returns the hidden states.

        layer_ids: which states before the last norm are wanted too: 0 is the embedding, i the output of layer i - 1.
        """
        kernels, eps = self.kernels, self.config.rms_norm_eps
        residual = kernels.embedding(self.embedding, batch.token_ids)
        wanted = {0: residual.clone()} if 0 in layer_ids else {}
        x = kernels.rms_norm(residual, self.norms[0], eps)
        for index, (layer, cache) in enumerate(zip(self.layers, self.kv_caches, strict=True), start=1):
            x = layer.forward(kernels, x, residual, cache, self.rope, batch)
            x = kernels.add_rms_norm(x, residual, self.norms[index], eps)
            if index in layer_ids:
                wanted[index] = residual.clone()  # the next layer goes on adding to it
        return Hidden(x, tuple(wanted[index] for index in layer_ids))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden_size] -> [R, vocab_size] f32"""
        return self.kernels.linear(hidden, self.lm_head)
