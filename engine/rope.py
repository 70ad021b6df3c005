"""Rotary position tables, as transformers defines them: fp32 frequencies and fp32 angles, so that both engines rotate alike."""

from __future__ import annotations

import math

import torch

from engine.checkpoint import ModelConfig

__all__ = ["rope_tables"]


def _inverse_frequencies(config: ModelConfig) -> torch.Tensor:
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)  # [head_dim / 2] f32
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    # Llama 3.1: long wavelengths are stretched by `factor`, short ones are kept, those between are mixed.
    wavelengths = 2 * math.pi / frequencies
    low_wavelength = scaling.original_max_position_embeddings / scaling.low_freq_factor
    high_wavelength = scaling.original_max_position_embeddings / scaling.high_freq_factor
    mix = (scaling.original_max_position_embeddings / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    mixed = (1 - mix) * frequencies / scaling.factor + mix * frequencies
    stretched = torch.where(wavelengths > low_wavelength, frequencies / scaling.factor, frequencies)
    between = (wavelengths <= low_wavelength) & (wavelengths >= high_wavelength)
    return torch.where(between, mixed, stretched)


def rope_tables(config: ModelConfig, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(cos, sin), each [num_positions, head_dim / 2] f32, rounded once from float64."""
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * _inverse_frequencies(config)[None, :]
    wide = angles.double()
    return wide.cos().float(), wide.sin().float()
