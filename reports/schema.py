"""What a result record is: the one thing that the test harness and the reports share.

A run is a file of JSON Lines: one header, one record for each test, one trailer when the run has finished.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from reports.coerce import Json, coerce

__all__ = [
    "FAILING",
    "OUTCOMES",
    "SCHEMA_VERSION",
    "Durations",
    "Figure",
    "RunHeader",
    "RunTrailer",
    "TestRecord",
    "from_json",
    "to_json",
]

SCHEMA_VERSION = 1

OUTCOMES = ("passed", "failed", "error", "xpassed", "xfailed", "skipped")
FAILING = ("failed", "error", "xpassed")  # an unexpected pass is a known defect that is gone: its mark must go too


@dataclass(frozen=True)
class RunHeader:
    """First line."""

    kind: ClassVar[str] = "run"

    run_id: str
    schema_version: int = SCHEMA_VERSION
    started: str = ""  # ISO 8601, UTC
    argv: list[str] = field(default_factory=list)
    provenance: dict[str, Any] = field(default_factory=dict)  # commit, dirty, versions, cpu, cores, platform, environment
    seeds: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """One measured number, with what is needed to judge it. A non-finite number is its name as text."""

    name: str
    value: float | str | None
    n: int | None = None
    interval: list[Any] | None = None  # [low, high]
    threshold: float | str | None = None
    unit: str | None = None


@dataclass(frozen=True)
class Durations:
    """Seconds."""

    setup: float = 0.0
    call: float = 0.0
    teardown: float = 0.0

    @property
    def total(self) -> float:
        return self.setup + self.call + self.teardown


@dataclass(frozen=True)
class TestRecord:
    """One test. `suite` is the module's name, `test` the function's, `case_id` the parametrization id (or that name again)."""

    __test__: ClassVar[bool] = False  # not a test class
    kind: ClassVar[str] = "test"

    run_id: str
    nodeid: str
    suite: str
    test: str
    case_id: str
    outcome: str  # one of OUTCOMES
    tier: str = "default"
    parameters: dict[str, Any] = field(default_factory=dict)
    parameter_ids: dict[str, str] = field(default_factory=dict)  # the readable name of each parameter, where pytest has one
    engine: str = "lockstep"
    config: dict[str, Any] | None = None  # resolved configuration
    activity: dict[str, Any] = field(default_factory=dict)
    exception: str | None = None  # class name
    message: str | None = None  # its first lines
    traceback: str | None = None  # the full text
    evidence: dict[str, Any] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)
    counts: dict[str, Any] = field(default_factory=dict)
    durations: Durations = field(default_factory=Durations)
    skip_reason: str | None = None
    xfail_reason: str | None = None
    provenance: dict[str, Any] = field(default_factory=dict)  # hash of the prompts, seeds
    worker: str = "main"
    extra: dict[str, Any] = field(default_factory=dict)  # fields of a later version, kept aside when reading

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from every other record, of this run and of others."""
        return self.run_id, self.nodeid

    @property
    def failing(self) -> bool:
        return self.outcome in FAILING


@dataclass(frozen=True)
class RunTrailer:
    """Last line. A run without one did not finish."""

    kind: ClassVar[str] = "end"

    run_id: str
    finished: str = ""
    exit_status: int = 0
    totals: dict[str, int] = field(default_factory=dict)  # by outcome
    missing: list[str] = field(default_factory=list)  # node ids that were collected and have no result
    problems: list[str] = field(default_factory=list)  # such as a skip without a reason


Line = RunHeader | TestRecord | RunTrailer
T = TypeVar("T")


def to_json(line: Line) -> dict[str, Json]:
    """One line of a file of records. `extra` goes back to where it was."""
    plain: dict[str, Json] = coerce(line)
    extra = plain.pop("extra", {})
    return {"kind": line.kind, **extra, **plain}


def from_json(cls: type[T], data: dict[str, Any], problems: list[str]) -> T | None:
    """A `cls` from plain JSON. Unknown fields go to `extra` where the class has one; a field of the wrong type is left at its
    default; None when a field without a default is missing or wrong. Every such thing is added to `problems`."""
    hints = _hints(cls)  # type: ignore[arg-type]
    known = {item.name: item for item in dataclasses.fields(cls) if item.name != "extra"}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, item in known.items():
        if name in data:
            value = _nested(hints[name], data[name], problems)
            if _fits(value, hints[name]):
                values[name] = value
                continue
            problems.append(f"field {name!r} has an unexpected value, {str(data[name])[:40]!r}")
        if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            problems.append(f"field {name!r} is missing")
            return None
    unknown = {name: value for name, value in data.items() if name not in known and name != "kind"}
    if unknown:
        problems.append(f"unknown fields: {', '.join(sorted(unknown))}")
        if "extra" in hints:
            values["extra"] = unknown
    return cls(**values)


@functools.cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _nested(hint: Any, value: Any, problems: list[str]) -> Any:
    """Dataclasses inside of a dataclass."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type) and isinstance(value, dict):
        return from_json(hint, value, problems)
    if typing.get_origin(hint) is list and isinstance(value, list):
        (inner,) = typing.get_args(hint)
        return [_nested(inner, item, problems) for item in value]
    return value


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Union or origin is types.UnionType:
        return any(_fits(value, option) for option in arguments)
    if origin is list:
        return isinstance(value, list) and all(_fits(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(item, arguments[1]) for item in value.values())
    if hint in (int, float):
        return isinstance(value, hint if hint is int else int | float) and not isinstance(value, bool)
    return isinstance(value, hint)
