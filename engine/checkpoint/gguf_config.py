"""Metadata of a GGUF file -> `ModelConfig`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from engine.checkpoint.config import ModelConfig
from engine.checkpoint.fields import Fields
from engine.checkpoint.hf_config import check_shapes

if TYPE_CHECKING:
    from gguf import GGUFReader

__all__ = ["GGUF_ARCHITECTURES", "parse_gguf_config"]

GGUF_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def parse_gguf_config(reader: GGUFReader, source: str) -> ModelConfig:
    """See `ModelConfig.from_gguf`."""
    # The vocabulary and its merges are large and not wanted here.
    values = {name: _plain(field.contents()) for name, field in reader.fields.items() if not name.startswith("tokenizer.ggml.")}
    for name in ("bos_token_id", "eos_token_id", "eot_token_id"):
        if (field := reader.fields.get(f"tokenizer.ggml.{name}")) is not None:
            values[name] = _plain(field.contents())
    family = values.get("general.architecture")
    if family not in GGUF_ARCHITECTURES:
        raise Fields(source, values).error(
            f"GGUF architecture {family!r} is not supported. Supported: {', '.join(GGUF_ARCHITECTURES)}"
        )
    shapes = {tensor.name: tuple(int(n) for n in reversed(tensor.shape)) for tensor in reader.tensors}
    prefix = f"{family}."
    fields = Fields(source, {name.removeprefix(prefix): value for name, value in values.items()})
    _refuse_unsupported(fields, shapes)

    num_heads = fields.integer("attention.head_count")
    hidden_size = fields.integer("embedding_length")
    head_dim = fields.integer("attention.key_length", fields.integer("rope.dimension_count", max(hidden_size // num_heads, 1)))
    if fields.integer("rope.dimension_count", head_dim) != head_dim:
        raise fields.error("rotary embeddings over a part of the head are not supported. Supported: the whole head")
    config = ModelConfig(
        architecture=GGUF_ARCHITECTURES[family],
        vocab_size=shapes["token_embd.weight"][0] if "token_embd.weight" in shapes else fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=fields.integer("block_count"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope_theta=fields.number("rope.freq_base", 10000.0),
        rope_scaling=None,
        max_position_embeddings=fields.integer("context_length"),
        tie_word_embeddings="output.weight" not in shapes,
        qkv_bias="blk.0.attn_q.bias" in shapes,
        output_bias="blk.0.attn_output.bias" in shapes,
        mlp_bias="blk.0.ffn_gate.bias" in shapes,
        qk_norm="blk.0.attn_q_norm.weight" in shapes,
        bos_token_id=next(iter(fields.token_ids("bos_token_id")), None),
        eos_token_ids=tuple(dict.fromkeys(fields.token_ids("eos_token_id") + fields.token_ids("eot_token_id"))),
    )
    check_shapes(config, fields)
    return config


def _refuse_unsupported(fields: Fields, shapes: dict[str, tuple[int, ...]]) -> None:
    scaling = fields.get("rope.scaling.type")
    if "rope_freqs.weight" in shapes or scaling not in (None, "none") or fields.get("rope.scale_linear") not in (None, 1.0):
        raise fields.error(
            "scaled rotary embeddings in a GGUF file are not supported. "
            "Supported: plain ones, or the same model as safetensors with rope_type 'llama3'"
        )
    if fields.get("attention.sliding_window"):
        raise fields.error("sliding-window attention is not supported. Supported: full attention in every layer")
    if fields.get("expert_count"):
        raise fields.error("mixtures of experts are not supported. Supported: dense models")


def _plain(value: Any) -> Any:
    """GGUF stores float32; `1e-05` is written as such and not as 9.999999747378752e-06 (the float32 is the same)."""
    return float(str(np.float32(value))) if isinstance(value, float) else value
