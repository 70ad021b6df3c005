"""Requests with their arrivals and aborts, and one engine driven through them step by step."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

from engine import LLM, EngineStats, IntegrityError, RequestError, RequestOutput, SamplingParams
from engine import StalledEngineError as EngineStalledError
from harness.errors import EngineCrashError, ResourceLeakError, StalledEngineError, ValidationError

__all__ = ["Run", "WorkItem", "checked", "in_turn", "prompt_hash", "run_one_at_a_time", "run_workload"]


@dataclass(frozen=True)
class WorkItem:
    """One request of a workload."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    arrive_at_step: int = 0
    abort_after_tokens: int | None = None
    """Abort once any of its completions has this many new tokens (0: as soon as it was added)."""


@dataclass(frozen=True)
class Run:
    """What an engine made of a workload."""

    label: str
    outputs: dict[str, RequestOutput]
    stats: EngineStats
    """Counters of this run alone."""


@contextmanager
def checked() -> Iterator[None]:
    """Turn what the engine says of itself into the checks' exceptions."""
    try:
        yield
    except IntegrityError as error:
        raise ResourceLeakError(f"the engine's books do not add up: {error}") from error
    except EngineStalledError as error:
        raise StalledEngineError(f"the engine made no progress: {error}") from error
    except (ValidationError, RequestError):
        raise
    except Exception as error:
        raise EngineCrashError(f"the engine died: {type(error).__name__}: {error}") from error


def run_workload(llm: LLM, items: Sequence[WorkItem], *, label: str, audit: bool = True) -> Run:
    """Drive `llm` through the workload; with `audit` its integrity is checked after every step.

    Raises `StalledEngineError` beyond a number of steps that no correct engine needs, `ResourceLeakError` where the books do
    not add up while it runs or once it is idle.
    """
    before = llm.stats
    outputs: dict[str, RequestOutput] = {}
    pending = sorted(items, key=lambda item: item.arrive_at_step)
    abort_after = {item.request_id: item.abort_after_tokens for item in items if item.abort_after_tokens is not None}
    step_limit = _step_limit(llm, items)
    step = 0
    with checked():
        while pending or llm.has_unfinished_requests():
            while pending and pending[0].arrive_at_step <= step:
                item = pending.pop(0)
                llm.add_request(item.request_id, item.prompt_token_ids, item.params)
                if item.abort_after_tokens == 0:
                    _abort(llm, item.request_id, outputs)
            for output in llm.step():
                outputs[output.request_id] = output
                limit = abort_after.get(output.request_id)
                if limit is not None and max(len(c.token_ids) for c in output.outputs) >= limit:
                    _abort(llm, output.request_id, outputs)
            step += 1
            if audit and llm.has_unfinished_requests():
                llm.check_integrity()
            if step > step_limit:
                left = [item.request_id for item in items if not _is_done(outputs.get(item.request_id))]
                raise StalledEngineError(f"{label}: {step} steps, and {left} are unfinished", unfinished=left)
        llm.check_integrity()
    return Run(label, outputs, _difference(llm.stats, before))


def run_one_at_a_time(llm: LLM, items: Sequence[WorkItem], *, label: str) -> Run:
    """Each request alone in the engine, to its natural end: what every other run must reproduce."""
    before = llm.stats
    outputs: dict[str, RequestOutput] = {}
    for item in items:
        alone = replace(item, arrive_at_step=0, abort_after_tokens=None)
        outputs |= run_workload(llm, [alone], label=label, audit=False).outputs
    return Run(label, outputs, _difference(llm.stats, before))


def in_turn(items: Sequence[WorkItem]) -> list[WorkItem]:
    """The same requests, each arriving when the one before has certainly ended: for what a request leaves to the next."""
    spaced = []
    step = 0
    for item in items:
        spaced.append(replace(item, arrive_at_step=step))
        step += item.params.n * (len(item.prompt_token_ids) + (item.params.max_tokens or 0)) + 4
    return spaced


def prompt_hash(items: Sequence[WorkItem]) -> str:
    """Identifies the prompts of a workload in a record."""
    return hashlib.sha256(json.dumps([list(item.prompt_token_ids) for item in items]).encode()).hexdigest()[:16]


def _abort(llm: LLM, request_id: str, outputs: dict[str, RequestOutput]) -> None:
    output = llm.abort(request_id)
    if output is not None:
        outputs[request_id] = output


def _is_done(output: RequestOutput | None) -> bool:
    return output is not None and output.finished


def _step_limit(llm: LLM, items: Sequence[WorkItem]) -> int:
    """Generous: every token in a step of its own, and everything computed again for each request."""
    tokens = sum(
        item.params.n * (len(item.prompt_token_ids) + (item.params.max_tokens or llm.config.max_model_len)) for item in items
    )
    return max((item.arrive_at_step for item in items), default=0) + 4 * tokens + 100


def _difference(after: EngineStats, before: EngineStats) -> EngineStats:
    def minus(a: Any, b: Any) -> Any:
        if isinstance(a, list):
            return [x - y for x, y in zip(a, b, strict=True)]
        if isinstance(a, dict):
            return {key: value - b.get(key, 0) for key, value in a.items()}
        return a - b

    values = {f.name: minus(getattr(after, f.name), getattr(before, f.name)) for f in fields(EngineStats)}
    return replace(after, **values | {"num_speculative_tokens": after.num_speculative_tokens})
