"""A model that is always wrong in one way: it says the id after the one that the original would say."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from engine.checkpoint import expected_tensors, open_checkpoint, resolve_model
from harness.zoo.writer import hf_config, hf_generation_config, write_json, write_safetensors

__all__ = ["always_wrong_model"]


@functools.cache
def always_wrong_model(model: str) -> Path:
    """A directory with `model` whose output matrix is moved by one row, so that its greedy choice never is the original's.

    As a draft model it proposes wrong tokens only. It lives as long as the process.
    """
    source = open_checkpoint(resolve_model(model))
    config = replace(source.config, tie_word_embeddings=False)
    names = expected_tensors(config)
    head = "model.embed_tokens.weight" if source.config.tie_word_embeddings else "lm_head.weight"

    def tensor(name: str) -> torch.Tensor:
        found = source.tensor(head).roll(1, dims=0) if name == "lm_head.weight" else source.tensor(name)
        return found.to(torch.bfloat16)

    directory = tempfile.TemporaryDirectory(prefix="lockstep-wrong-")
    _KEPT.append(directory)
    path = Path(directory.name)
    write_safetensors(path / "model.safetensors", names, (tensor(name) for name in names), torch.bfloat16)
    write_json(path / "config.json", hf_config(config, torch.bfloat16))
    write_json(path / "generation_config.json", hf_generation_config(config))
    return path


_KEPT: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends
