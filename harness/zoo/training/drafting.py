"""What all drafters' trainings share: the frozen target, the loss, and an offline simulation of greedy speculative decoding.

Shapes: B rows of T tokens, D = the target's hidden size, V words, K drafts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from engine.checkpoint import expected_tensors, open_checkpoint
from engine.tokenizer import Tokenizer, load_tokenizer
from harness.datasets.mixture import examples
from harness.zoo.training.generation import greedy
from harness.zoo.training.optimizer import Schedule
from harness.zoo.training.packing import Batch, Encoder, PackedStream
from harness.zoo.training.target import Examples
from harness.zoo.training.transformer import Decoder, Output

__all__ = [
    "Drafter",
    "DrafterRecipe",
    "FrozenTarget",
    "Question",
    "SimulatedRequest",
    "shifted",
    "simulate",
    "soft_cross_entropy",
]


class FrozenTarget:
    """The target as its checkpoint has it, widened to float32. Nothing here gets gradients."""

    def __init__(self, directory: Path, *, compile_layers: bool = False) -> None:
        checkpoint = open_checkpoint(directory)
        self.directory = directory
        self.config = checkpoint.config
        weights = {name: checkpoint.tensor(name).float() for name in expected_tensors(self.config)}
        self.model = Decoder(self.config, weights, compile_layers=compile_layers)
        self.tokenizer: Tokenizer = load_tokenizer(directory)
        digest = hashlib.sha256()
        for name in sorted(weights):
            digest.update(weights[name].numpy().tobytes())
        self.identity = digest.hexdigest()[:12]

    @property
    def embedding(self) -> torch.Tensor:
        """[V, D]"""
        return self.model.weights["model.embed_tokens.weight"]

    @property
    def head(self) -> torch.Tensor:
        """[V, D]"""
        return self.model.head

    @torch.no_grad()
    def forward(self, ids: torch.Tensor) -> Output:
        """ids [B, T] -> logits, normed last hidden state, and hidden states: the embedding, then each layer's output."""
        return self.model.forward(ids, with_hidden=True)


@dataclass(frozen=True)
class DrafterRecipe:
    """Everything that a drafter's weights depend on, besides its target's and the machine's arithmetic.

    `kind` is a module of `harness.zoo.training.kinds` with `objective(recipe, target)`, `export(objective, directory)` and
    `load(directory, target)`; `options` are its own.
    """

    name: str
    kind: str
    schedule: Schedule
    target: str = "tiny"
    seed: int = 0
    rows: int = 12
    length: int = 256
    options: tuple[tuple[str, int | float | str], ...] = ()

    def option(self, name: str) -> Any:
        return dict(self.options)[name]

    def identity(self, target: FrozenTarget) -> str:
        return f"{self.name} {hashlib.sha256(repr(self).encode()).hexdigest()[:12]} {target.identity}"

    def stream(self, target: FrozenTarget, source: Examples = examples) -> PackedStream:
        """The batches' stream: the target's training data in another order."""
        return PackedStream(source, Encoder(target.tokenizer.hf), 1000 + self.seed, self.schedule.num_steps)


class Drafter(Protocol):
    """A trained drafter, as slow and clear as it can be: it is given everything anew for each round."""

    def propose(self, token_ids: Sequence[int], states: Output, num_drafts: int) -> list[int]:
        """Greedy proposals for what follows `token_ids`, at most `num_drafts`.

        token_ids: all n known tokens, the last one not yet computed by the target. states: the target's [1, n - 1, ...] for
        the tokens before it.
        """


@dataclass(frozen=True)
class Question:
    prompt_token_ids: tuple[int, ...]
    category: str


@dataclass(frozen=True)
class SimulatedRequest:
    """accepted: for each round, how many drafts were accepted and emitted."""

    category: str
    accepted: tuple[int, ...]


def shifted(batch: Batch, by: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, weights) [B, T - by] of the token `by` places later, for the places that have one in their row."""
    return batch.ids[:, by:], batch.weights[:, by:]


def soft_cross_entropy(draft_logits: torch.Tensor, target_logits: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the draft [..., V] against the target's distribution [..., V], the mean by `weights` [...].

    Its gradient is that of the KL divergence.
    """
    wanted = target_logits.softmax(-1)
    losses = -(wanted * F.log_softmax(draft_logits, dim=-1)).sum(-1)
    return (losses * weights).sum() / weights.sum()


@torch.no_grad()
def simulate(
    drafter: Drafter,
    target: FrozenTarget,
    questions: Sequence[Question],
    *,
    num_drafts: int,
    max_new_tokens: int,
    batch: int = 32,
) -> list[SimulatedRequest]:
    """Walk along the target's greedy continuation of each question and count what the drafter gets right.

    A round happens whenever at least one more token follows; drafts behind the end count as not accepted.
    """
    requests = []
    eos = target.config.eos_token_ids[0]
    for start in range(0, len(questions), batch):
        chosen = questions[start : start + batch]
        answers = greedy(target.model, [q.prompt_token_ids for q in chosen], max_new_tokens, eos=eos, pad=eos)
        for question, answer in zip(chosen, answers, strict=True):
            ended = len(answer) < max_new_tokens
            path = [*question.prompt_token_ids, *answer, *([eos] if ended else [])]
            requests.append(_walk(drafter, target, path, len(question.prompt_token_ids), question.category, num_drafts))
    return requests


def _walk(
    drafter: Drafter, target: FrozenTarget, path: Sequence[int], num_prompt_tokens: int, category: str, num_drafts: int
) -> SimulatedRequest:
    states = target.forward(torch.tensor([list(path)]))
    known = num_prompt_tokens + 1  # the prefill gives the first token
    accepted = []
    while known < len(path):
        drafts = drafter.propose(path[:known], _until(states, known - 1), num_drafts)
        right = 0
        for draft, truth in zip(drafts, path[known:], strict=False):
            if draft != truth:
                break
            right += 1
        accepted.append(right)
        known += right + 1
    return SimulatedRequest(category, tuple(accepted))


def _until(states: Output, length: int) -> Output:
    return Output(states.logits[:, :length], states.normed[:, :length], tuple(h[:, :length] for h in states.hidden))
