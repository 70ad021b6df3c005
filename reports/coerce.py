"""Any value as plain JSON types, the same in every process: no memory addresses, no set order, no NaN literals."""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from collections.abc import Mapping, Sequence, Set
from datetime import date, datetime
from os import PathLike, fspath
from typing import Any

__all__ = ["MAX_STRING", "Json", "coerce", "coerce_mapping", "without_addresses"]

Json = Any  # None, bool, int, float (finite), str, list, dict with string keys

MAX_STRING = 200_000  # characters kept of one string: ten million of them in a record help nobody
MAX_ITEMS = 20_000  # of one sequence
MAX_DEPTH = 20

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def coerce(value: object, depth: int = 0) -> Json:
    """Plain JSON for `value`. Tuples and arrays become lists, sets sorted lists, bytes hexadecimal text, non-finite floats
    "NaN", "Infinity" or "-Infinity", lone surrogates their escapes, and anything unknown its `repr` without addresses."""
    if depth > MAX_DEPTH:
        return "... (nested too deeply)"
    if value is None or isinstance(value, bool):
        return value
    # NOTE: an IntEnum is an int and a StrEnum a str; both go by their plain value.
    if isinstance(value, enum.Enum):
        return coerce(value.value, depth + 1)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _coerce_float(float(value))
    if isinstance(value, str):
        return _coerce_text(str(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return _coerce_text(bytes(value).hex())
    if isinstance(value, PathLike):
        return coerce(fspath(value), depth + 1)
    if isinstance(value, datetime | date):
        return value.isoformat()
    return _coerce_container(value, depth + 1)


def coerce_mapping(value: Mapping[Any, Any]) -> dict[str, Json]:
    """`coerce` for what must be an object."""
    return {_key(key): coerce(item, 1) for key, item in value.items()}


def _coerce_container(value: object, depth: int) -> Json:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: coerce(getattr(value, field.name, None), depth) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {_key(key): coerce(item, depth) for key, item in value.items()}
    if isinstance(value, Set):
        return _sorted([coerce(item, depth) for item in value])
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return coerce(value._asdict(), depth)
    if isinstance(value, Sequence):
        items = [coerce(item, depth) for item in value[:MAX_ITEMS]]
        return items if len(value) <= MAX_ITEMS else [*items, f"... ({len(value) - MAX_ITEMS} more)"]
    # Arrays, tensors and scalars of numpy and torch, without importing either.
    tolist = getattr(value, "tolist", None)
    if callable(tolist) and not isinstance(value, type):
        return coerce(_detached(value).tolist(), depth)
    if isinstance(value, type) or hasattr(value, "__qualname__"):
        return _coerce_text(str(getattr(value, "__qualname__", value)))
    return _coerce_text(without_addresses(_safe_repr(value)))


def without_addresses(text: str) -> str:
    """So that the text of two runs can be compared."""
    return _ADDRESS.sub("", text)


def _sorted(items: list[Json]) -> list[Json]:
    try:
        return sorted(items)
    except TypeError:
        return sorted(items, key=str)


def _detached(value: Any) -> Any:
    return value.detach() if hasattr(value, "detach") else value


def _coerce_float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _coerce_text(text: str) -> str:
    if len(text) > MAX_STRING:
        text = f"{text[:MAX_STRING]} ... ({len(text) - MAX_STRING} more characters)"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _key(key: object) -> str:
    plain = coerce(key, 1)
    return plain if isinstance(plain, str) else str(plain)


def _safe_repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - a broken repr must not lose the record
        return f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
