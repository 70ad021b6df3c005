"""One exception for each kind of failure, so that `xfail(raises=..., strict=True)` excuses exactly one kind.

Every one carries its evidence as plain values: attributes on the exception, and the whole as `evidence` for the result record.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AcceptanceLengthError",
    "AcceptanceRateError",
    "AccuracyError",
    "AsyncSchedulingNotEnabledError",
    "BluntCheckError",
    "ConfigResolutionError",
    "ConservationError",
    "DistributionMismatchError",
    "EngineCrashError",
    "FaultNotReachedError",
    "FeatureNotExercisedError",
    "FinishReasonMismatchError",
    "LogprobMismatchError",
    "ResourceLeakError",
    "StalledEngineError",
    "TextMismatchError",
    "TokenMismatchError",
    "ValidationError",
    "WorkBoundError",
]


class ValidationError(AssertionError):
    """Base of all checks. Evidence that every kind has (None where it does not apply):

    case: what was compared; request: its id; position: index of the first divergence in the new tokens; expected, actual: both
    values; anything else is in `details`.
    """

    def __init__(
        self,
        message: str,
        *,
        case: str | None = None,
        request: str | None = None,
        position: int | None = None,
        expected: Any = None,
        actual: Any = None,
        **details: Any,
    ) -> None:
        super().__init__(message)
        self.case = case
        self.request = request
        self.position = position
        self.expected = expected
        self.actual = actual
        self.details = details
        self.replay: Any = None
        """The `harness.replay.Replay` of the case, where the check makes one."""

    @property
    def evidence(self) -> dict[str, Any]:
        """Everything but the message, for the record."""
        own = {name: getattr(self, name) for name in ("case", "request", "position", "expected", "actual")}
        return {name: value for name, value in own.items() if value is not None} | self.details


class AsyncSchedulingNotEnabledError(ValidationError):
    """The case claims asynchronous scheduling, but it was resolved off or no step overlapped another."""


class FeatureNotExercisedError(ValidationError):
    """The case claims a feature (drafts, preemptions, cache hits, chunks) that never happened."""


class FaultNotReachedError(ValidationError):
    """A fault was put in, and its code never ran: whether it would be seen was not tested."""


class TokenMismatchError(ValidationError):
    """Token ids differ."""


class LogprobMismatchError(ValidationError):
    """Token ids are equal, log-probabilities differ."""


class FinishReasonMismatchError(ValidationError):
    """Token ids are equal, the finish or stop reason differs."""


class TextMismatchError(ValidationError):
    """Token ids are equal, the text differs."""


class AcceptanceRateError(ValidationError):
    """Acceptance rate outside of its bounds."""


class AcceptanceLengthError(ValidationError):
    """Acceptance length outside of its bounds."""


class AccuracyError(ValidationError):
    """Task accuracy below its floor, or discordant answers."""


class BluntCheckError(ValidationError):
    """A control: a fault that was put in on purpose, and that the check should have seen, went unseen."""


class DistributionMismatchError(ValidationError):
    """Samples do not follow the distribution that they should."""


class ConservationError(ValidationError):
    """Counters do not add up: emitted = prefill tokens + sum over steps (1 + accepted)."""


class WorkBoundError(ValidationError):
    """More work than the results justify: rows, preemptions, lost cache hits."""


class ResourceLeakError(ValidationError):
    """Slots, blocks or references are not all back when the engine is idle, or do not add up while it runs."""


class EngineCrashError(ValidationError):
    """The engine raised something that is no request's own error."""


class StalledEngineError(ValidationError):
    """Unfinished requests, and no progress."""


class ConfigResolutionError(ValidationError):
    """A configuration was resolved to another value, or with another message, than the table says."""
