"""One equivalence case: the same workload synchronously, asynchronously and one request at a time, under every oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from harness.compare import (
    assert_acceptance_exactly,
    assert_async_was_on,
    assert_conservation,
    assert_exercised,
    assert_prefixes_of,
    assert_same_outputs,
    assert_work_bounds,
)
from harness.engines import open_engine
from harness.reference import Reference
from harness.scripted import METHOD, PLUGIN, script
from harness.workload import Run, WorkItem, run_workload

__all__ = ["DRAFTERS", "Drafting", "EquivalenceResult", "check_async_equals_sync"]


@dataclass(frozen=True)
class Drafting:
    """How a case speculates. The two methods differ only for n-grams: `ngram` is what runs without asynchronous scheduling."""

    sync_method: str | None = None
    async_method: str | None = None
    options: Mapping[str, Any] | None = None
    accept: tuple[int, ...] = ()
    """Of the scripted drafter: how many drafts are right in each round."""
    exact_rate: int | None = None
    """1: every draft must be accepted; 0: none."""

    def engine_options(self, method: str | None, num_speculative_tokens: int) -> dict[str, Any]:
        if method is None:
            return {}
        config = {"method": method, "num_speculative_tokens": num_speculative_tokens} | dict(self.options or {})
        return {"speculative_config": config} | ({"plugins": (PLUGIN,)} if method == METHOD else {})

    def scripted(self, items: Sequence[WorkItem], reference: Reference) -> list[WorkItem]:
        """The items with their scripts, where this drafting follows one."""
        if self.sync_method != METHOD:
            return list(items)
        return [
            replace(item, params=replace(item.params, extra_args=script(reference.continuations[item.request_id], self.accept)))
            for item in items
        ]


DRAFTERS = {
    "plain": Drafting(),
    "ngram": Drafting("ngram", "ngram_gpu", {"prompt_lookup_min": 1, "prompt_lookup_max": 3}),
    "right": Drafting(METHOD, METHOD, accept=(99,), exact_rate=1),
    "wrong": Drafting(METHOD, METHOD, accept=(0,), exact_rate=0),
    "mixed": Drafting(METHOD, METHOD, accept=(99, 0, 1, 99, 2, 0, 3)),
}


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
    audit: bool = True,
) -> EquivalenceResult:
    """Raise the exception that names what differs, or that nothing was tested.

    `options` are those of both engines but `async_scheduling`: the synchronous one says False, the other one leaves it unset,
    since being on by default is part of the claim. `exercised`: counters that must be above zero in both runs.
    """
    drafted = drafting.scripted(items, reference)
    sync_options = {
        **options,
        **drafting.engine_options(drafting.sync_method, num_speculative_tokens),
        "async_scheduling": False,
    }
    async_options = {**options, **drafting.engine_options(drafting.async_method, num_speculative_tokens)}
    with open_engine(model, sync_options) as sync_engine, open_engine(model, async_options) as async_engine:
        sync = run_workload(sync_engine, drafted, label="sync", audit=audit)
        asynchronous = run_workload(async_engine, drafted, label="async", audit=audit)
        assert_async_was_on(async_engine, asynchronous, case=case)
        aborts = any(item.abort_after_tokens is not None for item in items)
        compared = 0
        for run, engine in ((sync, sync_engine), (asynchronous, async_engine)):
            if aborts:
                compared += assert_prefixes_of(reference.run, run, items, case=case)
            else:
                compared += assert_same_outputs(reference.run, run, case=case, engines=(engine, engine))
        if not aborts:
            compared += assert_same_outputs(sync, asynchronous, case=case, engines=(sync_engine, async_engine))
    for run in (sync, asynchronous):
        assert_conservation(run, case=case)
        counters = [*exercised, *(["num_drafts"] if drafting.sync_method else [])]
        assert_exercised(run, *counters, case=case)
        if drafting.exact_rate is not None:
            assert_acceptance_exactly(run, drafting.exact_rate, case=case)
    assert_work_bounds(sync, asynchronous, case=case)
    return EquivalenceResult(compared, async_engine.config.as_record(), sync, asynchronous)
