"""The embedded engine as the suites use it: small models, explicit thread counts, options by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from engine import LLM, CheckpointError
from engine.checkpoint import resolve_model
from kernels.backend import available_kernels

__all__ = ["kernel_backends", "missing_from_cache", "open_engine", "worker_threads"]


def worker_threads() -> int:
    """Threads for one engine: the cores that this process may use, shared with the other pytest-xdist workers."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return max(1, len(os.sched_getaffinity(0)) // workers)


def open_engine(model: str, options: Mapping[str, Any]) -> LLM:
    """`LLM(model, **options)` with the thread count of this worker unless the options give one."""
    return LLM(model, **{"num_threads": worker_threads()} | dict(options))


def missing_from_cache(model: str) -> str | None:
    """Why a `zoo:` model cannot be used here, and what to do; None if it can. Any other name is the user's own affair."""
    if not model.startswith("zoo:"):
        return None
    try:
        resolve_model(model)
    except CheckpointError as error:
        return str(error)
    return None


def kernel_backends() -> list[str]:
    """The kernel backends that run on this machine."""
    return available_kernels()
