"""Weights of one byte for each value: as checkpoints hold them, and made from plain ones when a model is loaded.

Only the weights are quantized: activations stay fp32, also where a checkpoint of this format is meant for fp8 activations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from engine.checkpoint.fields import Fields

__all__ = ["BLOCK", "METHODS", "QuantizedTensor", "agreed_method", "checkpoint_method", "quantized"]

BLOCK = 128  # rows and columns that share a scale in a checkpoint
_DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
_LARGEST = {"int8": 127.0, "fp8": 448.0}
METHODS = tuple(_DTYPES)


@dataclass(frozen=True)
class QuantizedTensor:
    """A matrix [N, K] that stands for `values * scales`, each product rounded to fp32."""

    values: torch.Tensor  # [N, K] int8 or float8_e4m3fn
    scales: torch.Tensor  # f32: [N, 1], or [N, ceil(K / 128)] for blocks of columns

    @classmethod
    def of_blocks(cls, values: torch.Tensor, scales: torch.Tensor) -> QuantizedTensor:
        """scales [ceil(N / 128), ceil(K / 128)], one for each block of 128 x 128."""
        return cls(values, scales.float().repeat_interleave(BLOCK, dim=0)[: len(values)].contiguous())

    def dequantized(self) -> torch.Tensor:
        """[N, K] f32"""
        columns = self.values.shape[1]
        scales = self.scales if self.scales.shape[1] == 1 else self.scales.repeat_interleave(BLOCK, dim=1)[:, :columns]
        return self.values.float() * scales


def quantized(weight: torch.Tensor, method: str) -> QuantizedTensor:
    """weight [N, K] rounded to "int8" or "fp8" (e4m3), symmetric, with one scale for each row (output channel)."""
    weight, largest = weight.float(), _LARGEST[method]
    scales = weight.abs().amax(dim=1, keepdim=True) / largest
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))  # a row of zeros
    values = (weight / scales).clamp(-largest, largest)  # a scale that was rounded down gives a little more than the largest
    return QuantizedTensor((values.round() if method == "int8" else values).to(_DTYPES[method]), scales)


def checkpoint_method(fields: Fields) -> str | None:
    """What `quantization_config` of config.json says: None or "fp8". `CheckpointError` for a format that is not read here."""
    given = fields.get("quantization_config")
    if not given:
        return None
    if isinstance(given, Mapping) and given.get("quant_method") == "fp8":
        size = given.get("weight_block_size")
        if size == [BLOCK, BLOCK] and given.get("fmt", "e4m3") == "e4m3":
            return "fp8"
        given = f"fp8 with weight_block_size {size!r} and fmt {given.get('fmt', 'e4m3')!r}"
    elif isinstance(given, Mapping):
        given = given.get("quant_method", given)
    raise fields.error(
        f"'quantization_config' ({given}) is not supported. Supported: float32, bfloat16 and float16, fp8 with "
        f"weight_block_size [{BLOCK}, {BLOCK}] and fmt 'e4m3', or a GGUF file"
    )


def agreed_method(asked: str | None, of_checkpoint: str | None, path: object) -> str | None:
    """What plain weights are quantized to when they are loaded; `ValueError` if the checkpoint is quantized otherwise."""
    if asked is not None and of_checkpoint not in (None, asked):
        raise ValueError(
            f"quantization={asked!r}, but the weights of {path} are {of_checkpoint} already; leave quantization out."
        )
    return None if of_checkpoint else asked
