"""`config.json` of Hugging Face -> `ModelConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.checkpoint.config import SUPPORTED_ARCHITECTURES, Llama3RopeScaling, ModelConfig
from engine.checkpoint.fields import Fields
from engine.checkpoint.quantization import checkpoint_method

__all__ = ["check_shapes", "parse_hf_config"]

# MiMo is Qwen2 with modules that draft; their tensors are none of the decoder's.
ALIASES = {"MiMoForCausalLM": "Qwen2ForCausalLM"}
ROPE_TYPES = ("default", "llama3")
# What the configuration classes of Transformers assume where a file is silent.
MAX_POSITIONS = {"LlamaForCausalLM": 2048, "Qwen2ForCausalLM": 32768, "Qwen3ForCausalLM": 32768}


def parse_hf_config(config: Mapping[str, Any], generation_config: Mapping[str, Any] | None, source: str) -> ModelConfig:
    """See `ModelConfig.from_hf`."""
    fields = Fields(source, config)
    architecture = _architecture(fields)
    _refuse_unsupported(fields, architecture)
    is_llama, is_qwen3 = architecture == "LlamaForCausalLM", architecture == "Qwen3ForCausalLM"

    num_heads = fields.integer("num_attention_heads")
    hidden_size = fields.integer("hidden_size")
    head_dim = fields.integer("head_dim", 128 if is_qwen3 else max(hidden_size // num_heads, 1))
    # Llama's default, and what null means everywhere, is one key/value head for each head.
    default_kv_heads = num_heads if is_llama or "num_key_value_heads" in config else None
    attention_bias = architecture != "Qwen2ForCausalLM" and fields.flag("attention_bias")
    rope_theta, rope_scaling = _rope(fields)

    parsed = ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", default_kv_heads),
        head_dim=head_dim,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        max_position_embeddings=fields.integer("max_position_embeddings", MAX_POSITIONS[architecture]),
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        qkv_bias=attention_bias or architecture == "Qwen2ForCausalLM",
        output_bias=attention_bias,
        mlp_bias=is_llama and fields.flag("mlp_bias"),
        qk_norm=is_qwen3,
        bos_token_id=next(iter(fields.token_ids("bos_token_id")), None),
        eos_token_ids=_eos_token_ids(fields, generation_config),
        quantization=checkpoint_method(fields),
        num_mtp_layers=fields.integer("num_nextn_predict_layers") if fields.get("architectures") == ["MiMoForCausalLM"] else 0,
    )
    check_shapes(parsed, fields)
    return parsed


def check_shapes(config: ModelConfig, fields: Fields) -> None:
    """Relations between sizes that every supported architecture needs; `CheckpointError` otherwise."""
    if config.num_heads % config.num_kv_heads:
        raise fields.error(f"{config.num_heads} attention heads are not a multiple of {config.num_kv_heads} key/value heads")
    if config.head_dim % 2:
        raise fields.error(f"head_dim is {config.head_dim}, but rotary embeddings need an even one")


def _architecture(fields: Fields) -> str:
    names = fields.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise fields.error(
            f"'architectures' is {names!r}, expected a list of one name. Supported: {', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    name: str = ALIASES.get(names[0], names[0])
    if name not in SUPPORTED_ARCHITECTURES:
        raise fields.error(f"architecture {name!r} is not supported. Supported: {', '.join(SUPPORTED_ARCHITECTURES)}")
    return name


def _refuse_unsupported(fields: Fields, architecture: str) -> None:
    if fields.get("auto_map"):
        raise fields.error("'auto_map' asks for code from the checkpoint, which is never run. Use a converted checkpoint")
    activation = fields.get("hidden_act") or "silu"
    if activation != "silu":
        raise fields.error(f"hidden_act is {activation!r}, which is not supported. Supported: 'silu'")
    layer_types = fields.get("layer_types") or []
    # A Qwen config keeps the size of a window that `use_sliding_window` switches off; others have no such switch.
    has_switch = architecture.startswith("Qwen")
    sliding = fields.flag("use_sliding_window") if has_switch else fields.get("sliding_window") is not None
    if sliding or any(kind != "full_attention" for kind in layer_types):
        raise fields.error("sliding-window attention is not supported. Supported: full attention in every layer")


def _rope(fields: Fields) -> tuple[float, Llama3RopeScaling | None]:
    parameters = fields.get("rope_parameters")
    scaling = fields.get("rope_scaling")
    for key, value in (("rope_parameters", parameters), ("rope_scaling", scaling)):
        if value is not None and not isinstance(value, dict):
            raise fields.error(f"{key} is {value!r}, expected an object")
    merged = {**(scaling or {}), **(parameters or {})}
    if set(merged) == {"full_attention"}:  # one set of parameters for each kind of layer
        merged = merged["full_attention"] or {}
    rope = Fields(f"{fields.source}, rope parameters", merged)

    partial = rope.get("partial_rotary_factor") or fields.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise fields.error(f"partial_rotary_factor is {partial}, which is not supported. Supported: 1.0")
    theta = rope.number("rope_theta", fields.number("rope_theta", 10000.0))
    rope_type = rope.get("rope_type") or rope.get("type") or "default"
    if rope_type not in ROPE_TYPES:
        raise fields.error(f"rope type {rope_type!r} is not supported. Supported: {', '.join(ROPE_TYPES)}")
    if rope_type == "default":
        return theta, None
    llama3 = Llama3RopeScaling(
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_position_embeddings=rope.integer("original_max_position_embeddings"),
    )
    if llama3.high_freq_factor <= llama3.low_freq_factor:
        raise rope.error("high_freq_factor must be larger than low_freq_factor")
    return theta, llama3


def _eos_token_ids(fields: Fields, generation_config: Mapping[str, Any] | None) -> tuple[int, ...]:
    ids = fields.token_ids("eos_token_id")
    if generation_config is not None:
        source = str(fields.source).replace("config.json", "generation_config.json")
        ids += Fields(source, generation_config).token_ids("eos_token_id")
    return tuple(dict.fromkeys(ids))
