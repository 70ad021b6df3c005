"""What a test says about itself for its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.coerce import Json, coerce, coerce_mapping
from reports.schema import Figure, from_json

__all__ = ["Notes"]


class Notes:
    """The fixture `record`. Values are made plain JSON at once, so what is changed afterwards does not reach the record."""

    def __init__(self) -> None:
        self._config: dict[str, Json] | None = None
        self._activity: dict[str, Json] = {}
        self._figures: list[dict[str, Json]] = []
        self._counts: dict[str, Json] = {}
        self._provenance: dict[str, Json] = {}

    def config(self, resolved: Mapping[str, Any]) -> None:
        """The resolved configuration. A later call adds to it."""
        self._config = {**(self._config or {}), **coerce_mapping(resolved)}

    def activity(self, counters: Mapping[str, Any]) -> None:
        """What happened: steps overlapped, drafts, accepted, preemptions, cache hits. Numbers of several calls (one for each
        engine run) add up; lists are added position by position, mappings key by key."""
        for name, value in coerce_mapping(counters).items():
            self._activity[name] = _add(self._activity.get(name), value)

    def figure(
        self,
        name: str,
        value: Any,
        n: int | None = None,
        interval: Sequence[Any] | None = None,
        threshold: Any = None,
        unit: str | None = None,
    ) -> None:
        """A measured number, with its sample size, its interval (low, high), and what it was held against."""
        figure = {"name": name, "value": value, "n": n, "interval": interval, "threshold": threshold, "unit": unit}
        plain = coerce_mapping(figure)
        problems: list[str] = []
        if from_json(Figure, plain, problems) is None or problems:
            raise TypeError(f"figure {name!r}: {'; '.join(problems)}")
        self._figures.append(plain)

    def count(self, name: str, number: int = 1) -> None:
        """Add to a count, such as `requests_compared`."""
        plain = coerce(number)
        if not _is_number(plain):
            raise TypeError(f"count {name!r} takes a number, not {number!r}")
        self._counts[name] = self._counts.get(name, 0) + plain

    def provenance(self, facts: Mapping[str, Any]) -> None:
        """Where the inputs come from: hash of the prompts, seeds. A later call adds to it."""
        self._provenance |= coerce_mapping(facts)

    def fields(self) -> dict[str, Json]:
        """Fields of the record, all of them plain JSON."""
        return {
            "config": self._config,
            "activity": self._activity,
            "figures": self._figures,
            "counts": self._counts,
            "provenance": self._provenance,
        }


def _add(old: Json, new: Json) -> Json:
    if _is_number(old) and _is_number(new):
        return old + new
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {name: _add(old.get(name), value) for name, value in new.items()}
    if isinstance(old, list) and isinstance(new, list):
        longer, shorter = (old, new) if len(old) >= len(new) else (new, old)
        return [_add(a, b) for a, b in zip(longer, shorter, strict=False)] + longer[len(shorter) :]
    return new


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
