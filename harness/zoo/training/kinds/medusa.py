"""Medusa-1 heads on the frozen target's last hidden state (arXiv 2401.10774), in vLLM's layout.

The state is the one behind the final norm, at the last place that the target has computed. There the target itself predicts the
next token, so head i (from 0) predicts the token i + 2 places after the state's. Each head is a chain of residual blocks,
x + silu(W x + b), under an lm_head of its own that begins as the target's (`own_heads`), or under the target's, of which the
checkpoint has a copy then (vLLM's `original_lm_head`).

Shapes: B rows of T tokens, D = the target's hidden size, V words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from harness.datasets.mixture import examples
from harness.zoo.download import ZooError
from harness.zoo.training.drafting import DrafterRecipe, FrozenTarget, shifted, soft_cross_entropy
from harness.zoo.training.kinds.draft_model import FEW_SHOT
from harness.zoo.training.optimizer import Schedule
from harness.zoo.training.packing import Batch
from harness.zoo.training.target import Examples
from harness.zoo.training.transformer import Output, compiled, load_weights
from harness.zoo.writer import write_json, write_safetensors

__all__ = ["RECIPES", "MedusaHeads", "MedusaObjective", "export", "load", "objective"]

Layer = tuple[torch.Tensor, torch.Tensor]  # weight [D, D] and bias [D]
Blocks = Sequence[Sequence[Layer]]  # for each head, its layers
HEAD = "lm_head.weight"

RECIPES: tuple[DrafterRecipe, ...] = (
    # The blocks start at zero and have far to go: 48 small steps at a fifth of this rate leave twice the loss. One small state
    # says little of the tokens after the next: under the target's lm_head, with one block, they came to a length of 1.66.
    DrafterRecipe(
        "tiny-medusa",
        "medusa",
        Schedule(num_steps=1200, warmup_steps=20, muon_lr=0.05, adam_lr=0.005),
        options=(("num_heads", 3), ("num_layers", 2), ("own_heads", True)),
    ),
)


def _block_shapes(num_heads: int, num_layers: int, hidden_size: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(num_heads):
        for i in range(num_layers):
            shapes[f"blocks.{head}.layers.{i}.weight"] = (hidden_size, hidden_size)
            shapes[f"blocks.{head}.layers.{i}.bias"] = (hidden_size,)
    return shapes


def _head_names(num_heads: int) -> list[str]:
    return [f"lm_heads.{head}.weight" for head in range(num_heads)]


def _by_head(weights: Mapping[str, torch.Tensor], num_heads: int, num_layers: int) -> Blocks:
    def layer(name: str) -> Layer:
        return weights[f"{name}.weight"], weights[f"{name}.bias"]

    return [[layer(f"blocks.{head}.layers.{i}") for i in range(num_layers)] for head in range(num_heads)]


def _head_state(x: torch.Tensor, layers: Sequence[Layer]) -> torch.Tensor:
    """What one head gives to lm_head: x [..., D] -> [..., D]."""
    for weight, bias in layers:
        x = x + F.silu(F.linear(x, weight, bias))
    return x


@dataclass
class MedusaObjective:
    """The mean over the heads of the cross entropy against the target's distribution where it predicts the same token."""

    recipe: DrafterRecipe
    target: FrozenTarget
    source: Examples = examples
    compile_layers: bool = True
    parameters: dict[str, torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.identity = self.recipe.identity(self.target)
        self.num_heads: int = self.recipe.option("num_heads")
        self.num_layers: int = self.recipe.option("num_layers")
        self.own_heads: bool = self.recipe.option("own_heads")
        shapes = _block_shapes(self.num_heads, self.num_layers, self.target.config.hidden_size)
        # From zero, so that each head starts as the target's own prediction, as in the paper.
        self.parameters = {name: torch.zeros(shape).requires_grad_() for name, shape in shapes.items()}
        if self.own_heads:
            head = self.target.head.detach()
            self.parameters |= {name: head.clone().requires_grad_() for name in _head_names(self.num_heads)}
        self._stream = self.recipe.stream(self.target, self.source)

        def head_loss(
            x: torch.Tensor,
            layers: Sequence[Layer],
            head: torch.Tensor,
            target_logits: torch.Tensor,
            weights: torch.Tensor,
        ) -> torch.Tensor:
            return soft_cross_entropy(F.linear(_head_state(x, layers), head), target_logits, weights)

        self._head_loss = compiled(head_loss) if self.compile_layers else head_loss

    def batch(self, step: int) -> Batch:
        return self._stream.batch(step, self.recipe.rows, self.recipe.length, FEW_SHOT)

    def loss(self, batch: Batch) -> tuple[torch.Tensor, int]:
        states = self.target.forward(batch.ids)
        losses = []
        for i, layers in enumerate(_by_head(self.parameters, self.num_heads, self.num_layers)):
            by = i + 2
            _, weights = shifted(batch, by)
            x, wanted = states.normed[:, :-by], states.logits[:, by - 1 : -1]
            head = self.parameters[_head_names(self.num_heads)[i]] if self.own_heads else self.target.head
            losses.append(self._head_loss(x, layers, head, wanted, weights))
        return torch.stack(losses).mean(), batch.num_tokens


@dataclass(frozen=True)
class MedusaHeads:
    """One proposal from each head, all from the last computed place's state."""

    blocks: Blocks
    heads: Sequence[torch.Tensor]  # each [V, D]

    @torch.no_grad()
    def propose(self, token_ids: Sequence[int], states: Output, num_drafts: int) -> list[int]:
        """See `Drafter`. At most one proposal for each head."""
        x = states.normed[0, -1]
        pairs = list(zip(self.blocks, self.heads, strict=True))[:num_drafts]
        return [int(F.linear(_head_state(x, layers), head).argmax()) for layers, head in pairs]


def objective(recipe: DrafterRecipe, target: FrozenTarget) -> MedusaObjective:
    return MedusaObjective(recipe, target)


def export(objective: MedusaObjective, directory: Path) -> Path:
    """Write config.json and bfloat16 weights as vLLM's `MedusaModel` reads them. `ZooError` if the disk does not take it."""
    dtype = torch.bfloat16
    weights = dict(objective.parameters) | ({} if objective.own_heads else {HEAD: objective.target.head})
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    config: dict[str, Any] = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "dtype": str(dtype).removeprefix("torch."),
        "vocab_size": objective.target.config.vocab_size,
        "hidden_size": objective.target.config.hidden_size,
        "num_heads": objective.num_heads,
        "num_hidden_layers": objective.num_layers,
        "medusa_fc_bias": True,
        "original_lm_head": not objective.own_heads,
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tensors = (tensor.detach().to(dtype) for tensor in weights.values())
        write_safetensors(directory / "model.safetensors", shapes, tensors, dtype)
        write_json(directory / "config.json", config)
    except OSError as error:
        raise ZooError(f"{directory} cannot be written ({error.strerror or error})") from error
    return directory


def load(directory: Path, target: FrozenTarget) -> MedusaHeads:
    """What `export` wrote, in float32. `ValueError` if the shapes are not those of its config and of `target`."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    num_heads, num_layers = int(config["num_heads"]), int(config["num_hidden_layers"])
    shapes = _block_shapes(num_heads, num_layers, target.config.hidden_size)
    names = [HEAD] * num_heads if config["original_lm_head"] else _head_names(num_heads)
    head_shape = (target.config.vocab_size, target.config.hidden_size)
    weights = load_weights(directory, shapes | dict.fromkeys(names, head_shape))
    return MedusaHeads(_by_head(weights, num_heads, num_layers), [weights[name] for name in names])
