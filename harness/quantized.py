"""Copies of a checkpoint for the checks of quantization: with blocks of fp8 as published ones have them, and dequantized."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

from engine.checkpoint import Checkpoint, open_checkpoint, resolve_model
from engine.checkpoint.quantization import BLOCK, QuantizedTensor, quantized
from engine.checkpoint.safetensors import read_json
from harness.zoo.writer import write_json

__all__ = ["dequantized_copy", "fp8_block_copy", "is_layer_matrix"]

LARGEST_FP8 = 448.0


def is_layer_matrix(name: str) -> bool:
    """Whether `quantization` rounds this tensor: the seven matrices of each layer."""
    return re.fullmatch(r"model\.layers\.\d+\..*_proj\.weight", name) is not None


def dequantized_copy(model: str, directory: Path, quantization: str | None) -> Path:
    """`model` in float32, its layers' matrices rounded to `quantization` and back (None: those that are quantized, widened)."""
    checkpoint = open_checkpoint(resolve_model(model))

    def tensor(name: str) -> torch.Tensor:
        weight = checkpoint.tensor(name)
        if quantization is not None and is_layer_matrix(name):
            return quantized(weight, quantization).dequantized()
        return weight.float()

    return _copy(checkpoint, directory, {name: tensor(name) for name in checkpoint.names()})


def fp8_block_copy(model: str, directory: Path, *, keep: Sequence[str] = ()) -> Path:
    """`model` with its layers' matrices as fp8 in blocks of 128 x 128 (the layout of Qwen3-FP8), but for names with `keep`."""
    checkpoint = open_checkpoint(resolve_model(model))
    tensors = {}
    for name in checkpoint.names():
        tensors[name] = checkpoint.tensor(name)
        if is_layer_matrix(name) and not any(part in name for part in keep):
            tensors[name], tensors[f"{name}_scale_inv"] = _fp8_blocks(tensors[name])
    blocks = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
    return _copy(checkpoint, directory, tensors, quantization_config=blocks)


def _fp8_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """weight [N, K] -> values [N, K] e4m3 and scales [ceil(N / 128), ceil(K / 128)] f32."""
    rows, columns = weight.shape
    padded = F.pad(weight.float(), (0, -columns % BLOCK, 0, -rows % BLOCK))
    blocks = padded.view(padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK)
    scales = blocks.abs().amax(dim=(1, 3)) / LARGEST_FP8
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))
    ones = torch.ones_like(weight, dtype=torch.float8_e4m3fn)
    spread = QuantizedTensor.of_blocks(ones, scales).dequantized()
    return (weight.float() / spread).clamp(-LARGEST_FP8, LARGEST_FP8).to(torch.float8_e4m3fn), scales


def _copy(checkpoint: Checkpoint, directory: Path, tensors: dict[str, torch.Tensor], **config: object) -> Path:
    from safetensors.torch import save_file

    def without_weights(_directory: str, names: list[str]) -> list[str]:
        return [name for name in names if name.endswith((".safetensors", ".safetensors.index.json"))]

    ignore: Callable[[str, list[str]], list[str]] = without_weights
    shutil.copytree(checkpoint.path, directory, ignore=ignore)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    values = read_json(directory / "config.json")
    values.pop("quantization_config", None)
    write_json(directory / "config.json", values | config)
    return directory
