"""Corruptions of numbers: a runner that damages what the model computes from, once for each request.

The engine knows nothing of it: `distributed_executor_backend` takes a class, and that class brings its own runner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch

from engine.config import ResolvedConfig
from engine.errors import nearest_hint
from engine.executor.uni import UniExecutor
from engine.model import Hidden
from engine.runner import Launch, Runner
from engine.step import NewSlot, StepPlan, StepResult
from kernels.interface import Kernels

__all__ = ["CORRUPTIONS", "CorruptRunner", "corrupting_executor"]

GENERATED_ENTRY = 11  # the twelfth new token


@dataclass
class _Stay:
    """A request's stay in its slot."""

    num_prompt_tokens: int
    damaged: bool = False


class CorruptRunner(Runner):
    """Damages each request once, right before its first decode step unless a kind says otherwise.

    `num_damaged` counts the requests that were; a check that finds none has tested nothing.
    """

    kind: str
    digits: frozenset[int]
    num_damaged = 0

    def __init__(self, config: ResolvedConfig) -> None:
        super().__init__(config)
        self._stays: dict[int, _Stay] = {}
        type(self).num_damaged = 0
        self._watched = _WatchedKernels(self.kernels, self.kind) if self.kind in _COMPUTE_DAMAGE else None
        if self._watched is not None:
            self.model.kernels = cast(Kernels, self._watched)

    def execute(self, plan: StepPlan) -> StepResult:
        for new in plan.new_slots:
            self._stays[new.slot] = _Stay(new.num_prompt_tokens)
        if self.kind == "wrong_digit":
            plan = replace(plan, new_slots=tuple(map(self._with_wrong_digit, plan.new_slots)))
        decoding = [row.slot for row in plan.rows if row.is_decode]
        if self.kind in _CACHE_DAMAGE:
            _CACHE_DAMAGE[self.kind](self, [slot for slot in decoding if not self._stays[slot].damaged])
        elif self._watched is not None:
            self._watched.hidden = {slot: self._stays[slot].num_prompt_tokens - 1 for slot in decoding}
            self._mark(decoding)
        return super().execute(plan)

    def _forward(self, launch: Launch) -> Hidden:
        if self._watched is not None:
            decodes = torch.tensor([row.is_decode for row in launch.rows])
            self._watched.decodes = decodes.repeat_interleave(torch.from_numpy(launch.query_lens))
        return super()._forward(launch)

    def _mark(self, slots: Iterable[int]) -> None:
        for slot in slots:
            type(self).num_damaged += not self._stays[slot].damaged
            self._stays[slot].damaged = True

    def _with_wrong_digit(self, new: NewSlot) -> NewSlot:
        """The middle one of the prompt's digits, plus one."""
        places = [i for i, token in enumerate(new.token_ids[: new.num_prompt_tokens].tolist()) if token in self.digits]
        if not places:
            return new
        order = sorted(self.digits)
        place = places[len(places) // 2]
        token_ids = np.array(new.token_ids)
        token_ids[place] = order[(order.index(int(token_ids[place])) + 1) % len(order)]
        self._mark([new.slot])
        return replace(new, token_ids=token_ids)

    def entries(self, slot: int, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(blocks, offsets) of the positions `start` to `stop` of a sequence."""
        positions = np.arange(start, stop)
        blocks = self.table.block_tables[slot, positions // self.block_size].astype(np.int64)
        return torch.from_numpy(blocks), torch.from_numpy(positions % self.block_size)

    def _lose_block(self, slots: list[int]) -> None:
        """The block in the middle of the prompt is zeroed in every layer."""
        for slot in slots:
            middle = self._stays[slot].num_prompt_tokens // 2 // self.block_size
            block = int(self.table.block_tables[slot, middle])
            for caches in self.model.kv_caches:
                for cache in caches:
                    cache[block] = 0
        self._mark(slots)

    def _lose_generated(self, slots: list[int]) -> None:
        """The entry of the twelfth new token is zeroed in every layer, once it is there."""
        for slot in slots:
            place = self._stays[slot].num_prompt_tokens + GENERATED_ENTRY
            if self.table.num_computed[slot] > place:
                entry = self.entries(slot, place, place + 1)
                for caches in self.model.kv_caches:
                    for cache in caches:
                        cache[entry] = 0
                self._mark([slot])

    def _lose_layer_entry(self, slots: list[int]) -> None:
        """One entry in the middle of the prompt is zeroed in the middle layer alone."""
        for slot in slots:
            place = self._stays[slot].num_prompt_tokens // 2
            for cache in self.model.kv_caches[len(self.model.kv_caches) // 2]:
                cache[self.entries(slot, place, place + 1)] = 0
        self._mark(slots)

    def _swap_blocks(self, slots: list[int]) -> None:
        """Pairs of requests get each other's second block of the prompt."""
        able = [slot for slot in slots if self._stays[slot].num_prompt_tokens >= 2 * self.block_size]
        for a, b in zip(able[::2], able[1::2], strict=False):
            first, second = (int(self.table.block_tables[slot, 1]) for slot in (a, b))
            for caches in self.model.kv_caches:
                for cache in caches:
                    cache[[first, second]] = cache[[second, first]]
            self._mark([a, b])


_CACHE_DAMAGE: dict[str, Callable[[CorruptRunner, list[int]], None]] = {
    "block_lost": CorruptRunner._lose_block,
    "generated_entry_lost": CorruptRunner._lose_generated,
    "layer_entry_lost": CorruptRunner._lose_layer_entry,
    "blocks_swapped": CorruptRunner._swap_blocks,
}
_COMPUTE_DAMAGE = ("positions_shifted", "last_prompt_token_masked")
CORRUPTIONS = {
    "block_lost": "a 16-token block of the prompt zeroed",
    "generated_entry_lost": "the entry of the twelfth new token zeroed",
    "wrong_digit": "one digit of the prompt replaced by another",
    "positions_shifted": "positions of all new tokens off by one",
    "layer_entry_lost": "one entry of the prompt zeroed in one layer",
    "last_prompt_token_masked": "the last token of the prompt not attended",
    "blocks_swapped": "two requests' blocks swapped",
}


class _WatchedKernels:
    """Kernels that compute something else for tokens of decode rows; the runner says before each forward which these are."""

    def __init__(self, kernels: Kernels, kind: str) -> None:
        self._kernels = kernels
        self._kind = kind
        self.decodes = torch.zeros(0, dtype=torch.bool)  # [M]
        self.hidden: dict[int, int] = {}  # slot: position of its last prompt token

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels, name)

    def rope(self, x: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        if self._kind == "positions_shifted":
            positions = (positions + self.decodes).clamp(max=len(cos) - 1)
        self._kernels.rope(x, positions, cos, sin)

    def paged_attention(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_tables: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        out = self._kernels.paged_attention(query, k_cache, v_cache, block_tables, rows, positions, scale)
        if self._kind == "last_prompt_token_masked":
            block_size = k_cache.shape[1]
            for i in torch.nonzero(self.decodes).flatten().tolist():
                slot, length = int(rows[i]), int(positions[i]) + 1
                blocks = block_tables[slot, : -(-length // block_size)].long()
                seen = torch.arange(length) != self.hidden[slot]
                key, value = (cache[blocks].flatten(0, 1)[:length][seen] for cache in (k_cache, v_cache))
                out[i] = _attend(query[i], key, value, scale)
        return out


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """query [H, D], key and value [n, KVH, D] -> [H, D]"""
    grouped = query.view(key.shape[1], -1, query.shape[-1])
    weights = (torch.einsum("kgd,nkd->kgn", grouped, key) * scale).softmax(-1)
    return torch.einsum("kgn,nkd->kgd", weights, value).reshape(query.shape)


def corrupting_executor(kind: str, digits: Iterable[int]) -> type[UniExecutor]:
    """An executor class whose runner corrupts; `runner_class.num_damaged` counts the requests that it damaged.

    `digits`: the ids of the tokenizer's ten digits, for `"wrong_digit"`. Raises `ValueError` for an unknown kind.
    """
    if kind not in CORRUPTIONS:
        raise ValueError(f"unknown corruption {kind!r}.{nearest_hint(kind, CORRUPTIONS)}")
    runner = type("CorruptRunner", (CorruptRunner,), {"kind": kind, "digits": frozenset(digits)})
    return type("CorruptingExecutor", (UniExecutor,), {"runner_class": runner})
