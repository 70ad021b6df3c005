"""The weights of a checkpoint, one tensor at a time, by their Hugging Face names."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from engine.checkpoint.config import ModelConfig
from engine.checkpoint.quantization import QuantizedTensor
from engine.errors import CheckpointError, nearest_hint

__all__ = ["Checkpoint", "check_tensors", "expected_tensors", "file_fingerprint", "layer_tensors"]

Shape = tuple[int, ...]
MTP_PREFIX = "model.mtp_layers."


class Checkpoint(ABC):
    """An opened and checked checkpoint: every expected tensor is there with its expected shape.

    Nothing of the file stays in memory or mapped between calls; a caller that wants a low peak packs each tensor before it
    asks for the next.
    """

    config: ModelConfig
    path: Path

    @abstractmethod
    def names(self) -> list[str]:
        """The names of `expected_tensors(config)`, in that order."""

    @abstractmethod
    def tensor(self, name: str) -> torch.Tensor:
        """One tensor: float32, or bfloat16 where the file has bfloat16 (all other types are widened to float32).

        `KeyError` for a name that is not in `names()`, `CheckpointError` if the file has changed or ends early.
        """

    def quantized(self, name: str) -> QuantizedTensor | None:
        """The same as the file has it, where it has one byte for each value; None for other tensors."""
        return None

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A cheap hash that changes with the model: of the config, the files' sizes and headers and a sample of their data."""


def layer_tensors(
    config: ModelConfig, prefix: str, *, input_size: int | None = None, norms: Sequence[str] = ("input_layernorm",)
) -> dict[str, Shape]:
    """Name -> shape of every tensor of one layer; that of a drafter may read `input_size` values and have other `norms`."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    input_size = input_size or hidden
    shapes: dict[str, Shape] = {f"{prefix}{norm}.weight": (hidden,) for norm in norms}

    def linear(name: str, out_features: int, in_features: int, bias: bool) -> None:
        shapes[f"{prefix}{name}.weight"] = (out_features, in_features)
        if bias:
            shapes[f"{prefix}{name}.bias"] = (out_features,)

    linear("self_attn.q_proj", q_size, input_size, config.qkv_bias)
    linear("self_attn.k_proj", kv_size, input_size, config.qkv_bias)
    linear("self_attn.v_proj", kv_size, input_size, config.qkv_bias)
    if config.qk_norm:
        shapes[f"{prefix}self_attn.q_norm.weight"] = (config.head_dim,)
        shapes[f"{prefix}self_attn.k_norm.weight"] = (config.head_dim,)
    linear("self_attn.o_proj", hidden, q_size, config.output_bias)
    shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
    linear("mlp.gate_proj", inner, hidden, config.mlp_bias)
    linear("mlp.up_proj", inner, hidden, config.mlp_bias)
    linear("mlp.down_proj", hidden, inner, config.mlp_bias)
    return shapes


def expected_tensors(config: ModelConfig) -> dict[str, Shape]:
    """Name -> shape of every tensor that a model of this config has, embedding first, then layer by layer.

    A tied `lm_head.weight` is not among them.
    """
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": (config.vocab_size, config.hidden_size)}
    for i in range(config.num_layers):
        shapes |= layer_tensors(config, f"model.layers.{i}.")
    shapes["model.norm.weight"] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    return shapes


def check_tensors(config: ModelConfig, found: Mapping[str, tuple[Path, Shape]], path: Path) -> None:
    """Compare what the files hold (name -> file, shape) with `expected_tensors(config)`; else `CheckpointError`."""
    expected = expected_tensors(config)
    for name, shape in expected.items():
        if name not in found:
            near = nearest_hint(name, found) if found else ""
            hint = near if near.startswith(" Did") else ""
            raise CheckpointError(f"{path}: tensor {name!r} {list(shape)} is missing.{hint}")
        file, actual = found[name]
        if actual != shape:
            raise CheckpointError(
                f"{file}: tensor {name!r} has the shape {list(actual)}, but the config asks for {list(shape)}. "
                "The weights and the config belong to different models"
            )
    for name, (file, actual) in found.items():
        if config.num_mtp_layers and name.startswith(MTP_PREFIX):
            continue
        if name not in expected:
            raise CheckpointError(
                f"{file}: unexpected tensor {name!r} {list(actual)}: a {config.architecture} of this config has none"
            )


def file_fingerprint(config: ModelConfig, headers: Mapping[Path, int]) -> str:
    """Hash of the config and, for each file, of its size, its first `headers[file]` bytes and 16 samples of its data.

    The samples tell models apart that differ in their values only; reading everything would cost seconds for a large model.
    """
    digest = hashlib.sha256(repr(sorted(asdict(config).items())).encode())
    for file, header_size in sorted(headers.items()):
        size = file.stat().st_size
        digest.update(f"|{file.name}|{size}|".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(header_size))
            for i in range(16):
                stream.seek(header_size + (size - header_size) * i // 16)
                digest.update(stream.read(4096))
    return digest.hexdigest()
