"""EAGLE-1 for a checkpoint whose training data nobody has: it learns from text that the checkpoint wrote itself.

The drafter and its file are `eagle`'s. The target is run once over every text (`stored_states`); what it cost is then kept, so
that the training pays for the layer and the LM head only. Most of that is the head, so it reads a sample of the places.

Shapes: B texts of T tokens, D = hidden_size, V words, N sampled places.
"""

from __future__ import annotations

import io
import random
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from harness.zoo.download import ZooError
from harness.zoo.training.chain import draft_config, unroll
from harness.zoo.training.drafting import DrafterRecipe, FrozenTarget
from harness.zoo.training.kinds.eagle import EagleNet, export, load
from harness.zoo.training.loop import write_atomically
from harness.zoo.training.optimizer import Schedule
from harness.zoo.training.own_text import read_own_text
from harness.zoo.training.transformer import init_weights

__all__ = ["RECIPES", "OwnTextObjective", "export", "load", "objective", "stored_states"]

RECIPES = (
    DrafterRecipe(
        "smollm2-135m-eagle",
        "eagle_own_text",
        Schedule(num_steps=400, warmup_steps=30, muon_lr=0.01),
        target="smollm2-135m",
        rows=6,  # texts of a step; 400 steps are two passes over 1200
        options=(
            ("num_replies", 1200),
            ("steps", 2),
            ("regression", 0.5),
            ("noise", 0.1),
            ("head_places", 192),  # of a step of the chain, at which the LM head is read
        ),
    ),
)
SHARD = 64  # texts in a file; what an interruption can lose


@dataclass(frozen=True)
class Text:
    ids: torch.Tensor  # int64 [T]
    num_prompt_tokens: int
    normed: torch.Tensor  # bfloat16 [T, D], after the last norm


@dataclass(frozen=True)
class OwnTextBatch:
    ids: torch.Tensor  # int64 [B, T], padded with 0
    normed: torch.Tensor  # float32 [B, T, D], what the target has
    noise: torch.Tensor  # float32 [B, T, D]
    counts: torch.Tensor  # float32 [B, T], 1 where the token is of a reply
    places: tuple[torch.Tensor, ...]  # of each step: N of the slots, flat, whose prediction is of a reply
    num_tokens: int


@torch.no_grad()
def stored_states(target: FrozenTarget, text: Path, directory: Path, count: int) -> list[Text]:
    """The first `count` texts with the target's hidden states, computed once: `directory` gets a file for each 64 texts.

    Goes on where an interrupted call stopped. `ZooError` if the disk is full, or if the files are of another text or target.
    """
    directory.mkdir(parents=True, exist_ok=True)
    lines = list(islice(read_own_text(text), count))
    texts: list[Text] = []
    for start in range(0, len(lines), SHARD):
        chosen = lines[start : start + SHARD]
        file = directory / f"states-{start // SHARD:04d}.pt"
        if not file.exists():
            normed = [_normed(target, [*prompt, *reply]) for prompt, reply in chosen]
            stream = io.BytesIO()
            torch.save({"target": target.identity, "texts": chosen, "normed": normed}, stream)
            write_atomically(file, stream.getvalue())
        shard = torch.load(file, weights_only=True, mmap=True)
        if shard["target"] != target.identity or [tuple(pair) for pair in shard["texts"]] != chosen:
            raise ZooError(f"{file} is of another text or target: delete it")
        for (prompt, reply), states in zip(chosen, shard["normed"], strict=True):
            texts.append(Text(torch.tensor([*prompt, *reply]), len(prompt), states))
    return texts


def _normed(target: FrozenTarget, ids: list[int]) -> torch.Tensor:
    states = target.model.hidden(torch.tensor([ids]))[-1]
    return target.model.final_norm(states)[0].bfloat16()


class OwnTextObjective:
    """The loss of `ChainObjective`, with the KL divergence over the whole vocabulary at `head_places` sampled slots of a step,
    all of which predict a token of a reply, and the regression at all slots that do."""

    def __init__(self, recipe: DrafterRecipe, target: FrozenTarget, directory: Path) -> None:
        self.identity = recipe.identity(target)
        self.recipe, self.target = recipe, target
        self.net = EagleNet(draft_config(target.config))
        self.parameters = init_weights(self.net.shapes, recipe.seed)
        self.num_steps = int(recipe.option("steps"))
        count = int(recipe.option("num_replies"))
        texts = stored_states(target, directory / "own_text.jsonl", directory / "states", count)
        self._texts = [text for text in texts if len(text.ids) > text.num_prompt_tokens + self.num_steps]
        if len(self._texts) < recipe.rows:
            raise ZooError(f"{directory} has {len(self._texts)} texts, fewer than one batch")

    def batch(self, step: int) -> OwnTextBatch:
        """Texts of about the same length; in each pass over the data every text comes once."""
        rows, d = self.recipe.rows, self.net.config.hidden_size
        per_pass = len(self._texts) // rows
        rng = random.Random(f"{self.recipe.seed}/pass {step // per_pass}")
        order = sorted(range(len(self._texts)), key=lambda i: (len(self._texts[i].ids) // 16, rng.random()))
        groups = [order[i * rows : (i + 1) * rows] for i in range(per_pass)]
        rng.shuffle(groups)
        chosen = [self._texts[i] for i in groups[step % per_pass]]
        longest = max(len(text.ids) for text in chosen)
        generator = torch.Generator().manual_seed(self.recipe.seed * 1_000_003 + step)
        noise = (torch.rand(rows, longest, d, generator=generator) * 2 - 1) * float(self.recipe.option("noise"))
        counts = torch.stack([_padded((torch.arange(len(t.ids)) >= t.num_prompt_tokens).float(), longest) for t in chosen])
        return OwnTextBatch(
            ids=torch.stack([_padded(text.ids, longest) for text in chosen]),
            normed=torch.stack([_padded(text.normed.float(), longest) for text in chosen]),
            noise=noise,
            counts=counts,
            places=tuple(self._places(counts, step, generator) for step in range(self.num_steps)),
            num_tokens=sum(len(text.ids) for text in chosen),
        )

    def _places(self, counts: torch.Tensor, step: int, generator: torch.Generator) -> torch.Tensor:
        slots = counts.shape[1] - 1 - self.num_steps
        of_reply = counts[:, 2 + step : 2 + step + slots].flatten().nonzero()[:, 0]
        chosen = torch.randperm(len(of_reply), generator=generator)[: int(self.recipe.option("head_places"))]
        return of_reply[chosen.sort().values]

    def loss(self, batch: OwnTextBatch) -> tuple[torch.Tensor, int]:
        regression = float(self.recipe.option("regression"))
        outputs = unroll(
            self.net, self.parameters, self.target.embedding, batch.ids, batch.normed + batch.noise, self.num_steps
        )
        total = torch.zeros(())
        for step, (state, hidden) in enumerate(outputs):
            slots = slice(1 + step, 1 + step + state.shape[1])
            counts = batch.counts[:, 2 + step : 2 + step + state.shape[1]]
            wanted, places = batch.normed[:, slots], batch.places[step]
            total = total + _head_loss(state.flatten(0, 1)[places], wanted.flatten(0, 1)[places], self.target.head)
            distance = F.smooth_l1_loss(hidden, wanted, reduction="none").mean(-1)
            total = total + regression * (distance * counts).sum() / counts.sum()
        return total / self.num_steps, batch.num_tokens


def _padded(values: torch.Tensor, length: int) -> torch.Tensor:
    return torch.cat((values, values.new_zeros(length - len(values), *values.shape[1:])))


def _head_loss(state: torch.Tensor, wanted: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """Soft cross entropy of the drafter's state [N, D] against the target's [N, D] through the head [V, D], the mean."""
    loss: torch.Tensor = _SoftCrossEntropy.apply(state, wanted, head)  # type: ignore[no-untyped-call]
    return loss


class _SoftCrossEntropy(torch.autograd.Function):
    """The gradient is softmax(draft) - softmax(target), so it is made on the way forward and nothing of size V is kept."""

    @staticmethod
    def forward(ctx: Any, state: torch.Tensor, wanted: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
        target_probs = F.linear(wanted, head).softmax(-1)
        draft_logits = F.linear(state, head)
        log_total = draft_logits.logsumexp(-1)
        loss = (log_total - (target_probs * draft_logits).sum(-1)).mean()
        difference = draft_logits.sub_(log_total[:, None]).exp_().sub_(target_probs)
        ctx.save_for_backward(difference @ head / len(state))
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (of_state,) = ctx.saved_tensors
        return gradient * of_state, None, None


def objective(recipe: DrafterRecipe, target: FrozenTarget, directory: Path) -> OwnTextObjective:
    """See `OwnTextObjective`; `directory` has `own_text.jsonl` and gets `states/`."""
    return OwnTextObjective(recipe, target, directory)
