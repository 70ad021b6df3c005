"""The target models of the zoo: their recipes as data, and their training."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F

from engine.checkpoint import ModelConfig, expected_tensors
from engine.errors import nearest_hint
from engine.tokenizer import load_tokenizer
from harness.datasets.example import Example
from harness.datasets.mixture import examples
from harness.zoo.training.documents import FewShot, document, document_text
from harness.zoo.training.loop import train
from harness.zoo.training.optimizer import Schedule
from harness.zoo.training.packing import Batch, Encoder, PackedStream
from harness.zoo.training.tokenizer import train_tokenizer
from harness.zoo.training.transformer import Decoder, compiled, init_weights, load_weights, rms_norm

__all__ = ["RECIPES", "ModelSizes", "Phase", "Rows", "TargetObjective", "TargetRecipe", "recipe_tokenizer", "train_target"]

Examples = Callable[[random.Random, float], Iterator[Example]]
VOCAB_SIZE = 1024
CONTEXT_LENGTH = 1024
TOKENIZER_PHASE = 0.07  # behind the warm-up, before made-up names: a name of training is a token of its own


@dataclass(frozen=True)
class ModelSizes:
    """The numbers in which the zoo's own models differ; everything else is the same for all (see `config`)."""

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    def config(self) -> ModelConfig:
        return ModelConfig(
            architecture=self.architecture,
            vocab_size=VOCAB_SIZE,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            rms_norm_eps=1e-5,
            rope_theta=1e4,
            rope_scaling=None,
            max_position_embeddings=CONTEXT_LENGTH,
            tie_word_embeddings=True,
            qkv_bias=False,
            output_bias=False,
            mlp_bias=False,
            qk_norm=self.architecture == "Qwen3ForCausalLM",
            bos_token_id=0,
            eos_token_ids=(1,),
        )


@dataclass(frozen=True)
class Rows:
    """The shape of a batch and its share of few-shot documents."""

    rows: int
    length: int
    few_shot: FewShot


@dataclass(frozen=True)
class Phase:
    """A part of the training, whose steps take their batches' shapes in turn."""

    until: float  # the share of the training at which it ends
    shapes: tuple[Rows, ...]


SHORT = Rows(10, 320, FewShot(share=0.08))
LONG = Rows(3, 1024, FewShot(share=0.6, min_examples=2, max_examples=6))
# NOTE: long rows alone, at the end, are a shock from which the falling learning rate does not recover (the loss went from 0.25
# to 3.2): a model that never attended to anything 320 tokens away must learn that beside what it knows.
PHASES = (Phase(0.06, (SHORT,)), Phase(0.3, (*[SHORT] * 7, LONG)), Phase(1.0, (*[SHORT] * 3, LONG)))


@dataclass(frozen=True)
class TargetRecipe:
    """Everything that the weights depend on, besides the machine's arithmetic."""

    name: str
    sizes: ModelSizes
    schedule: Schedule
    seed: int = 0
    phases: tuple[Phase, ...] = PHASES
    tokenizer_examples: int = 20_000

    @property
    def identity(self) -> str:
        return f"{self.name} {hashlib.sha256(repr(self).encode()).hexdigest()[:12]}"

    def shape(self, step: int) -> Rows:
        phases = self.phases
        phase = next(p for p in phases if step < p.until * self.schedule.num_steps or p is phases[-1])
        return phase.shapes[step % len(phase.shapes)]


RECIPES = {
    recipe.name: recipe
    for recipe in (
        TargetRecipe(
            "tiny",
            ModelSizes("LlamaForCausalLM", 128, 352, 5, 4, 2, 32),
            Schedule(num_steps=15_000, restarts=((9000, 0.6), (12_600, 0.4))),
        ),
        TargetRecipe("tiny-qwen3", ModelSizes("Qwen3ForCausalLM", 96, 256, 4, 2, 1, 128), Schedule(num_steps=3000)),
    )
}


@dataclass
class TargetObjective:
    """The weighted next-token loss of a recipe's documents. `tokenizer` is its directory."""

    recipe: TargetRecipe
    tokenizer: Path
    source: Examples = examples
    compile_layers: bool = True
    parameters: Mapping[str, torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        config = self.recipe.sizes.config()
        tokenizer_digest = hashlib.sha256((self.tokenizer / "tokenizer.json").read_bytes()).hexdigest()
        self.identity = f"{self.recipe.identity} {tokenizer_digest[:12]}"
        self.parameters = init_weights(expected_tensors(config), self.recipe.seed)
        self.model = Decoder(config, self.parameters, compile_layers=self.compile_layers)
        encoder = Encoder(load_tokenizer(self.tokenizer).hf)
        self._stream = PackedStream(self.source, encoder, self.recipe.seed, self.recipe.schedule.num_steps)

        def head_loss(
            x: torch.Tensor, norm: torch.Tensor, head: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
        ) -> torch.Tensor:
            logits = F.linear(rms_norm(x, norm, config.rms_norm_eps), head)
            return weighted_loss(logits, ids, weights)

        self._head_loss = compiled(head_loss) if self.compile_layers else head_loss

    def batch(self, step: int) -> Batch:
        shape = self.recipe.shape(step)
        return self._stream.batch(step, shape.rows, shape.length, shape.few_shot)

    def loss(self, batch: Batch) -> tuple[torch.Tensor, int]:
        states = self.model.hidden(batch.ids)
        norm = self.parameters["model.norm.weight"]
        return self._head_loss(states[-1], norm, self.model.head, batch.ids, batch.weights), batch.num_tokens


def weighted_loss(logits: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of predicting each of ids [B, T] from the logits [B, T, V] before it, by weights [B, T]."""
    # Shifting the targets and not the logits keeps the large tensor whole; the last place of a row predicts nothing.
    targets = torch.cat((ids[:, 1:], ids[:, :1]), dim=1)
    shifted = torch.cat((weights[:, 1:], torch.zeros_like(weights[:, :1])), dim=1)
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return (losses * shifted.flatten()).sum() / shifted.sum()


def recipe_tokenizer(recipe: TargetRecipe, directory: Path, source: Examples = examples) -> Path:
    """The tokenizer of the recipe in `directory`, trained if it is not there (seconds)."""
    if not (directory / "tokenizer_config.json").exists():
        stream = islice(source(random.Random(f"{recipe.seed}/tokenizer"), TOKENIZER_PHASE), recipe.tokenizer_examples)
        texts = (document_text(document([example])) for example in stream)
        train_tokenizer(texts, directory, vocab_size=VOCAB_SIZE, context_length=CONTEXT_LENGTH)
    return directory


def train_target(
    recipe: TargetRecipe | str,
    directory: Path,
    *,
    num_steps: int | None = None,
    threads: int = 1,
    start: tuple[Path, int] | None = None,
    watch: Callable[[TargetObjective, int], None] | None = None,
    watch_every: int = 0,
) -> TargetObjective:
    """Train (or go on training) in `directory`, which gets the state and `tokenizer/`; the trained objective comes back.

    `num_steps` changes the length of the whole schedule, and so the recipe. `start` is a checkpoint and the step that it stands
    for: a training that is not in `directory` yet begins there, with a fresh optimizer, instead of at random weights. Bits
    repeat on one machine with one `threads`.
    """
    if isinstance(recipe, str):
        if recipe not in RECIPES:
            raise ValueError(f"there is no recipe {recipe!r}.{nearest_hint(recipe, RECIPES)}")
        recipe = RECIPES[recipe]
    if num_steps is not None:
        recipe = replace(recipe, schedule=replace(recipe.schedule, num_steps=num_steps))
    torch.set_num_threads(threads)
    objective = TargetObjective(recipe, recipe_tokenizer(recipe, directory / "tokenizer"))
    if start is not None:
        weights = load_weights(start[0], {name: tuple(p.shape) for name, p in objective.parameters.items()})
        with torch.no_grad():
            for name, parameter in objective.parameters.items():
                parameter.copy_(weights[name])
    watcher = None if watch is None else lambda step: watch(objective, step)
    first_step = 0 if start is None else start[1]
    train(objective, recipe.schedule, directory, first_step=first_step, watch=watcher, watch_every=watch_every)
    return objective
