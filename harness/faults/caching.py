"""Faults of the KV cache: blocks that are missing, lost, shared wrongly or found too early."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.drafters.base import AcceptedStep, DraftContext, Drafter
from engine.kv_cache import BlockPool, KVCacheManager
from engine.request import Request
from engine.scheduler import Scheduler
from engine.step import NewSlot, PlanRow
from engine.stop import Finish
from harness.faults.fault import fault, reach


@fault(
    "K-01/slots",
    "no blocks are reserved for the drafts of a step, so their entries go wherever the table points",
    part="scheduler",
    case="cell:roomy/whole/nocache/right/greedy",
    raises="ResourceLeakError",
    source="vLLM #16370",
    simulated=True,
)
class ReservesNothingForDrafts(Scheduler):
    def _kv_tokens(self, request: Request, num_drafts: int) -> int:
        needed = super()._kv_tokens(request, num_drafts)
        given = min(needed, request.num_tokens)
        reach("K-01/slots", self.kv_cache.num_blocks_for(needed) > self.kv_cache.num_blocks_for(given))
        return given


@fault(
    "K-01/lookahead",
    "no blocks are reserved for the entries that the drafter writes, so it drafts less near a block's end",
    part="scheduler",
    case="neighbours:draft_model",
    raises="AcceptanceRateError",
    source="TensorRT-LLM #16280",
)
class ReservesNothingForTheDrafter(Scheduler):
    def _with_drafts(self, row: PlanRow, depth: int) -> PlanRow:
        lookahead, self.num_lookahead_tokens = self.num_lookahead_tokens, 0
        reach("K-01/lookahead", lookahead > 0)
        try:
            return super()._with_drafts(row, depth)
        finally:
            self.num_lookahead_tokens = lookahead


@fault(
    "K-02/leak",
    "as many blocks are given back as the output needs, not as many as were taken",
    part="kv_cache",
    case="cell:roomy/whole/nocache/wrong/stop-strings",
    raises="ResourceLeakError",
    source="sglang-jax #1147, SGLang #12224",
    simulated=True,
)
class ReleasesByOutputLength(KVCacheManager):
    def release(self, request: Request) -> None:
        used = self.num_blocks_for(request.num_tokens)
        reach("K-02/leak", len(request.block_ids) > used)
        request.block_ids = request.block_ids[:used]
        super().release(request)


@fault(
    "K-02/twice",
    "the block behind the output is given back a second time",
    part="kv_cache",
    case="cell:roomy/whole/nocache/wrong/stop-strings",
    raises="EngineCrashError",
    source="SGLang #11981, #11970",
    simulated=True,
)
class ReleasesTwice(KVCacheManager):
    def release(self, request: Request) -> None:
        behind = request.block_ids[self.num_blocks_for(request.num_tokens) :]
        super().release(request)
        reach("K-02/twice", len(behind))
        for block in behind:
            self.pool.release(block)


@fault(
    "K-03",
    "the blocks of an aborted request are given away while a step in flight still writes to them",
    part="scheduler",
    case="staggered:tight/plain",
    raises="ResourceLeakError",
    source="vLLM #39146, #37076, SGLang #23392 (suspected there)",
    simulated=True,
)
class FreesUnderAStepInFlight(Scheduler):
    def _finish(self, request: Request, finish: Finish) -> None:
        if finish.reason == "abort" and request.num_in_flight:
            reach("K-03")
            self.kv_cache.release(request)
        super()._finish(request, finish)


@fault(
    "K-04/hit",
    "what a cache hit brings back serves the target, not the drafter: its drafts are wrong from then on",
    part="drafter",
    case="cell:roomy/whole/cache/right/greedy",
    raises="AcceptanceRateError",
    source="vLLM #47930",
    simulated=True,
)
def dead_after_a_hit(base: Any) -> type[Drafter]:
    class DeadAfterAHit(base):  # type: ignore[misc]
        def admit(self, new: NewSlot) -> None:
            super().admit(new)
            self.__dict__.setdefault("_dead", {})[new.slot] = new.num_cached_tokens > 0

        def propose(self, context: DraftContext) -> Any:
            drafts, counts = super().propose(context)
            dead = np.array([self._dead[slot] for slot in context.slots.tolist()])
            reach("K-04/hit", int((counts[dead] > 0).sum()))
            return np.where(dead[:, None], (drafts + 1) % self.vocab_size, drafts), counts

    return DeadAfterAHit


@fault(
    "K-04/entries",
    "a cached prefix has the target's entries, and none of the drafter's own",
    part="drafter",
    case="neighbours:eagle",
    raises="AcceptanceRateError",
    source="vLLM #47930",
)
def empty_after_a_hit(base: Any) -> type[Drafter]:
    class EmptyAfterAHit(base):  # type: ignore[misc]
        def admit(self, new: NewSlot) -> None:
            super().admit(new)
            self.__dict__.setdefault("_hits", {})[new.slot] = new.num_cached_tokens

        def advance(self, step: AcceptedStep) -> None:
            size = self.target.block_size
            for slot in step.slots.tolist():
                blocks = self.target.table.block_tables[slot, : self._hits.pop(slot, 0) // size].astype(np.int64)
                reach("K-04/entries", len(blocks))
                for cache in self._cache:
                    cache[blocks] = 0
            super().advance(step)

    return EmptyAfterAHit


@fault(
    "K-05",
    "a block is findable before its last entry is written",
    part="kv_cache",
    case="conversation:wrong/greedy-ignore-eos",
    raises="TokenMismatchError",
    source="vLLM #43559, #53912",
    simulated=True,
)
class PublishesEarly(KVCacheManager):
    def publish_committed(self, request: Request) -> None:
        committed = request.num_committed_tokens
        room = len(request.block_ids) * self.block_size
        planned = min(request.num_tokens, room)
        reach("K-05", planned // self.block_size > committed // self.block_size)
        request.num_committed_tokens = planned
        super().publish_committed(request)
        request.num_committed_tokens = committed


@fault(
    "own/prefix-hit-lost",
    "the last block of a known prefix is not looked up",
    part="kv_cache",
    case="conversation:plain/greedy-ignore-eos",
    raises="WorkBoundError",
    simulated=True,
)
class LosesAPrefixHit(KVCacheManager):
    def take_cached_prefix(self, request: Request, token_ids: list[int]) -> int:
        found = super().take_cached_prefix(request, token_ids)
        if found:
            reach("own/prefix-hit-lost")
            self.pool.release(request.block_ids.pop())
            request.block_hashes.pop()
        return len(request.block_ids) * self.block_size


@fault(
    "own/prefix-hit-late",
    "a block is made findable only when no step is in flight, so asynchronous scheduling finds less",
    part="kv_cache",
    case="simulation:300",
    raises="WorkBoundError",
    simulated=True,
)
class PublishesWhenDrained(KVCacheManager):
    def publish_committed(self, request: Request) -> None:
        if request.num_in_flight:
            reach("own/prefix-hit-late")
        else:
            super().publish_committed(request)


@fault(
    "own/hash-without-parent",
    "a block's hash leaves out the tokens before it",
    part="kv_cache",
    case="simulation:300",
    raises="TokenMismatchError",
    simulated=True,
)
class HashesWithoutParent(KVCacheManager):
    @staticmethod
    def block_hash(parent: bytes, token_ids: list[int]) -> bytes:
        reach("own/hash-without-parent", bool(parent))
        return KVCacheManager.block_hash(b"", token_ids)


class _SharesWithoutCounting(BlockPool):
    def share(self, block: int) -> None:
        if self.ref_counts[block] == 0:
            super().share(block)
        else:
            reach("own/share-uncounted")


@fault(
    "own/share-uncounted",
    "a second holder of a block is not counted",
    part="kv_cache",
    case="cell:roomy/whole/cache/plain/greedy",
    raises="ResourceLeakError",
    simulated=True,
)
class SharesWithoutCounting(KVCacheManager):
    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool, **options: Any) -> None:
        super().__init__(num_blocks, block_size, enable_prefix_caching, **options)
        self.pool = _SharesWithoutCounting(num_blocks)
