"""A smaller model of its own that proposes one token after another (arXiv 2211.17192), or all in one pass (PARD, 2504.18583).

`parallel_drafting`: the model reads the known tokens and K - 1 mask tokens at the positions behind them; the last known token
gives the first proposal and each mask the next. The mask's id is `pard_token` in its config.json (vLLM's layout).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch

from engine.checkpoint import CheckpointError, open_checkpoint, resolve_model
from engine.checkpoint.quantization import METHODS
from engine.checkpoint.safetensors import read_json
from engine.drafters.base import AcceptedStep, DraftContext, Drafts, Ints, Target
from engine.drafters.options import model_option, positive_option
from engine.drafters.paged import PagedDrafter, as_tensor
from engine.model import Decoder
from engine.ragged import arange_each

__all__ = ["DraftModelDrafter"]


class DraftModelDrafter(PagedDrafter):
    has_distribution: ClassVar[bool] = True
    option_names: ClassVar[tuple[str, ...]] = (
        "model",
        "max_model_len",
        "quantization",
        "parallel_drafting",
        "draft_tensor_parallel_size",
    )

    def __init__(self, num_speculative_tokens: int, vocab_size: int, options: Mapping[str, Any]) -> None:
        super().__init__(num_speculative_tokens, vocab_size, options)
        self.model_name = model_option("draft_model", options)
        self.max_model_len = positive_option(options, "max_model_len")
        self.quantization = options.get("quantization")  # of the draft model alone: the target's does not matter
        if self.quantization not in (None, *METHODS):
            raise ValueError(
                f"speculative_config: quantization must be one of {', '.join(METHODS)}, got {self.quantization!r}."
            )
        self.parallel = options.get("parallel_drafting", False)
        if not isinstance(self.parallel, bool):
            raise ValueError(f"parallel_drafting must be True or False, got {self.parallel!r}.")

    def load(self, target: Target) -> None:
        super().load(target)
        path = resolve_model(self.model_name)
        checkpoint = open_checkpoint(path)
        config, wanted = checkpoint.config, target.model.config
        if config.vocab_size != wanted.vocab_size:
            raise CheckpointError(
                f"{self.model_name}: this draft model has a vocabulary of {config.vocab_size}, but the target has "
                f"{wanted.vocab_size}; use a draft model with the target's tokenizer"
            )
        self.limit_positions(config, self.max_model_len)
        self.model = Decoder(
            checkpoint,
            self.kernels,
            dtype=target.dtype,
            quantization=self.quantization,
            max_model_len=self.max_positions,
            num_kv_blocks=target.num_kv_blocks,
            block_size=target.block_size,
        )
        self.mask_token_id = _mask_token_id(path) if self.parallel else -1
        num_slots = len(target.table.num_tokens)
        # Parallel: the states of all places that predict; else those of the last known token.
        width = self.num_speculative_tokens if self.parallel else 1
        self._states = torch.zeros(num_slots, width, config.hidden_size)

    def advance(self, step: AcceptedStep) -> None:
        """Entries for the known tokens. The last one, which the target has not computed, only where drafts are wanted."""
        reach = self.reach(step.slots)
        starts = self.num_done[step.slots]
        ends = np.minimum(np.where(step.max_drafts > 0, step.num_tokens, step.num_computed), reach)
        counts = np.maximum(ends - starts, 0)
        ready = (step.max_drafts > 0) & (ends == step.num_tokens)
        rows = np.flatnonzero(counts)
        if not len(rows):
            return
        masks = np.where(ready, np.minimum(step.max_drafts - 1, reach - ends), 0) if self.parallel else np.zeros_like(counts)
        totals = counts + masks
        if self.target.padded:  # behind the known tokens anything may stand: it is written again before it is read
            totals = np.minimum(np.maximum(totals, step.query_lens + 1 + masks), reach - starts)
        masks, totals, slots = masks[rows], totals[rows], step.slots[rows]
        slot_of_token = np.repeat(slots, totals)
        place = arange_each(totals)
        positions = np.repeat(starts[rows], totals) + place
        token_ids = self.tokens_at(slot_of_token, positions)
        if self.parallel:
            token_ids[place >= np.repeat(counts[rows], totals)] = self.mask_token_id
        hidden = self.model.forward(self.batch(slot_of_token, positions, token_ids)).normed
        self.num_done[slots] = ends[rows]
        # The last known token's state, and behind it those of the masks.
        first = np.cumsum(totals) - totals + counts[rows] - 1
        for width in range(self._states.shape[1]):
            has = np.flatnonzero(masks >= width)
            self._states[as_tensor(slots[has]), width] = hidden[as_tensor(first[has] + width)]

    def propose(self, context: DraftContext) -> Drafts:
        slots = context.slots
        drafts = np.zeros((len(slots), self.num_speculative_tokens), dtype=np.int32)
        # Without an entry for the last known token there is nothing to start from; m proposals take m - 1 more entries.
        ready = self.num_done[slots] == context.num_tokens
        counts = np.where(ready, np.minimum(context.max_drafts, self.reach(slots) - context.num_tokens + 1), 0)
        for place in range(int(counts.max(initial=0))):
            active = np.flatnonzero(counts > place)
            if not len(active):
                break
            states = self._next_states(slots[active], context.num_tokens[active], drafts[active], place)
            positions = context.num_tokens[active] + place
            choices = self.target.pick(self.model.logits(states), slots[active], positions, np.full_like(active, place))
            drafts[active, place] = np.maximum(choices, 0)
            counts[active[choices < 0]] = place  # no finite largest value: no proposal from here on
        return drafts, counts

    def _next_states(self, slots: Ints, num_tokens: Ints, drafts: np.ndarray, place: int) -> torch.Tensor:
        """What predicts the proposal at `place`: [rows, hidden_size]"""
        if self.parallel or place == 0:
            return self._states[as_tensor(slots), place]
        return self.model.forward(self.batch(slots, num_tokens + place - 1, drafts[:, place - 1])).normed


def _mask_token_id(path: Any) -> int:
    value = read_json(path / "config.json").get("pard_token")
    if isinstance(value, bool) or not isinstance(value, int):
        raise CheckpointError(
            f"{path}: parallel_drafting needs a model that was trained for it, whose config.json names its mask token as "
            f"'pard_token'; this one says {value!r}"
        )
    return value
