"""Typed access to the keys of a parsed metadata file, with errors that name the file, the key and what was expected."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine.errors import CheckpointError

__all__ = ["Fields"]


class Fields:
    """`values` of the file `source`. A key that is absent or null takes `default`; without a default it is an error."""

    def __init__(self, source: str, values: Mapping[str, Any]) -> None:
        self.source = source
        self.values = values

    def error(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self.source}: {message}")

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self.error(f"{key} is {value!r}, expected a positive integer")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not (0 < value < math.inf):
            raise self.error(f"{key} is {value!r}, expected a positive number")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._required(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key} is {value!r}, expected true or false")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One id, a list of ids, or nothing."""
        value = self.get(key)
        if value is None:
            return ()
        ids = value if isinstance(value, list) else [value]
        if any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in ids):
            raise self.error(f"{key} is {value!r}, expected a token id or a list of token ids")
        return tuple(ids)

    def _required(self, key: str, default: Any) -> Any:
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(f"the key {key!r} is missing")
        return value
