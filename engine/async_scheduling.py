"""When asynchronous scheduling is on: one ordered list of rules, read by the default and by the explicit path alike.

In the field the two paths had lists of their own and drifted apart (vLLM #38929: `draft_model` and `dflash` were on when asked
for and off by default). Here a method or an executor says once whether it supports two steps in flight, in its registry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from engine.drafters.registry import known_methods, method_info

__all__ = ["RULES", "AsyncDecision", "AsyncFacts", "AsyncRule", "resolve_async_scheduling"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AsyncFacts:
    """All that the rules look at."""

    method: str | None
    """Speculative method, None without speculation."""
    executor: str
    executor_supports_async: bool
    disable_padded_drafter_batch: bool = False
    pipeline_parallel_size: int = 1
    is_pooling: bool = False
    is_rocm: bool = False
    all2all_backend: str | None = None
    enable_dbo: bool = False


@dataclass(frozen=True)
class AsyncRule:
    """The first rule whose predicate holds decides."""

    name: str
    matches: Callable[[AsyncFacts], bool]
    reason: Callable[[AsyncFacts], str]
    binds_only_default: bool = False
    """True: an explicit `async_scheduling=True` is allowed all the same, and the default is off without a warning."""


@dataclass(frozen=True)
class AsyncDecision:
    """`enabled`, and the name of the rule that decided: one of `RULES`, "supported" or "explicit_off"."""

    enabled: bool
    rule: str
    warning: str | None = None
    """What was logged as a warning (once in a process), or would have been."""


def _method_unsupported(facts: AsyncFacts) -> bool:
    return facts.method is not None and not method_info(facts.method).supports_async_scheduling


def _method_reason(facts: AsyncFacts) -> str:
    supported = ", ".join(m for m in known_methods() if method_info(m).supports_async_scheduling)
    return f"speculative method {facts.method!r} does not support asynchronous scheduling (supported: {supported})"


RULES = (
    AsyncRule(
        "pooling",
        lambda f: f.is_pooling,
        lambda f: "a pooling runner gains nothing from asynchronous scheduling",
        binds_only_default=True,
    ),
    AsyncRule("speculative_method", _method_unsupported, _method_reason),
    AsyncRule(
        "unpadded_drafter_batch",
        lambda f: f.method is not None and f.disable_padded_drafter_batch,
        lambda f: "disable_padded_drafter_batch=True needs the accepted counts on the host before the next step",
    ),
    AsyncRule(
        "executor",
        lambda f: not f.executor_supports_async,
        lambda f: f"executor {f.executor!r} cannot hold two steps in flight",
    ),
    AsyncRule(
        "rocm_deepep_ht_dbo",
        lambda f: f.is_rocm and f.enable_dbo and f.all2all_backend == "deepep_high_throughput",
        lambda f: "ROCm with the DeepEP high-throughput all2all backend and DBO does not support asynchronous scheduling",
    ),
    AsyncRule(
        "pipeline_parallel",
        lambda f: f.pipeline_parallel_size > 1,
        lambda f: f"pipeline_parallel_size={f.pipeline_parallel_size} does not support asynchronous scheduling",
    ),
)


@cache
def _warn_once(message: str) -> None:
    logger.warning("%s", message)


def resolve_async_scheduling(requested: bool | None, facts: AsyncFacts) -> AsyncDecision:
    """Decide for `async_scheduling=requested`; None is the default. Explicit False is always off and silent.

    Raises `ValueError` where True was asked for and a rule forbids it.
    """
    if requested is False:
        return AsyncDecision(False, "explicit_off")
    for rule in RULES:
        if not rule.matches(facts) or (requested and rule.binds_only_default):
            continue
        reason = rule.reason(facts)
        if requested:
            raise ValueError(f"async_scheduling=True is not possible: {reason}. Leave it unset or say False.")
        if rule.binds_only_default:
            logger.debug("asynchronous scheduling is off: %s", reason)
            return AsyncDecision(False, rule.name)
        warning = f"asynchronous scheduling is off: {reason}."
        _warn_once(warning)
        return AsyncDecision(False, rule.name, warning)
    return AsyncDecision(True, "supported")
