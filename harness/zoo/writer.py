"""Writes checkpoints in Hugging Face's layout, tensor by tensor, so that a large model needs little memory."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from engine.checkpoint import ModelConfig

__all__ = ["hf_config", "hf_generation_config", "write_json", "write_safetensors"]

MODEL_TYPES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16"}


def write_safetensors(
    path: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Iterable[torch.Tensor], dtype: torch.dtype = torch.float32
) -> None:
    """Write one safetensors file. `tensors` yields one tensor of `dtype` for each entry of `shapes`, in that order.

    The bytes depend on the arguments alone. `ValueError` if a tensor does not fit its entry.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # the data starts aligned
    with path.open("wb") as stream:
        stream.write(len(encoded).to_bytes(8, "little"))
        stream.write(encoded)
        for (name, shape), tensor in zip(shapes.items(), tensors, strict=True):
            if tuple(tensor.shape) != shape or tensor.dtype != dtype:
                raise ValueError(f"{name}: {tensor.dtype} {list(tensor.shape)} instead of {dtype} {list(shape)}")
            stream.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)


def hf_config(config: ModelConfig, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """The contents of `config.json` for `config`, readable by Transformers 4 and 5. Plain RoPE only."""
    if config.rope_scaling is not None:
        raise ValueError("a config with scaled rotary embeddings cannot be written")
    values: dict[str, Any] = {
        "architectures": [config.architecture],
        "model_type": MODEL_TYPES[config.architecture],
        "dtype": str(dtype).removeprefix("torch."),
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        **_token_ids(config),
    }
    if config.architecture != "Qwen2ForCausalLM":
        values["attention_bias"] = config.qkv_bias
    if config.architecture == "LlamaForCausalLM":
        values["mlp_bias"] = config.mlp_bias
    else:
        values["use_sliding_window"] = False
    return values


def hf_generation_config(config: ModelConfig) -> dict[str, Any]:
    """The contents of `generation_config.json`: the special ids, and greedy decoding where nothing else is asked for."""
    return _token_ids(config)


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _token_ids(config: ModelConfig) -> dict[str, Any]:
    eos = config.eos_token_ids
    return {"bos_token_id": config.bos_token_id, "eos_token_id": eos[0] if len(eos) == 1 else list(eos)}
