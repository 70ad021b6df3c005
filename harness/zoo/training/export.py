"""Writes a trained model as a Hugging Face directory."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

from engine.checkpoint import ModelConfig, expected_tensors
from harness.zoo.download import ZooError
from harness.zoo.writer import hf_config, hf_generation_config, write_json, write_safetensors

__all__ = ["export_checkpoint"]


def export_checkpoint(
    config: ModelConfig,
    weights: Mapping[str, torch.Tensor],
    tokenizer: Path,
    directory: Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
) -> Path:
    """Write config.json, generation_config.json, model.safetensors and the files of `tokenizer`; `directory` comes back.

    Rounds to `dtype`. `ZooError` if the disk does not take it.
    """
    shapes = expected_tensors(config)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tensors = (weights[name].detach().to(dtype) for name in shapes)
        write_safetensors(directory / "model.safetensors", shapes, tensors, dtype)
        write_json(directory / "config.json", hf_config(config, dtype))
        write_json(directory / "generation_config.json", hf_generation_config(config))
        for file in sorted(tokenizer.iterdir()):
            shutil.copyfile(file, directory / file.name)
    except OSError as error:
        raise ZooError(f"{directory} cannot be written ({error.strerror or error})") from error
    return directory
