"""Drafters of one layer that chain: from the token after a place and a state of that place to the next token and state.

For a sequence of n known tokens, entry i (0 <= i <= n - 2) is made of token i + 1 and the target's state of position i, and
stands at position i. Entry n - 2 predicts the first proposal; every further one takes the proposal before it and the layer's
own last state, at the next position. That is what vLLM's proposer computes (`llm_base_proposer.py`).

Shapes: M places, D = the target's hidden size.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from engine.checkpoint import DrafterFile, ModelConfig, resolve_model
from engine.drafters.base import AcceptedStep, DraftContext, Drafts, Target
from engine.drafters.options import model_option, positive_option
from engine.drafters.paged import PagedDrafter, as_tensor
from engine.layer import Batch, Layer, WeightLoader, new_kv_cache
from engine.rope import rope_tables
from kernels.interface import PackedWeight

__all__ = ["ChainDrafter", "drafter_file"]


class ChainDrafter(PagedDrafter):
    """What is common; a subclass says how its layer is fed and read."""

    method: ClassVar[str]
    has_distribution: ClassVar[bool] = True
    option_names: ClassVar[tuple[str, ...]] = ("model", "max_model_len", "draft_tensor_parallel_size")
    reads_next_token: ClassVar[bool] = True

    config: ModelConfig
    """Of the layer."""
    layer: Layer
    head: PackedWeight
    """What turns states into logits."""

    def __init__(self, num_speculative_tokens: int, vocab_size: int, options: Mapping[str, Any]) -> None:
        super().__init__(num_speculative_tokens, vocab_size, options)
        if "model" in self.option_names:
            model_option(self.method, options)
        self.max_model_len = positive_option(options, "max_model_len")
        self.target_ids: torch.Tensor | None = None
        """[draft vocabulary] int64: the target's id of each of the head's; None: they are the same."""

    def load(self, target: Target) -> None:
        super().load(target)
        self.head = target.model.lm_head
        self.load_weights(target)
        table = target.table
        self.limit_positions(self.config, self.max_model_len)
        self._rope = rope_tables(self.config, self.max_positions)
        self._cache = new_kv_cache(self.config, target.num_kv_blocks, target.block_size)
        size = target.model.config.hidden_size
        self._states = torch.zeros(len(table.num_tokens), size)  # of the last final entry: what the head reads,
        self._carried = torch.zeros(len(table.num_tokens), size)  # and what the next step takes

    @abstractmethod
    def load_weights(self, target: Target) -> None:
        """Set `config`, `layer`, what else the method has, and `layer_ids`. `CheckpointError` if they do not fit `target`."""

    @abstractmethod
    def first_states(self, step: AcceptedStep, places: torch.Tensor) -> torch.Tensor:
        """The target's states at `places` of the step as the layer's first step takes them: [M, D]."""

    @abstractmethod
    def compute(self, embeds: torch.Tensor, carried: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """One step: token embeddings and carried states [M, D] -> (what the head reads, the next carried states) [M, D]."""

    def run_layer(self, x: torch.Tensor, residual: torch.Tensor, batch: Batch) -> torch.Tensor:
        """See `Layer.forward`."""
        return self.layer.forward(self.kernels, x, residual, self._cache, self._rope, batch)

    def embed(self, batch: Batch) -> torch.Tensor:
        return self.kernels.embedding(self.target.model.embedding, batch.token_ids)

    def advance(self, step: AcceptedStep) -> None:
        taken = self.states_to_take(step)
        if taken is None:
            return
        slots, positions = taken.slot_of_state, taken.positions
        batch = self.batch(slots, positions, self.tokens_at(slots, positions + 1))
        states, carried = self.compute(self.embed(batch), self.first_states(step, taken.places), batch)
        index = as_tensor(taken.slots)
        self._states[index], self._carried[index] = states[taken.finals], carried[taken.finals]

    def propose(self, context: DraftContext) -> Drafts:
        slots = context.slots
        drafts = np.zeros((len(slots), self.num_speculative_tokens), dtype=np.int32)
        # Entry n - 2 must be there; m proposals take m - 1 more.
        ready = self.num_done[slots] == context.num_tokens - 1
        counts = np.where(ready, np.minimum(context.max_drafts, self.reach(slots) - context.num_tokens + 2), 0)
        counts[context.num_tokens < 2] = 0  # a single token has no state before it
        index = as_tensor(slots)
        states, carried = self._states[index], self._carried[index]
        for place in range(int(counts.max(initial=0))):
            active = np.flatnonzero(counts > place)
            if not len(active):
                break
            if place:
                positions = context.num_tokens[active] - 2 + place
                batch = self.batch(slots[active], positions, drafts[active, place - 1])
                states, carried = self.compute(self.embed(batch), carried[as_tensor(active)], batch)
                # Rows that have stopped keep their place, so that one index serves all.
                states, carried = _spread(states, active, len(slots)), _spread(carried, active, len(slots))
            logits = self._as_target_logits(self.kernels.linear(states[as_tensor(active)], self.head))
            positions = context.num_tokens[active] + place
            choices = self.target.pick(logits, slots[active], positions, np.full_like(active, place))
            counts[active[choices < 0]] = place  # no finite largest value: no proposal from here on
            drafts[active, place] = np.maximum(choices, 0)
        return drafts, counts

    def _as_target_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """[M, draft vocabulary] -> [M, V]; what the head does not know cannot be proposed."""
        if self.target_ids is None:
            return logits
        out = logits.new_full((len(logits), self.vocab_size), -torch.inf)
        out[:, self.target_ids] = logits
        return out


def _spread(x: torch.Tensor, active: np.ndarray, num_rows: int) -> torch.Tensor:
    if len(active) == num_rows:
        return x
    out = x.new_zeros(num_rows, x.shape[1])
    out[as_tensor(active)] = x
    return out


def drafter_file(method: str, options: Mapping[str, Any]) -> DrafterFile:
    """Open the checkpoint that `speculative_config` names."""
    return DrafterFile(resolve_model(model_option(method, options)))


def layer_loader(file: DrafterFile, target: Target) -> WeightLoader:
    return WeightLoader(file, target.model.kernels, target.dtype)
