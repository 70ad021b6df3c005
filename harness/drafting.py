"""How a case speculates, by name: the scripted drafters that give the oracles their power, and n-grams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.scripted import METHOD, PLUGIN, script
from harness.workload import WorkItem

__all__ = ["DRAFTERS", "Drafting"]


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

    def engine_options(self, method: str | None, num_speculative_tokens: int, plugins: Sequence[str] = ()) -> dict[str, Any]:
        """`plugins`: what the engine has besides the drafter's."""
        if method is None:
            return {"plugins": tuple(plugins)}
        config = {"method": method, "num_speculative_tokens": num_speculative_tokens} | dict(self.options or {})
        return {"speculative_config": config, "plugins": ((PLUGIN,) if method == METHOD else ()) + tuple(plugins)}

    def scripted(self, items: Sequence[WorkItem], continuations: Mapping[str, Sequence[Sequence[int]]]) -> list[WorkItem]:
        """The items with their scripts, where this drafting follows one."""
        if self.sync_method != METHOD:
            return list(items)
        return [
            replace(item, params=replace(item.params, extra_args=script(continuations[item.request_id], self.accept)))
            for item in items
        ]


DRAFTERS = {
    "plain": Drafting(),
    "ngram": Drafting("ngram", "ngram_gpu", {"prompt_lookup_min": 1, "prompt_lookup_max": 3}),
    "right": Drafting(METHOD, METHOD, accept=(99,), exact_rate=1),
    "wrong": Drafting(METHOD, METHOD, accept=(0,), exact_rate=0),
    "mixed": Drafting(METHOD, METHOD, accept=(99, 0, 1, 99, 2, 0, 3)),
}
