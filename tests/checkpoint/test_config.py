"""`ModelConfig.from_hf`: spellings, defaults, and a clear refusal of what we would compute wrongly."""

from __future__ import annotations

from typing import Any

import pytest

from engine.checkpoint import CheckpointError, Llama3RopeScaling, ModelConfig

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}


def parse(generation: dict[str, Any] | None = None, **changes: Any) -> ModelConfig:
    return ModelConfig.from_hf({**LLAMA, **changes}, generation, source="models/x/config.json")


def test_defaults_are_those_of_transformers() -> None:
    config = parse()
    assert (config.head_dim, config.rms_norm_eps, config.rope_theta, config.max_position_embeddings) == (
        16,
        1e-6,
        10000.0,
        2048,
    )
    assert (config.tie_word_embeddings, config.qkv_bias, config.mlp_bias, config.qk_norm) == (False, False, False, False)
    assert (config.bos_token_id, config.eos_token_ids) == (None, ())
    assert parse(num_key_value_heads=None).num_kv_heads == 4
    assert parse(architectures=["Qwen3ForCausalLM"]).head_dim == 128


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3}},
        {"rope_parameters": {"full_attention": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3}}},
    ],
    ids=["transformers-4", "older-type-key", "transformers-5", "per-layer-kind"],
)
def test_all_spellings_of_the_rotary_parameters_mean_the_same(spelling: dict[str, Any]) -> None:
    config = parse(**spelling)
    assert config.rope_theta == 5e5
    assert config.rope_scaling == Llama3RopeScaling(8.0, 1.0, 4.0, 32)


def test_end_tokens_of_both_files_are_united() -> None:
    assert parse({"eos_token_id": [7, 5]}, eos_token_id=5).eos_token_ids == (5, 7)
    assert parse({"eos_token_id": 7}).eos_token_ids == (7,)
    assert parse(None, eos_token_id=[3, 4]).eos_token_ids == (3, 4)


def test_a_window_that_is_switched_off_is_no_window() -> None:
    config = parse(
        architectures=["Qwen2ForCausalLM"],
        use_sliding_window=False,
        sliding_window=4096,
        layer_types=["full_attention"] * 2,
    )
    assert config.qkv_bias
    assert not config.output_bias


QWEN2 = {"architectures": ["Qwen2ForCausalLM"]}
REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "architecture": (
        {"architectures": ["GemmaForCausalLM"]},
        ["'GemmaForCausalLM'", "LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"],
    ),
    "no-architecture": ({"architectures": None}, ["architectures", "LlamaForCausalLM"]),
    "remote-code": ({"auto_map": {"AutoModelForCausalLM": "modeling_x.X"}}, ["auto_map", "never run"]),
    "quantized": ({"quantization_config": {"quant_method": "gptq"}}, ["gptq", "bfloat16"]),
    "activation": ({"hidden_act": "gelu"}, ["'gelu'", "'silu'"]),
    "rope-type": ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ["'yarn'", "default, llama3"]),
    "rope-incomplete": ({"rope_parameters": {"rope_type": "llama3"}}, ["factor", "missing"]),
    "rope-order": ({"rope_parameters": {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 4.0}}, ["high_freq_factor"]),
    "rope-no-object": ({"rope_parameters": 3}, ["rope_parameters", "object"]),
    "partial-rope": ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor", "1.0"]),
    "window-switched-on": ({**QWEN2, "use_sliding_window": True}, ["sliding-window", "full attention"]),
    "window": ({"sliding_window": 128}, ["sliding-window"]),
    "layer-types": ({"layer_types": ["full_attention", "sliding_attention"]}, ["sliding-window"]),
    "heads": ({"num_attention_heads": 3}, ["3 attention heads", "2 key/value heads"]),
    "odd-head": ({"head_dim": 15}, ["head_dim is 15", "even"]),
    "missing-key": ({"vocab_size": None}, ["vocab_size", "missing"]),
    "string-for-integer": ({"hidden_size": "64"}, ["hidden_size is '64'", "positive integer"]),
    "bool-for-integer": ({"num_hidden_layers": True}, ["num_hidden_layers is True"]),
    "negative-number": ({"rms_norm_eps": -1.0}, ["rms_norm_eps is -1.0", "positive number"]),
    "integer-for-bool": ({"tie_word_embeddings": 1}, ["tie_word_embeddings is 1", "true or false"]),
    "end-token": ({"eos_token_id": "</s>"}, ["eos_token_id is '</s>'", "token id"]),
}


@pytest.mark.parametrize(("changes", "wanted"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_supported_is_refused_with_the_file_and_the_remedy(changes: dict[str, Any], wanted: list[str]) -> None:
    with pytest.raises(CheckpointError) as caught:
        parse(**changes)
    for part in ["models/x/config.json", *wanted]:
        assert part in str(caught.value)


def test_key_value_heads_of_qwen_are_not_guessed() -> None:
    assert parse(**QWEN2, num_key_value_heads=None).num_kv_heads == 4  # null means one for each head, as in Transformers
    without = {key: value for key, value in {**LLAMA, **QWEN2}.items() if key != "num_key_value_heads"}
    with pytest.raises(CheckpointError, match="'num_key_value_heads' is missing"):
        ModelConfig.from_hf(without)


def test_mimo_is_qwen2_with_modules_that_draft() -> None:
    config = parse(architectures=["MiMoForCausalLM"], num_nextn_predict_layers=1)
    assert (config.architecture, config.qkv_bias, config.num_mtp_layers) == ("Qwen2ForCausalLM", True, 1)
    assert parse(num_nextn_predict_layers=1).num_mtp_layers == 0  # of no meaning to a Llama
    with pytest.raises(CheckpointError, match="num_nextn_predict_layers"):
        parse(architectures=["MiMoForCausalLM"])
