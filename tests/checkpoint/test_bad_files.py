"""Damaged and mismatching checkpoints: each message names the file, what is wrong and, where there is one, the remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoint import CheckpointError, open_checkpoint

ErrorOf = Callable[[Path], str]


def rewrite(toy: Path, **changes: torch.Tensor | None) -> None:
    """Replace (or, with None, remove) tensors of the checkpoint; `__` in a name stands for a dot."""
    file = toy / "model.safetensors"
    tensors = load_file(file)
    for name, value in changes.items():
        tensors.pop(name.replace("__", "."), None)
        if value is not None:
            tensors[name.replace("__", ".")] = value
    save_file(tensors, file)


def test_missing_config(toy: Path, error_of: ErrorOf) -> None:
    (toy / "config.json").unlink()
    message = error_of(toy)
    assert str(toy / "config.json") in message
    assert "missing" in message


@pytest.mark.parametrize("text", ["{", "[]", "\0\xff"])
def test_config_that_is_no_json_object(toy: Path, error_of: ErrorOf, text: str) -> None:
    (toy / "config.json").write_bytes(text.encode("latin-1"))
    message = error_of(toy)
    assert str(toy / "config.json") in message
    assert "JSON" in message


def test_missing_weights(toy: Path, error_of: ErrorOf) -> None:
    (toy / "model.safetensors").unlink()
    assert "neither model.safetensors nor model.safetensors.index.json" in error_of(toy)


def test_a_pickle_is_named_and_not_loaded(toy: Path, error_of: ErrorOf) -> None:
    (toy / "model.safetensors").unlink()
    (toy / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    message = error_of(toy)
    assert "pytorch_model.bin" in message
    assert "never loaded" in message


@pytest.mark.parametrize("keep", [0, 5, 8, 200, -1], ids=["empty", "no-length", "length-only", "in-the-header", "last-byte"])
def test_truncated_file(toy: Path, error_of: ErrorOf, keep: int) -> None:
    file = toy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    message = error_of(toy)
    assert str(file) in message
    assert "Fetch it again" in message


@pytest.mark.parametrize(
    "content",
    [b"\xff" * 64, (6).to_bytes(8, "little") + b"no json", (2).to_bytes(8, "little") + b"[]"],
    ids=["huge-length", "no-json", "no-object"],
)
def test_header_garbage(toy: Path, error_of: ErrorOf, content: bytes) -> None:
    (toy / "model.safetensors").write_bytes(content)
    message = error_of(toy)
    assert str(toy / "model.safetensors") in message
    assert "not a whole safetensors file" in message


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0]},
        7,
    ],
    ids=["size", "negative", "no-offsets", "one-offset", "no-object"],
)
def test_header_entry_garbage(toy: Path, error_of: ErrorOf, entry: object) -> None:
    header = json.dumps({"model.norm.weight": entry}).encode()
    (toy / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
    assert "'model.norm.weight'" in error_of(toy)


def test_file_that_shrinks_after_opening(toy: Path) -> None:
    checkpoint = open_checkpoint(toy)
    file = toy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match=r"ends inside of tensor 'lm_head\.weight'"):
        checkpoint.tensor("lm_head.weight")


def test_missing_tensor(toy: Path, error_of: ErrorOf) -> None:
    rewrite(toy, model__norm__weight=None)
    message = error_of(toy)
    assert "'model.norm.weight' [48] is missing" in message


def test_unexpected_tensor(toy: Path, error_of: ErrorOf) -> None:
    rewrite(toy, model__layers__0__self_attn__q_proj__bias=torch.zeros(48))
    message = error_of(toy)
    assert str(toy / "model.safetensors") in message
    assert "unexpected tensor 'model.layers.0.self_attn.q_proj.bias' [48]" in message


def test_mismatching_shape_shows_both(toy: Path, error_of: ErrorOf) -> None:
    rewrite(toy, model__layers__1__mlp__down_proj__weight=torch.zeros(48, 79))
    message = error_of(toy)
    assert str(toy / "model.safetensors") in message
    assert "'model.layers.1.mlp.down_proj.weight' has the shape [48, 79], but the config asks for [48, 80]" in message


def test_config_of_another_model(toy: Path, error_of: ErrorOf, edit_config: Callable[..., None]) -> None:
    edit_config(toy, num_hidden_layers=3)
    assert "'model.layers.2.input_layernorm.weight' [48] is missing" in error_of(toy)


def test_unsupported_dtype(toy: Path, error_of: ErrorOf) -> None:
    rewrite(toy, model__norm__weight=torch.zeros(48, dtype=torch.float64))
    message = error_of(toy)
    assert "'model.norm.weight' has the dtype F64" in message
    assert "F32, BF16, F16" in message


def test_tied_head_may_be_stored_twice_but_not_differ(toy: Path, error_of: ErrorOf, edit_config: Callable[..., None]) -> None:
    edit_config(toy, tie_word_embeddings=True)
    message = error_of(toy)
    assert "'lm_head.weight' differs from 'model.embed_tokens.weight'" in message
    assert "tie_word_embeddings to false" in message
    embedding = load_file(toy / "model.safetensors")["model.embed_tokens.weight"]
    rewrite(toy, lm_head__weight=embedding.clone())
    assert "lm_head.weight" not in open_checkpoint(toy).names()


def test_old_rotary_buffers_are_passed_over(toy: Path) -> None:
    rewrite(toy, model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(6))
    assert not [name for name in open_checkpoint(toy).names() if "rotary" in name]


def test_unknown_name_is_a_key_error(toy: Path) -> None:
    with pytest.raises(KeyError):
        open_checkpoint(toy).tensor("model.norm.bias")


@pytest.mark.parametrize(
    ("index", "wanted"),
    [
        ({"weight_map": {"model.norm.weight": "model-1.safetensors"}}, "is missing, but model.safetensors.index.json names it"),
        ({"weight_map": {"model.norm.weight": "../x.safetensors"}}, "is not a safetensors file beside it"),
        ({"weight_map": {"model.norm.weight": "x.bin"}}, "is not a safetensors file beside it"),
        ({"weight_map": {"model.norm.weight": 1}}, "'weight_map' must map tensor names to file names"),
        ({}, "'weight_map' must map tensor names to file names"),
    ],
    ids=["shard-missing", "outside", "not-safetensors", "no-name", "empty"],
)
def test_bad_index(toy: Path, error_of: ErrorOf, index: object, wanted: str) -> None:
    (toy / "model.safetensors").unlink()
    (toy / "model.safetensors.index.json").write_text(json.dumps(index))
    assert wanted in error_of(toy)


def test_tensor_in_two_shards(toy: Path, error_of: ErrorOf) -> None:
    tensors = load_file(toy / "model.safetensors")
    (toy / "model.safetensors").unlink()
    for shard in ("a.safetensors", "b.safetensors"):
        save_file(tensors, toy / shard)
    weight_map = {name: f"{'ab'[i % 2]}.safetensors" for i, name in enumerate(tensors)}
    (toy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert "is also in a.safetensors" in error_of(toy)
