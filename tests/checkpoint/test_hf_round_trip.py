"""What Transformers saves is what we read: every tensor bit for bit, and the same constants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.checkpoint import open_checkpoint


def assert_same_weights(path: Path, model: Any) -> None:
    checkpoint = open_checkpoint(path)
    state = model.state_dict()
    if checkpoint.config.tie_word_embeddings:
        del state["lm_head.weight"]
    assert sorted(checkpoint.names()) == sorted(state)
    for name in checkpoint.names():
        assert torch.equal(checkpoint.tensor(name), state[name]), name


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_weights_and_config_survive(hf_model: Callable[..., Any], tmp_path: Path, tied: bool) -> None:
    model = hf_model(tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    assert_same_weights(tmp_path, model)

    config, theirs = open_checkpoint(tmp_path).config, model.config
    assert config.architecture == type(model).__name__
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (67, 24, 40)
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (2, 4, 2)
    assert config.head_dim == (10 if config.architecture == "Qwen3ForCausalLM" else 6)
    assert config.rms_norm_eps == theirs.rms_norm_eps
    assert config.rope_theta == theirs.rope_parameters["rope_theta"]
    assert config.rope_scaling is None
    assert config.max_position_embeddings == 64
    assert config.tie_word_embeddings is tied
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2,))
    assert config.qk_norm == (config.architecture == "Qwen3ForCausalLM")
    assert config.qkv_bias == (config.architecture == "Qwen2ForCausalLM")


def test_shards_are_read_through_the_index(hf_model: Callable[..., Any], tmp_path: Path) -> None:
    model = hf_model()
    model.save_pretrained(tmp_path, max_shard_size="12KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_same_weights(tmp_path, model)


def test_bfloat16_stays_and_float16_is_widened_exactly(hf_model: Callable[..., Any], tmp_path: Path) -> None:
    for dtype, expected in ((torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32)):
        model = hf_model().to(dtype)
        model.save_pretrained(tmp_path / str(dtype))
        checkpoint = open_checkpoint(tmp_path / str(dtype))
        for name, values in model.state_dict().items():
            tensor = checkpoint.tensor(name)
            assert tensor.dtype == expected
            assert torch.equal(tensor.float(), values.float()), name


def test_biases_of_attention_and_mlp(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=31,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=1,
            num_attention_heads=2,
            attention_bias=True,
            mlp_bias=True,
        )
    )
    model.save_pretrained(tmp_path)
    config = open_checkpoint(tmp_path).config
    assert (config.qkv_bias, config.output_bias, config.mlp_bias, config.num_kv_heads) == (True, True, True, 2)
    assert_same_weights(tmp_path, model)


def test_the_fingerprint_tells_models_apart(hf_model: Callable[..., Any], tmp_path: Path) -> None:
    model = hf_model()
    model.save_pretrained(tmp_path / "a")
    model.save_pretrained(tmp_path / "b")
    with torch.no_grad():
        model.model.norm.weight += 1.0
    model.save_pretrained(tmp_path / "c")
    same, again, other = (open_checkpoint(tmp_path / name).fingerprint for name in "abc")
    assert same == again
    assert same != other


def test_no_file_stays_mapped_or_open(toy: Path) -> None:
    maps, descriptors = Path("/proc/self/maps"), Path("/proc/self/fd")
    if not maps.exists():
        pytest.skip("needs /proc to see what is mapped")
    checkpoint = open_checkpoint(toy)
    kept = [checkpoint.tensor(name) for name in checkpoint.names()]
    assert kept
    assert str(toy) not in maps.read_text()
    assert not [link for link in descriptors.iterdir() if link.exists() and str(toy) in str(link.resolve())]
