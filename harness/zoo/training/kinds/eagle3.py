"""EAGLE-3 (arXiv 2503.01840) in the format of the speculators library, as vLLM reads it (`llama_eagle3.py`).

`fc` of three hidden states of the target gives the first hidden state. The layer's attention reads the next token's embedding
and the hidden state, a norm on each, beside one another; the residual starts from the normed hidden state
(`norm_before_residual`). The output before the last norm is the next step's hidden state; the drafter's own LM head reads it
after that norm. The draft vocabulary is the target's, so there is no d2t or t2d, and the embedding is the target's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from engine.checkpoint import ModelConfig, layer_tensors
from harness.zoo.training.chain import (
    ChainDrafter,
    ChainNet,
    ChainObjective,
    Past,
    Tensors,
    draft_config,
    export_chain,
    layer_config,
    load_chain,
)
from harness.zoo.training.drafting import DrafterRecipe, FrozenTarget
from harness.zoo.training.optimizer import Schedule
from harness.zoo.training.transformer import Output, rms_norm

__all__ = ["RECIPES", "Eagle3Net", "aux_layer_ids", "export", "load", "objective"]

NUM_DRAFTS = 3  # what the file recommends
RECIPES = (
    DrafterRecipe(
        "tiny-eagle3",
        "eagle3",
        Schedule(num_steps=750, adam_lr=1e-3),
        rows=8,
        length=260,
        options=(("steps", 3), ("regression", 0.0), ("noise", 0.0)),
    ),
)


def aux_layer_ids(num_layers: int) -> tuple[int, int, int]:
    """Which hidden states are read; vLLM's count, where 0 is the embedding and i the output of layer i - 1.

    vLLM's default (2, L // 2, L - 3) names one layer thrice for L = 5. This is near the start, the middle, and the last.
    `ValueError` if the three are not distinct.
    """
    if num_layers < 3:
        raise ValueError(f"a target of {num_layers} layers has no three hidden states that differ")
    return (1, (num_layers + 1) // 2, num_layers)


class Eagle3Net(ChainNet):
    prefix = "layers.0."
    head_name = "lm_head.weight"

    def __init__(self, target: ModelConfig) -> None:
        super().__init__(draft_config(target))
        self.layer_ids = aux_layer_ids(target.num_layers)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        d = self.config.hidden_size
        norms = ("input_layernorm", "hidden_norm")
        return {
            "fc.weight": (d, len(self.layer_ids) * d),
            **layer_tensors(self.config, self.prefix, input_size=2 * d, norms=norms),
            "norm.weight": (d,),
            "lm_head.weight": (self.config.vocab_size, d),
        }

    def features(self, states: Output) -> torch.Tensor:
        return torch.cat([states.hidden[i] for i in self.layer_ids], dim=-1)

    def start(self, weights: Tensors, features: torch.Tensor) -> torch.Tensor:
        return F.linear(features, weights["fc.weight"])

    def step(
        self, weights: Tensors, embeds: torch.Tensor, hidden: torch.Tensor, position: int, past: Past
    ) -> tuple[torch.Tensor, torch.Tensor]:
        eps = self.config.rms_norm_eps
        residual = rms_norm(hidden, weights["layers.0.hidden_norm.weight"], eps)
        x = torch.cat((rms_norm(embeds, weights["layers.0.input_layernorm.weight"], eps), residual), dim=-1)
        output = self.layer(weights, x, residual, position, past)
        return rms_norm(output, weights["norm.weight"], eps), output


def objective(recipe: DrafterRecipe, target: FrozenTarget, *, compile_layers: bool = True) -> ChainObjective:
    """See `ChainObjective`."""
    return ChainObjective(recipe, target, Eagle3Net(target.config), compile_layers=compile_layers)


def export(objective: Any, directory: Path) -> Path:
    """Write config.json and model.safetensors (bfloat16); `directory` comes back. `ZooError` if the disk is full."""
    net, recipe = objective.net, objective.recipe
    layer = layer_config(net.config) | {"tie_word_embeddings": False}
    del layer["architectures"]
    config = {
        "architectures": ["Eagle3DraftModel"],
        "dtype": "bfloat16",
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": NUM_DRAFTS}],
            "verifier": {"name_or_path": recipe.target, "architectures": [objective.target.config.architecture]},
        },
        "transformer_layer_config": layer,
        "draft_vocab_size": net.config.vocab_size,
        "target_hidden_size": objective.target.config.hidden_size,
        "norm_before_residual": True,
        "norm_before_fc": False,
        "eagle_aux_hidden_state_layer_ids": list(net.layer_ids),
    }
    return export_chain(net, objective.parameters, directory, config)


def load(directory: Path, target: FrozenTarget) -> ChainDrafter:
    """The drafter that `export` wrote, widened to float32."""
    return load_chain(Eagle3Net(target.config), directory, target)
