"""A small decoder that proposes K tokens in one pass (PARD, arXiv 2504.18583).

It reads the known tokens and K - 1 copies of a mask token behind them, at the positions that follow. The last known token's
place gives the first proposal, each mask the next one. That is vLLM's layout (`parallel_drafting: true` with a draft model; the
mask's id is `pard_token` in config.json). A mask sees the masks before it, so a model that is trained for K proposals gives
fewer as well. The mask token is the padding token, which occurs in no text.

Training: behind each row of T tokens come A groups of K - 1 masks, each as if the row ended at its anchor, a place drawn by the
weights of the tokens. It takes the role of the paper's conditional drop: all groups of a row train at once, at the price of
(K - 1) * A more places.

Shapes: B rows, M = A * (K - 1) masks, L = T + M places.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F

from engine.checkpoint import expected_tensors
from harness.datasets.mixture import examples
from harness.zoo.training.drafting import DrafterRecipe, FrozenTarget, soft_cross_entropy
from harness.zoo.training.kinds.draft_model import FEW_SHOT, draft_config, export_model, load_model
from harness.zoo.training.optimizer import Schedule
from harness.zoo.training.packing import Batch
from harness.zoo.training.target import Examples
from harness.zoo.training.transformer import Decoder, Output, compiled, init_weights

__all__ = ["RECIPES", "ParallelDraftModel", "PardBatch", "PardObjective", "export", "load", "objective"]

RECIPES: tuple[DrafterRecipe, ...] = (
    DrafterRecipe(
        "tiny-pard",
        "pard",
        Schedule(num_steps=400),
        options=(
            ("hidden_size", 64),
            ("intermediate_size", 176),
            ("num_layers", 3),
            ("num_heads", 2),
            ("num_kv_heads", 2),
            ("head_dim", 32),
            ("num_drafts", 4),
            ("anchors", 48),
        ),
    ),
)


@dataclass(frozen=True)
class PardBatch:
    """Rows and, for each, the last known places of its mask groups."""

    rows: Batch
    anchors: torch.Tensor  # int64 [B, A]


@dataclass
class PardObjective:
    """Cross entropy against the target's distribution at the rows' places and at the masks, by the predicted token's weight."""

    recipe: DrafterRecipe
    target: FrozenTarget
    source: Examples = examples
    compile_layers: bool = True
    parameters: Mapping[str, torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        config = draft_config(self.recipe, self.target)
        self.identity = self.recipe.identity(self.target)
        self.parameters = init_weights(expected_tensors(config), self.recipe.seed)
        self.model = Decoder(config, self.parameters)
        self.mask_token_id: int = self.target.tokenizer.hf.pad_token_id
        self.num_masks: int = self.recipe.option("num_drafts") - 1
        self._stream = self.recipe.stream(self.target, self.source)

        def distilled(
            ids: torch.Tensor, anchors: torch.Tensor, target_logits: torch.Tensor, weights: torch.Tensor
        ) -> torch.Tensor:
            places = self._predicting_places(ids.shape[1], anchors)
            wanted = target_logits.gather(1, places[:, :, None].expand(-1, -1, target_logits.shape[2]))
            # The token after a row's last place is unknown.
            following = torch.cat((weights[:, 1:], torch.zeros_like(weights[:, :1])), dim=1)
            return soft_cross_entropy(self.logits(ids, anchors), wanted, following.gather(1, places))

        self._loss = compiled(distilled) if self.compile_layers else distilled

    def batch(self, step: int) -> PardBatch:
        rows = self._stream.batch(step, self.recipe.rows, self.recipe.length, FEW_SHOT)
        generator = torch.Generator().manual_seed(1_000_003 * self.recipe.seed + step)
        # Place p is as likely as the token that the first mask behind it predicts; a few of the rest, if a row has too few.
        likely = rows.weights[:, 2 : rows.weights.shape[1] - self.num_masks + 1] + 1e-4
        anchors = torch.multinomial(likely, self.recipe.option("anchors"), generator=generator)
        return PardBatch(rows, anchors)

    def loss(self, batch: PardBatch) -> tuple[torch.Tensor, int]:
        rows = batch.rows
        return self._loss(rows.ids, batch.anchors, self.target.forward(rows.ids).logits, rows.weights), rows.num_tokens

    def logits(self, ids: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
        """ids [B, T], anchors [B, A] -> [B, L, V]: the rows' own, then each group's masks in order."""
        model, length = self.model, ids.shape[1]
        positions = self._predicting_places(length, anchors)  # a mask stands where the token would that it does not know
        cos, sin = model.cos[positions][:, None], model.sin[positions][:, None]
        visible = self._visible(length, anchors)[:, None]
        masks = torch.full((ids.shape[0], positions.shape[1] - length), self.mask_token_id)
        x = F.embedding(torch.cat((ids, masks), dim=1), self.parameters["model.embed_tokens.weight"])
        for i in range(model.config.num_layers):
            q, k, v = model.qkv(i, x, cos, sin)
            x = model.after_attention(i, x, _masked_attention(q, k, v, visible))
        return F.linear(model.final_norm(x), model.head)

    def _predicting_places(self, length: int, anchors: torch.Tensor) -> torch.Tensor:
        """[B, L]: the place in the row whose next token each place predicts: its own, and 1, 2, ... behind the anchor."""
        rows = torch.arange(length).expand(anchors.shape[0], -1)
        masks = anchors[:, :, None] + torch.arange(1, self.num_masks + 1)
        return torch.cat((rows, masks.flatten(1)), dim=1)

    def _visible(self, length: int, anchors: torch.Tensor) -> torch.Tensor:
        """bool [B, L, L], queries by keys: rows are causal; a mask sees the row up to its anchor and its group up to itself."""
        num_rows = anchors.shape[0]
        last = torch.cat((torch.arange(length).expand(num_rows, -1), anchors.repeat_interleave(self.num_masks, dim=1)), dim=1)
        masks = torch.arange(anchors.shape[1] * self.num_masks)
        group = masks // self.num_masks
        among_masks = (group[:, None] == group) & (masks <= masks[:, None])
        to_masks = torch.cat((torch.zeros(length, masks.shape[0], dtype=torch.bool), among_masks))
        return torch.cat((torch.arange(length) <= last[:, :, None], to_masks.expand(num_rows, -1, -1)), dim=2)


def _masked_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """q [B, H, L, E], k and v [B, G, L, E], visible [B, 1, L, L] -> [B, H, L, E]."""
    repeats = q.shape[1] // k.shape[1]
    if repeats > 1:
        k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    probs: torch.Tensor = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return probs @ v


@dataclass(frozen=True)
class ParallelDraftModel:
    """All proposals from one causal pass over the known tokens and the masks; the target's states are not looked at."""

    model: Decoder
    mask_token_id: int

    @torch.no_grad()
    def propose(self, token_ids: Sequence[int], states: Output, num_drafts: int) -> list[int]:
        """See `Drafter`. Fewer than `num_drafts` where the context ends."""
        known = len(token_ids)
        num_drafts = min(num_drafts, self.model.config.max_position_embeddings - known + 1)
        if num_drafts <= 0:
            return []
        ids = [*token_ids, *[self.mask_token_id] * (num_drafts - 1)]
        choices: list[int] = self.model.forward(torch.tensor([ids])).logits[0, known - 1 :].argmax(-1).tolist()
        return choices


def objective(recipe: DrafterRecipe, target: FrozenTarget) -> PardObjective:
    return PardObjective(recipe, target)


def export(objective: PardObjective, directory: Path) -> Path:
    """Write a Hugging Face directory in bfloat16 with the target's tokenizer. `ZooError` if the disk does not take it."""
    fields = {"pard_token": objective.mask_token_id}
    return export_model(objective.model.config, objective.parameters, objective.target, directory, fields)


def load(directory: Path, target: FrozenTarget) -> ParallelDraftModel:
    """What `export` wrote, in float32. `ValueError` if it has another vocabulary than `target`."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return ParallelDraftModel(load_model(directory, target), int(config["pard_token"]))
