"""A module for multi-token prediction in MiMo's layout (arXiv 2505.07608), as vLLM reads it (`mimo.py`, `mimo_mtp.py`).

`input_proj` of the target's last hidden state (before its last norm) and the next token's embedding, a norm on each, then one
Qwen2 layer and a norm, whose output is both what the target's LM head reads and the next step's hidden state. The embedding at
position 0 counts as zero.

The file is the whole target with the module beside it. MiMo is Qwen2, so a Llama target gets query, key and value biases of
zero.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from engine.checkpoint import ModelConfig, expected_tensors, layer_tensors
from harness.zoo.download import ZooError
from harness.zoo.training.chain import (
    ChainDrafter,
    ChainNet,
    ChainObjective,
    Past,
    Tensors,
    draft_config,
    layer_config,
    load_chain,
)
from harness.zoo.training.drafting import DrafterRecipe, FrozenTarget
from harness.zoo.training.optimizer import Schedule
from harness.zoo.training.transformer import Output, rms_norm
from harness.zoo.writer import hf_generation_config, write_json, write_safetensors

__all__ = ["RECIPES", "MtpNet", "export", "load", "objective"]

RECIPES = (
    DrafterRecipe(
        "tiny-mtp",
        "mtp",
        Schedule(num_steps=750),
        rows=8,
        length=260,
        options=(("steps", 3), ("regression", 0.0), ("noise", 0.0)),
    ),
)
MODULE = "model.mtp_layers.0."
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "tokenizer.model",
)  # fmt: skip


class MtpNet(ChainNet):
    prefix = MODULE

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        d = self.config.hidden_size
        return {
            f"{MODULE}token_layernorm.weight": (d,),
            f"{MODULE}hidden_layernorm.weight": (d,),
            f"{MODULE}input_proj.weight": (d, 2 * d),
            **layer_tensors(self.config, MODULE),
            f"{MODULE}final_layernorm.weight": (d,),
        }

    def features(self, states: Output) -> torch.Tensor:
        return states.hidden[-1]

    def step(
        self, weights: Tensors, embeds: torch.Tensor, hidden: torch.Tensor, position: int, past: Past
    ) -> tuple[torch.Tensor, torch.Tensor]:
        eps = self.config.rms_norm_eps
        if position == 0:
            embeds = torch.cat((torch.zeros_like(embeds[:, :1]), embeds[:, 1:]), dim=1)
        both = (
            rms_norm(hidden, weights[f"{MODULE}hidden_layernorm.weight"], eps),
            rms_norm(embeds, weights[f"{MODULE}token_layernorm.weight"], eps),
        )
        residual = F.linear(torch.cat(both, dim=-1), weights[f"{MODULE}input_proj.weight"])
        x = rms_norm(residual, weights[f"{MODULE}input_layernorm.weight"], eps)
        output = self.layer(weights, x, residual, position, past)
        output = rms_norm(output, weights[f"{MODULE}final_layernorm.weight"], eps)
        return output, output


def objective(recipe: DrafterRecipe, target: FrozenTarget, *, compile_layers: bool = True) -> ChainObjective:
    """See `ChainObjective`. `ValueError` for a target that MiMo's layout cannot hold."""
    return ChainObjective(recipe, target, _net(target.config), compile_layers=compile_layers)


def export(objective: Any, directory: Path) -> Path:
    """Write the target, the module and the tokenizer's files, in bfloat16; `directory` comes back. `ZooError` if it cannot."""
    target: FrozenTarget = objective.target
    whole = replace(target.config, architecture="Qwen2ForCausalLM", qkv_bias=True)
    weights = {**target.model.weights, **objective.parameters}
    shapes = expected_tensors(whole) | objective.net.shapes
    tensors = (weights[n] if n in weights else torch.zeros(shape) for n, shape in shapes.items())
    rounded = (tensor.detach().to(torch.bfloat16) for tensor in tensors)
    # Transformers knows no MiMo, and no code comes with the file: for it this is a Qwen2. vLLM goes by the architecture.
    config = layer_config(whole) | {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_safetensors(directory / "model.safetensors", shapes, rounded, torch.bfloat16)
        write_json(directory / "config.json", config)
        write_json(directory / "generation_config.json", hf_generation_config(whole))
        for file in sorted(target.directory.iterdir()):
            if file.name in TOKENIZER_FILES:
                shutil.copyfile(file, directory / file.name)
    except OSError as error:
        raise ZooError(f"{directory} cannot be written ({error.strerror or error})") from error
    return directory


def load(directory: Path, target: FrozenTarget) -> ChainDrafter:
    """The drafter of the module that `export` wrote, widened to float32, for the target that it was written with."""
    return load_chain(_net(target.config), directory, target)


def _net(target: ModelConfig) -> MtpNet:
    if target.qk_norm or target.output_bias or target.mlp_bias or target.head_dim * target.num_heads != target.hidden_size:
        raise ValueError("MiMo's layers are Qwen2's: no norm on queries and keys, no bias on outputs, heads of D values in all")
    return MtpNet(replace(draft_config(target), qkv_bias=True))
