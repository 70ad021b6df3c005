"""Every error that the engine raises on purpose. Each message says what to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CheckpointError",
    "EngineDeadError",
    "EngineError",
    "IntegrityError",
    "InvalidRequestError",
    "NanLogitsError",
    "RequestError",
    "RequestFailedError",
    "StalledEngineError",
    "UnknownOptionError",
    "nearest_hint",
]


class EngineError(Exception):
    """Base of the engine's own errors."""


class CheckpointError(EngineError, ValueError):
    """A checkpoint that cannot be read or is not supported; names the file and the remedy."""


class UnknownOptionError(EngineError, TypeError):
    """An option or sampling field that does not exist; names the nearest one."""


class RequestError(EngineError, ValueError):
    """Something is wrong with one request; the others are not touched."""


class InvalidRequestError(RequestError):
    """A request that can never run: refused before it reaches the scheduler."""


class NanLogitsError(RequestError):
    """The model gave NaN (or no finite value) at a position of this request."""


class RequestFailedError(EngineError, RuntimeError):
    """`LLM.generate` finished, but some requests failed.

    Attributes: `errors` {index of the prompt: RequestError}; `outputs`, one RequestOutput or None for each prompt.
    """

    def __init__(self, errors: dict[int, RequestError], outputs: list[object | None]) -> None:
        self.errors = errors
        self.outputs = outputs
        shown = "; ".join(f"prompt {i}: {e}".rstrip(".") for i, e in list(errors.items())[:3])
        more = f" (and {len(errors) - 3} more)" if len(errors) > 3 else ""
        super().__init__(
            f"{len(errors)} of {len(outputs)} requests failed: {shown}{more}. "
            'The finished ones are in `.outputs`; on_error="return" gives all of them without raising.'
        )


class EngineDeadError(EngineError, RuntimeError):
    """The device side is gone (a step raised, or the worker process died); this engine cannot go on."""


class StalledEngineError(EngineError, RuntimeError):
    """Requests are unfinished, nothing is in flight and nothing can be scheduled."""


class IntegrityError(EngineError, AssertionError):
    """`LLM.check_integrity` found slots, blocks or lengths that do not add up."""


def nearest_hint(name: str, known: Iterable[str]) -> str:
    """`" Did you mean 'x'?"`, or the list of what is known where nothing is near."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else f" Known: {', '.join(names)}."
