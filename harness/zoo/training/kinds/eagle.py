"""EAGLE-1 (arXiv 2401.15077) in the layout that vLLM reads (`llama_eagle.py`).

`fc` of the next token's embedding and the target's hidden state (after its last norm), then one Llama layer without an input
norm. Its output is what the target's LM head reads, without a norm, and the next step's hidden state. The embedding and the LM
head are the target's and not in the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from engine.checkpoint import layer_tensors
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
from harness.zoo.training.transformer import Output

__all__ = ["RECIPES", "EagleNet", "export", "load", "objective"]

RECIPES = (
    DrafterRecipe(
        "tiny-eagle",
        "eagle",
        Schedule(num_steps=750),
        rows=8,
        length=260,
        options=(("steps", 3), ("regression", 0.5), ("noise", 0.1)),
    ),
)


class EagleNet(ChainNet):
    prefix = "layers.0."

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        d = self.config.hidden_size
        return {"fc.weight": (d, 2 * d)} | layer_tensors(self.config, self.prefix, norms=())

    def features(self, states: Output) -> torch.Tensor:
        return states.normed

    def step(
        self, weights: Tensors, embeds: torch.Tensor, hidden: torch.Tensor, position: int, past: Past
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = F.linear(torch.cat((embeds, hidden), dim=-1), weights["fc.weight"])
        output = self.layer(weights, x, x, position, past)
        return output, output


def objective(recipe: DrafterRecipe, target: FrozenTarget, *, compile_layers: bool = True) -> ChainObjective:
    """See `ChainObjective`."""
    return ChainObjective(recipe, target, EagleNet(draft_config(target.config)), compile_layers=compile_layers)


def export(objective: Any, directory: Path) -> Path:
    """Write config.json and model.safetensors (bfloat16); `directory` comes back. `ZooError` if the disk is full.

    objective: of this module or of `eagle_own_text`.
    """
    net: EagleNet = objective.net
    # What vLLM makes EagleLlamaForCausalLM of when it is asked for the method "eagle".
    config = layer_config(net.config) | {"architectures": ["EagleLlamaForCausalLM"]}
    return export_chain(net, objective.parameters, directory, config)


def load(directory: Path, target: FrozenTarget) -> ChainDrafter:
    """The drafter that `export` wrote, widened to float32."""
    return load_chain(EagleNet(draft_config(target.config)), directory, target)
