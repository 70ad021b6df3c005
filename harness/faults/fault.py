"""What an injected fault is: a part of the engine that behaves as a known defect did, loaded by name as a plugin.

A fault is written where it is defined, as a class or function that takes the place of one part:

    @fault("S-03", "goes on with steps when those in flight reach max_tokens", part="scheduler", ...)
    class PlansBeyondTheEnd(Scheduler): ...

The decorator leaves a `Fault` under the name, so `plugins=["harness.faults.scheduling:PlansBeyondTheEnd"]` puts it into one
engine, in every process of it; the engine itself knows nothing of faults (law 11).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from engine.parts import Parts

__all__ = ["Fault", "fault", "known_faults", "reach"]


@dataclass
class Fault:
    id: str
    """That of the public defect (`S-02`), with a word where there are several (`S-02/drop-one`); `own/...`: our own kinds."""
    summary: str
    part: str
    """The field of `Parts` that it replaces."""
    build: Callable[[Any], Any]
    """The original part -> the faulty one."""
    case: str
    """The case of `harness.faults.cases` that must catch it,"""
    raises: str
    """and the exception of `harness.errors` that does."""
    source: str
    plugin: str
    is_simulated: bool
    """Whether the simulation must see it too."""
    num_reached: int = field(default=0, compare=False)
    """How often its code changed something, in this process. A check that fails to see a fault that was never reached says
    nothing."""

    def __call__(self, parts: Parts) -> Parts:
        return replace(parts, **{self.part: self.build(getattr(parts, self.part))})

    def reach(self, count: int = 1) -> None:
        self.num_reached += count


_FAULTS: dict[str, Fault] = {}


def known_faults() -> dict[str, Fault]:
    """Of the modules that are imported; `harness.faults.catalog` imports all."""
    return _FAULTS


def reach(id: str, count: int = 1) -> None:
    """The code of this fault has changed something, `count` times."""
    _FAULTS[id].reach(count)


def fault(
    id: str,
    summary: str,
    *,
    part: str,
    case: str,
    raises: str,
    source: str = "",
    simulated: bool = False,
) -> Callable[[Callable[..., Any]], Fault]:
    """Decorates what takes the part's place. The drafter's is a class for each method, so there it decorates a function from
    the method's class to another one."""

    def register(made: Callable[..., Any]) -> Fault:
        if id in _FAULTS:
            raise ValueError(f"there are two faults {id!r}: {_FAULTS[id].plugin} and {made.__module__}:{made.__qualname__}")

        def build(original: Any) -> Any:
            return (lambda speculative: made(original(speculative))) if part == "drafter" else made

        plugin = f"{made.__module__}:{made.__qualname__}"
        _FAULTS[id] = Fault(id, summary, part, build, case, raises, source, plugin, simulated)
        return _FAULTS[id]

    return register
