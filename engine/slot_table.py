"""The device's own view of the running requests: token values, lengths, drafts and block tables, one row for each slot.

What step N leaves here is all that step N + 1 knows of it (law 2). Drafts stand in the token table right behind the known
tokens, so a decode row, a verify row and a prefill row are all "tokens[start : start + q_len]".
"""

from __future__ import annotations

import numpy as np

from engine.step import NewSlot, PlanRow

__all__ = ["SlotTable"]


class SlotTable:
    def __init__(self, num_slots: int, max_model_len: int, num_speculative_tokens: int, block_size: int) -> None:
        self.tokens = np.zeros((num_slots, max_model_len + num_speculative_tokens + 1), dtype=np.int32)
        self.num_tokens = np.zeros(num_slots, dtype=np.int64)  # known tokens
        self.num_computed = np.zeros(num_slots, dtype=np.int64)  # positions that are in the KV cache and stay there
        self.num_drafts = np.zeros(num_slots, dtype=np.int64)  # proposals behind the known tokens
        self.token_limit = np.zeros(num_slots, dtype=np.int64)
        self.generation = np.zeros(num_slots, dtype=np.int64)
        self.block_tables = np.zeros((num_slots, -(-max_model_len // block_size)), dtype=np.int32)
        self.num_blocks = np.zeros(num_slots, dtype=np.int64)

    def admit(self, new: NewSlot) -> None:
        """Forget whatever the slot held, drafts among it."""
        slot, length = new.slot, len(new.token_ids)
        self.tokens[slot, :length] = new.token_ids
        self.num_tokens[slot] = length
        self.num_computed[slot] = new.num_cached_tokens
        self.num_drafts[slot] = 0
        self.token_limit[slot] = new.token_limit
        self.generation[slot] = new.generation
        self.num_blocks[slot] = 0

    def append_blocks(self, row: PlanRow) -> None:
        assert self.generation[row.slot] == row.generation, f"step for stay {row.generation} of slot {row.slot}, which is over"
        start = self.num_blocks[row.slot]
        self.block_tables[row.slot, start : start + len(row.new_block_ids)] = row.new_block_ids
        self.num_blocks[row.slot] += len(row.new_block_ids)

    def query_len(self, row: PlanRow) -> int:
        """Positions that the row puts through the model: 0 where the request has reached its limit meanwhile."""
        if not row.is_decode:
            return row.num_tokens
        room = int(self.token_limit[row.slot] - self.num_tokens[row.slot])
        return min(1 + int(self.num_drafts[row.slot]), row.num_tokens, room)

    def append_tokens(self, slot: int, token_ids: np.ndarray) -> None:
        """Known tokens of a step that wanted a token; the drafts that stood there are void."""
        start = self.num_tokens[slot]
        self.tokens[slot, start : start + len(token_ids)] = token_ids
        self.num_tokens[slot] += len(token_ids)
        self.num_drafts[slot] = 0
