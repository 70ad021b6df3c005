"""What drafters with KV entries of their own share: entries lie in the sequences' own blocks, under the same block tables.

So a prefix hit, a preemption and a reused block mean for the drafter what they mean for the target. Each slot counts how many
leading positions have final entries (`num_done`); entries behind that belong to proposals and are written again. By law 8 an
entry depends on its prefix alone, so it does not matter in which step it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from engine.checkpoint import ModelConfig
from engine.drafters.base import AcceptedStep, Drafter, Ints, Target
from engine.layer import Batch
from engine.ragged import arange_each
from engine.step import NewSlot

__all__ = ["PagedDrafter", "as_tensor"]


def as_tensor(values: Ints) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))


class States(NamedTuple):
    """Some of a step's states, M of them, of R rows."""

    slots: Ints  # [R]
    slot_of_state: Ints  # [M]
    positions: Ints  # [M]
    places: torch.Tensor  # [M], where they stand in the step's `hidden`
    finals: torch.Tensor  # [R], the index among the M of each row's last final one


class PagedDrafter(Drafter):
    keeps_kv: ClassVar[bool] = True
    max_positions: int
    """Positions that the drafter can stand at."""

    def __init__(self, num_speculative_tokens: int, vocab_size: int, options: Mapping[str, Any]) -> None:
        super().__init__(num_speculative_tokens, vocab_size, options)
        self.num_done: Ints = np.zeros(0, dtype=np.int64)

    def load(self, target: Target) -> None:
        self.target = target
        self.kernels = target.model.kernels
        self._block_tables = torch.from_numpy(target.table.block_tables)
        self.num_done = np.zeros(len(target.table.num_tokens), dtype=np.int64)

    def limit_positions(self, config: ModelConfig, max_model_len: int | None) -> None:
        """Set `max_positions` for a drafter of this config that is to stay below `max_model_len`."""
        most = config.max_position_embeddings
        self.max_positions = min(max_model_len or most, most, self.target.table.tokens.shape[1] - 1)

    def admit(self, new: NewSlot) -> None:
        self.num_done[new.slot] = new.num_cached_tokens

    def reach(self, slots: Ints) -> Ints:
        """How many leading positions of each slot can have an entry: as its blocks and the drafter's own limit allow."""
        return np.minimum(self.target.table.num_blocks[slots] * self.target.block_size, self.max_positions)

    def batch(self, slots: Ints, positions: Ints, token_ids: Ints, visible: Ints | None = None) -> Batch:
        """Tokens [M] at `positions` of `slots`; each sees its sequence up to `visible`, which is its own position if None."""
        size = self.target.block_size
        blocks = self.target.table.block_tables[slots, positions // size].astype(np.int64)
        return Batch(
            token_ids=as_tensor(token_ids),
            positions=as_tensor(positions),
            rows=as_tensor(slots),
            slot_mapping=as_tensor(blocks * size + positions % size),
            block_tables=self._block_tables,
            visible=None if visible is None else as_tensor(visible),
        )

    def tokens_at(self, slots: Ints, positions: Ints) -> Ints:
        tokens: Ints = self.target.table.tokens[slots, positions].astype(np.int64)
        return tokens

    def states_to_take(self, step: AcceptedStep) -> States | None:
        """The target's new states that entries are made of. The final ones among them count as done."""
        starts = np.maximum(self.num_done[step.slots], step.starts)
        reach = self.reach(step.slots)
        ends = np.minimum(step.num_computed, reach)
        rows = np.flatnonzero(ends > starts)
        if not len(rows):
            return None
        slots, starts, ends = step.slots[rows], starts[rows], ends[rows]
        self.num_done[slots] = ends
        # Padded: the rejected ones too; their entries are written again before anything reads them.
        last = np.minimum(step.starts + step.query_lens, reach)[rows] if self.target.padded else ends
        counts = last - starts
        positions = np.repeat(starts, counts) + arange_each(counts)
        places = positions - np.repeat((step.starts - step.offsets)[rows], counts)
        finals = np.cumsum(counts) - counts + ends - starts - 1
        return States(slots, np.repeat(slots, counts), positions, as_tensor(places), as_tensor(finals))
