"""One equivalence case: the same workload synchronously, asynchronously and one request at a time, under every oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from engine.config import ResolvedConfig
from harness.compare import (
    assert_acceptance_exactly,
    assert_acceptance_follows,
    assert_async_was_on,
    assert_conservation,
    assert_exercised,
    assert_prefix_hits,
    assert_prefixes_of,
    assert_same_outputs,
    assert_work_bounds,
)
from harness.drafting import DRAFTERS, Drafting
from harness.engines import open_engine
from harness.judge import Judge
from harness.reference import Reference
from harness.replay import Replay
from harness.workload import Run, WorkItem, in_turn, run_workload

__all__ = ["DRAFTERS", "Drafting", "EquivalenceResult", "check_async_equals_sync"]


@dataclass(frozen=True)
class EquivalenceResult:
    """What a case compared and what really happened in it."""

    num_compared: int
    config: dict[str, Any]
    sync: Run
    asynchronous: Run

    @property
    def activity(self) -> dict[str, Any]:
        return asdict(self.asynchronous.stats)


def check_async_equals_sync(
    model: str,
    options: Mapping[str, Any],
    items: Sequence[WorkItem],
    reference: Reference,
    *,
    case: str,
    drafting: Drafting = DRAFTERS["plain"],
    num_speculative_tokens: int = 3,
    exercised: Sequence[str] = (),
    is_in_turn: bool = False,
    audit: bool = True,
    judge: Judge | None = None,
) -> EquivalenceResult:
    """Raise the exception that names what differs, or that nothing was tested.

    `options` are those of both engines but `async_scheduling`: the synchronous one says False, the other one leaves it unset,
    since being on by default is part of the claim. `exercised`: counters that must be above zero in both runs. `is_in_turn`:
    the requests come one after the other, so that it is known what the prefix cache must find. `judge` may collect what the
    oracles say instead of stopping at the first.
    """
    judge = judge or Judge()
    items = in_turn(items) if is_in_turn else items
    replay = Replay(
        "async_equals_sync", model, dict(options), tuple(items), drafting, num_speculative_tokens, is_in_turn=is_in_turn
    )
    plugins = options.get("plugins", ())
    drafted = drafting.scripted(items, reference.continuations)
    sync_options = {
        **options,
        **drafting.engine_options(drafting.sync_method, num_speculative_tokens, plugins),
        "async_scheduling": False,
    }
    async_options = {**options, **drafting.engine_options(drafting.async_method, num_speculative_tokens, plugins)}
    with (
        judge.for_replay(replay),
        open_engine(model, sync_options) as sync_engine,
        open_engine(model, async_options) as async_engine,
    ):
        sync = run_workload(sync_engine, drafted, label="sync", audit=audit)
        asynchronous = run_workload(async_engine, drafted, label="async", audit=audit)
        with judge:
            assert_async_was_on(async_engine, asynchronous, case=case)
        aborts = any(item.abort_after_tokens is not None for item in items)
        compared = 0
        for run, engine in ((sync, sync_engine), (asynchronous, async_engine)):
            with judge:
                if aborts:
                    compared += assert_prefixes_of(reference.run, run, items, case=case)
                else:
                    compared += assert_same_outputs(reference.run, run, case=case, engines=(engine, engine))
        if not aborts:
            with judge:
                compared += assert_same_outputs(sync, asynchronous, case=case, engines=(sync_engine, async_engine))
        for run in (sync, asynchronous):
            with judge:
                assert_conservation(run, case=case)
            counters = [*exercised, *(["num_drafts"] if drafting.sync_method else [])]
            with judge:
                assert_exercised(run, *counters, case=case)
            if is_in_turn and sync_engine.config.options.enable_prefix_caching:
                sizes = {
                    "block_size": sync_engine.config.options.block_size,
                    "num_blocks": sync_engine.config.num_kv_blocks,
                }
                with judge:
                    assert_prefix_hits(reference.run, run, items, **sizes, case=case)
            if drafting.exact_rate is not None:
                with judge:
                    assert_acceptance_exactly(run, drafting.exact_rate, case=case)
            if drafting.accept and _has_room_for_all(sync_engine.config):
                with judge:
                    assert_acceptance_follows(run, drafting.accept, case=case)
        with judge:
            assert_work_bounds(sync, asynchronous, case=case)
        return EquivalenceResult(compared, async_engine.config.as_record(), sync, asynchronous)


def _has_room_for_all(config: ResolvedConfig) -> bool:
    """No row is ever short of tokens or of blocks."""
    options = config.options
    longest = options.max_num_seqs * config.max_model_len
    return longest <= min(options.max_num_batched_tokens, config.num_kv_blocks * options.block_size)
