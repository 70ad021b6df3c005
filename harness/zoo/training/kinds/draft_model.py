"""A small decoder of its own with the target's tokenizer, distilled from it (speculative decoding, arXiv 2211.17192).

The distillation is the forward KL divergence on training text (DistillSpec, arXiv 2310.08461, without its on-policy data).
vLLM reads the checkpoint as any LlamaForCausalLM (`method: draft_model`), this engine too.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from engine.checkpoint import ModelConfig, expected_tensors, open_checkpoint
from harness.datasets.mixture import examples
from harness.zoo.download import ZooError
from harness.zoo.training.documents import FewShot
from harness.zoo.training.drafting import DrafterRecipe, FrozenTarget, shifted, soft_cross_entropy
from harness.zoo.training.optimizer import Schedule
from harness.zoo.training.packing import Batch
from harness.zoo.training.target import Examples
from harness.zoo.training.transformer import Decoder, Output, compiled, init_weights, rms_norm
from harness.zoo.writer import hf_config, hf_generation_config, write_json, write_safetensors

__all__ = [
    "FEW_SHOT",
    "RECIPES",
    "DraftModel",
    "DraftModelObjective",
    "draft_config",
    "export",
    "export_model",
    "load",
    "load_model",
    "objective",
]

FEW_SHOT = FewShot(share=0.08)
WEIGHT_FILES = (".safetensors", ".safetensors.index.json")
CONFIG_FILES = ("config.json", "generation_config.json")

RECIPES: tuple[DrafterRecipe, ...] = (
    DrafterRecipe(
        "tiny-draft",
        "draft_model",
        Schedule(num_steps=600),
        options=(
            ("hidden_size", 64),
            ("intermediate_size", 176),
            ("num_layers", 2),
            ("num_heads", 2),
            ("num_kv_heads", 2),
            ("head_dim", 32),
        ),
    ),
    DrafterRecipe(
        "tiny-draft-small",
        "draft_model",
        Schedule(num_steps=450),
        options=(
            ("hidden_size", 32),
            ("intermediate_size", 96),
            ("num_layers", 2),
            ("num_heads", 1),
            ("num_kv_heads", 1),
            ("head_dim", 32),
        ),
    ),
)


def draft_config(recipe: DrafterRecipe, target: FrozenTarget) -> ModelConfig:
    """A Llama of the recipe's sizes with the target's vocabulary, context length and special ids."""
    return replace(
        target.config,
        architecture="LlamaForCausalLM",
        hidden_size=recipe.option("hidden_size"),
        intermediate_size=recipe.option("intermediate_size"),
        num_layers=recipe.option("num_layers"),
        num_heads=recipe.option("num_heads"),
        num_kv_heads=recipe.option("num_kv_heads"),
        head_dim=recipe.option("head_dim"),
        rope_scaling=None,
        tie_word_embeddings=True,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
    )


@dataclass
class DraftModelObjective:
    """Cross entropy against the target's distribution at every place of the packed rows, by the next token's weight."""

    recipe: DrafterRecipe
    target: FrozenTarget
    source: Examples = examples
    compile_layers: bool = True
    parameters: Mapping[str, torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        config = draft_config(self.recipe, self.target)
        self.identity = self.recipe.identity(self.target)
        self.parameters = init_weights(expected_tensors(config), self.recipe.seed)
        self.model = Decoder(config, self.parameters, compile_layers=self.compile_layers)
        self._stream = self.recipe.stream(self.target, self.source)

        def head_loss(
            x: torch.Tensor, norm: torch.Tensor, head: torch.Tensor, target_logits: torch.Tensor, weights: torch.Tensor
        ) -> torch.Tensor:
            return soft_cross_entropy(F.linear(rms_norm(x, norm, config.rms_norm_eps), head), target_logits, weights)

        self._head_loss = compiled(head_loss) if self.compile_layers else head_loss

    def batch(self, step: int) -> Batch:
        return self._stream.batch(step, self.recipe.rows, self.recipe.length, FEW_SHOT)

    def loss(self, batch: Batch) -> tuple[torch.Tensor, int]:
        target_logits = self.target.forward(batch.ids).logits
        x = self.model.hidden(batch.ids)[-1]
        _, weights = shifted(batch, 1)
        norm = self.parameters["model.norm.weight"]
        return self._head_loss(x[:, :-1], norm, self.model.head, target_logits[:, :-1], weights), batch.num_tokens


@dataclass(frozen=True)
class DraftModel:
    """Greedy proposals one after another; the target's states are not looked at."""

    model: Decoder

    @torch.no_grad()
    def propose(self, token_ids: Sequence[int], states: Output, num_drafts: int) -> list[int]:
        """See `Drafter`. Fewer than `num_drafts` where the context ends."""
        ids = list(token_ids)
        room = self.model.config.max_position_embeddings - len(ids) + 1
        for _ in range(min(num_drafts, room)):
            ids.append(int(self.model.forward(torch.tensor([ids])).logits[0, -1].argmax()))
        return ids[len(token_ids) :]


def objective(recipe: DrafterRecipe, target: FrozenTarget) -> DraftModelObjective:
    return DraftModelObjective(recipe, target)


def export(objective: DraftModelObjective, directory: Path) -> Path:
    """Write a Hugging Face directory in bfloat16 with the target's tokenizer. `ZooError` if the disk does not take it."""
    return export_model(objective.model.config, objective.parameters, objective.target, directory)


def load(directory: Path, target: FrozenTarget) -> DraftModel:
    """What `export` wrote, in float32. `ValueError` if it has another vocabulary than `target`."""
    return DraftModel(load_model(directory, target))


def export_model(
    config: ModelConfig,
    weights: Mapping[str, torch.Tensor],
    target: FrozenTarget,
    directory: Path,
    fields: Mapping[str, Any] | None = None,
) -> Path:
    """See `export`; `fields` are added to config.json."""
    shapes = expected_tensors(config)
    dtype = torch.bfloat16
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tensors = (weights[name].detach().to(dtype) for name in shapes)
        write_safetensors(directory / "model.safetensors", shapes, tensors, dtype)
        write_json(directory / "config.json", {**hf_config(config, dtype), **(fields or {})})
        write_json(directory / "generation_config.json", hf_generation_config(config))
        for file in sorted(target.directory.iterdir()):
            if file.is_file() and file.name not in CONFIG_FILES and not file.name.endswith(WEIGHT_FILES):
                shutil.copyfile(file, directory / file.name)
    except OSError as error:
        raise ZooError(f"{directory} cannot be written ({error.strerror or error})") from error
    return directory


def load_model(directory: Path, target: FrozenTarget) -> Decoder:
    """The decoder in `directory`, in float32. `ValueError` if it has another vocabulary than `target`."""
    checkpoint = open_checkpoint(directory)
    if checkpoint.config.vocab_size != target.config.vocab_size:
        raise ValueError(
            f"{directory} has {checkpoint.config.vocab_size} words, and the target {target.config.vocab_size}: "
            "it was not trained for it"
        )
    weights = {name: checkpoint.tensor(name).float() for name in expected_tensors(checkpoint.config)}
    return Decoder(checkpoint.config, weights)
