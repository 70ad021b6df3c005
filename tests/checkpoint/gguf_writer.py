"""Writes GGUF files the way llama.cpp's converter does, for tests that read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import torch

from engine.checkpoint import Checkpoint
from engine.checkpoint.gguf import LAYER_NAMES, ROOT_NAMES

FAMILIES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
GGUF_NAMES = {hf: name for name, hf in (ROOT_NAMES | LAYER_NAMES).items()}


def gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem in GGUF_NAMES:
        return f"{GGUF_NAMES[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[part]}.{kind}"


def permute(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """What llama.cpp's converter does to llama's query and key rows, element by element."""
    head_dim = weight.shape[0] // num_heads
    permuted = torch.empty_like(weight)
    for head in range(num_heads):
        for i in range(head_dim // 2):
            for j in range(2):
                permuted[head * head_dim + 2 * i + j] = weight[head * head_dim + j * (head_dim // 2) + i]
    return permuted


def write_gguf(
    path: Path,
    source: Checkpoint,
    store: Callable[[gguf.GGUFWriter, str, torch.Tensor], None] | None = None,
    extra: Callable[[gguf.GGUFWriter], Any] = lambda writer: None,
    family: str | None = None,
) -> Path:
    config = source.config
    writer = gguf.GGUFWriter(str(path), family or FAMILIES[config.architecture])
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_ids[0])
    extra(writer)
    for name in source.names():
        tensor = source.tensor(name)
        if config.architecture == "LlamaForCausalLM" and (".q_proj." in name or ".k_proj." in name):
            tensor = permute(tensor, config.num_heads if ".q_proj." in name else config.num_kv_heads)
        if store is None:
            writer.add_tensor(gguf_name(name), tensor.numpy())
        else:
            store(writer, gguf_name(name), tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
