"""Executors by name: where the runner lives, and whether that place can hold two steps at once."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import nearest_hint

if TYPE_CHECKING:
    from engine.executor.base import Executor

__all__ = ["ExecutorInfo", "executor_class", "executor_info", "known_executors"]


@dataclass(frozen=True)
class ExecutorInfo:
    name: str
    supports_async_scheduling: bool
    executor: str | None = None
    """`"module:Class"`; None: known to the configuration rules, not built."""


# Ray: its compiled graph is driven by the host step by step (vLLM's RayDistributedExecutor says False for the same reason).
_EXECUTORS = {
    info.name: info
    for info in (
        ExecutorInfo("uni", True, "engine.executor.uni:UniExecutor"),
        ExecutorInfo("mp", True, "engine.executor.mp:MpExecutor"),
        ExecutorInfo("external_launcher", True),
        ExecutorInfo("ray", False),
    )
}


def known_executors() -> tuple[str, ...]:
    return tuple(_EXECUTORS)


def executor_info(backend: str | type[Executor]) -> ExecutorInfo:
    """Of a name, or of a user's own `Executor` class. `ValueError` names the nearest known one."""
    if not isinstance(backend, str):
        return ExecutorInfo(backend.__name__, backend.supports_async_scheduling)
    if backend not in _EXECUTORS:
        raise ValueError(f"unknown distributed_executor_backend {backend!r}.{nearest_hint(backend, _EXECUTORS)}")
    return _EXECUTORS[backend]


def executor_class(backend: str | type[Executor]) -> type[Executor]:
    """Import the executor; `ValueError` for one that is not built here."""
    if not isinstance(backend, str):
        return backend
    info = executor_info(backend)
    if info.executor is None:
        built = ", ".join(sorted(e.name for e in _EXECUTORS.values() if e.executor))
        raise ValueError(f"executor {backend!r} is not built in this version; use one of: {built}.")
    module, _, attribute = info.executor.partition(":")
    return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]
