"""How an engine resolves a configuration: the value, or the error, and the warning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from engine import EngineConfig
from engine.drafters.registry import known_methods
from engine.executor.base import Executor
from engine.executor.registry import known_executors
from engine.parts import load_parts
from harness.errors import ConfigResolutionError

__all__ = ["NoAsyncExecutor", "Resolution", "assert_resolution", "known_executors", "known_methods", "resolve"]


class NoAsyncExecutor(Executor):
    """A user's own executor that says nothing of two steps in flight, so it has none. Only ever resolved, never built."""

    supports_async_scheduling: ClassVar[bool] = False


@dataclass(frozen=True)
class Resolution:
    enabled: bool | None
    """None: refused."""
    error: str | None = None
    warning: str | None = None


def resolve(options: Mapping[str, Any]) -> Resolution:
    """The embedded engine's decision on `async_scheduling`, with its plugins, before any model is loaded."""
    config = EngineConfig(model="none", **options)
    try:
        decision = config.resolve_async_scheduling(load_parts(config.plugins).decide_async)
    except ValueError as error:
        return Resolution(None, error=str(error))
    return Resolution(decision.enabled, warning=decision.warning)


def assert_resolution(
    cell: Mapping[str, Any], actual: Resolution, *, enabled: bool | None, warns: bool, mentions: tuple[str, ...] = ()
) -> None:
    """Value, error, warning and silence are as the table says; the message holds every one of `mentions`."""
    message = actual.error if enabled is None else actual.warning
    if actual.enabled != enabled or (actual.warning is not None) != warns or (actual.error is not None) != (enabled is None):
        raise ConfigResolutionError(
            f"{dict(cell)}: expected enabled={enabled}, warning={warns}; got {actual}",
            case=str(dict(cell)),
            expected={"enabled": enabled, "warns": warns},
            actual={"enabled": actual.enabled, "error": actual.error, "warning": actual.warning},
        )
    for word in mentions:
        if word not in (message or ""):
            raise ConfigResolutionError(
                f"{dict(cell)}: the message does not name {word!r}: {message!r}",
                case=str(dict(cell)),
                expected=word,
                actual=message,
            )
