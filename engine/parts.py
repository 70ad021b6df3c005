"""The parts that an engine is made of. A plugin may put its own in their place, for one engine and in every process of it.

`plugins=["module"]` imports a module, which may register drafters. `plugins=["module:attribute"]` calls the attribute with the
engine's `Parts` and uses what it returns. The parts of one engine are never those of another in the same process (law 12).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from engine.accept import accept_coupled
from engine.async_scheduling import AsyncDecision, AsyncFacts, resolve_async_scheduling
from engine.config import ResolvedConfig, SpeculativeConfig
from engine.core import EngineCore
from engine.drafters.base import Drafter
from engine.drafters.pick import DraftPicker
from engine.executor.base import Executor
from engine.executor.registry import executor_class
from engine.kv_cache import KVCacheManager
from engine.metrics import EngineStats
from engine.model import Decoder
from engine.runner import Runner, load_decoder
from engine.sampler import Sampler
from engine.scheduler import Scheduler
from engine.slot_table import SlotTable
from engine.slots import SlotPool
from engine.stop import StopChecker
from engine.verify import Verifier, create_verifier
from kernels.interface import Kernels

__all__ = ["Parts", "create_core", "create_runner", "load_parts"]


@dataclass(frozen=True)
class Parts:
    """Each field is what builds the part: its class, or a function with that class's arguments."""

    decide_async: Callable[[bool | None, AsyncFacts], AsyncDecision] = resolve_async_scheduling
    # of the host
    executor: Callable[[str | type[Executor]], type[Executor]] = executor_class
    scheduler: Callable[..., Scheduler] = Scheduler
    kv_cache: Callable[..., KVCacheManager] = KVCacheManager
    slot_pool: Callable[[int], SlotPool] = SlotPool
    stats: Callable[..., EngineStats] = EngineStats
    stop_checker: Callable[..., StopChecker] = StopChecker
    # of the device side
    runner: Callable[[ResolvedConfig, Parts], Runner] = Runner
    model: Callable[[ResolvedConfig, Kernels], Decoder] = load_decoder
    slot_table: Callable[..., SlotTable] = SlotTable
    sampler: Callable[[Kernels, int], Sampler] = Sampler
    picker: Callable[..., DraftPicker] = DraftPicker
    verifier: Callable[[SpeculativeConfig | None, Sampler, DraftPicker | None], Verifier] = create_verifier
    accept: Callable[..., Any] = accept_coupled
    drafter: Callable[[SpeculativeConfig], type[Drafter]] = lambda speculative: speculative.drafter_class


def load_parts(plugins: Iterable[str]) -> Parts:
    """The engine's parts, once every plugin has had its say. `ValueError` for an attribute that is none or gives none."""
    parts = Parts()
    for plugin in plugins:
        name, _, attribute = plugin.partition(":")
        module = importlib.import_module(name)
        if not attribute:
            continue
        change = getattr(module, attribute, None)
        if not callable(change):
            raise ValueError(f"plugin {plugin!r}: module {name!r} has no function {attribute!r} that takes an engine's Parts.")
        parts = change(parts)
        if not isinstance(parts, Parts):
            raise ValueError(f"plugin {plugin!r} must return the Parts to use, got {type(parts).__name__}.")
    return parts


def create_core(config: ResolvedConfig, executor: Executor, parts: Parts) -> EngineCore:
    options = config.options
    stats = parts.stats(num_speculative_tokens=config.num_speculative_tokens)
    kv_cache = parts.kv_cache(
        config.num_kv_blocks,
        options.block_size,
        options.enable_prefix_caching,
        drop_last_cached_block=config.drops_last_cached_block,
    )
    scheduler = parts.scheduler(config, stats, kv_cache, parts.slot_pool(options.max_num_seqs))
    return EngineCore(config, executor, scheduler)


def create_runner(config: ResolvedConfig) -> Runner:
    """In whatever process the device side lives."""
    parts = load_parts(config.options.plugins)
    return parts.runner(config, parts)
