"""Corruptions of numbers: a runner that damages what the model computes from, once for each request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch

from engine.checkpoint import resolve_model
from engine.config import ResolvedConfig
from engine.model import Hidden
from engine.parts import Parts
from engine.runner import Launch, Runner
from engine.step import NewSlot, StepPlan, StepResult
from engine.tokenizer import load_tokenizer
from harness.faults.fault import Fault, fault
from kernels.interface import Kernels

__all__ = ["CORRUPTIONS"]

GENERATED_ENTRY = 11  # the twelfth new token
CASE = "cell:roomy/whole/nocache/plain/greedy-ignore-eos"


@dataclass
class _Stay:
    """A request's stay in its slot."""

    num_prompt_tokens: int
    damaged: bool = False


class CorruptRunner(Runner):
    """Damages each request once, right before its first decode step unless a kind says otherwise."""

    def __init__(self, config: ResolvedConfig, parts: Parts, kind: str) -> None:
        super().__init__(config, parts)
        self.kind = kind
        self._stays: dict[int, _Stay] = {}
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
            CORRUPTIONS[self.kind].reach(not self._stays[slot].damaged)
            self._stays[slot].damaged = True

    def _with_wrong_digit(self, new: NewSlot) -> NewSlot:
        """The middle one of the prompt's digits, plus one."""
        tokenizer = load_tokenizer(resolve_model(self.config.options.model))
        order = tokenizer.hf.convert_tokens_to_ids(list("0123456789"))
        places = [i for i, token in enumerate(new.token_ids[: new.num_prompt_tokens].tolist()) if token in order]
        if not places:
            return new
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


def _corruption(kind: str, summary: str) -> Fault:
    def runner(config: ResolvedConfig, parts: Parts) -> Runner:
        return CorruptRunner(config, parts, kind)

    runner.__qualname__ = kind
    declare = fault(f"own/{kind}", summary, part="runner", case=CASE, raises="TokenMismatchError")
    return declare(runner)


block_lost = _corruption("block_lost", "a block of the prompt is zeroed")
generated_entry_lost = _corruption("generated_entry_lost", "the entry of the twelfth new token is zeroed")
wrong_digit = _corruption("wrong_digit", "one digit of the prompt is replaced by another")
positions_shifted = _corruption("positions_shifted", "positions of all new tokens are off by one")
layer_entry_lost = _corruption("layer_entry_lost", "one entry of the prompt is zeroed in one layer")
last_prompt_token_masked = _corruption("last_prompt_token_masked", "the last token of the prompt is not attended")
blocks_swapped = _corruption("blocks_swapped", "two requests' blocks are swapped")

CORRUPTIONS = {
    "block_lost": block_lost,
    "generated_entry_lost": generated_entry_lost,
    "wrong_digit": wrong_digit,
    "positions_shifted": positions_shifted,
    "layer_entry_lost": layer_entry_lost,
    "last_prompt_token_masked": last_prompt_token_masked,
    "blocks_swapped": blocks_swapped,
}
