"""Runs by hand: outputs and counters that agree, to be damaged by a test."""

from __future__ import annotations

from typing import Any

from engine import CompletionOutput, EngineStats, RequestOutput
from engine.outputs import Logprob, RequestStats
from harness.workload import Run

IDS = [72, 101, 108, 108, 111]


def completion(token_ids: list[int] | None = None, **changes: Any) -> CompletionOutput:
    ids = IDS if token_ids is None else token_ids
    own = {
        "num_cached_tokens": 0,
        "num_preemptions": 0,
        "num_drafts": 0,
        "num_drafted_tokens": 0,
        "num_accepted_tokens": 0,
        "num_prefills": min(1, len(ids)),
        "num_decode_steps": max(0, len(ids) - 1),
    }
    own |= {name: changes.pop(name) for name in list(changes) if name in own}
    drafts = ((own["num_drafted_tokens"], own["num_accepted_tokens"]),) if own["num_drafted_tokens"] else ()
    values: dict[str, Any] = {
        "index": 0,
        "text": "".join(map(chr, ids)),
        "token_ids": list(ids),
        "finish_reason": "length",
        "stop_reason": None,
        "logprobs": None,
    }
    return CompletionOutput(**values | changes, stats=RequestStats(**own, drafts=drafts))


def logprobs(*values: float) -> list[dict[int, Logprob]]:
    return [{65: Logprob(value, 1, "A")} for value in values]


def run(label: str = "expected", *, stats: dict[str, Any] | None = None, **requests: CompletionOutput) -> Run:
    """Requests by id, one completion each; counters as plain decoding of exactly these would leave them."""
    requests = requests or {"a": completion()}
    outputs = {
        name: RequestOutput(name, None, [1, 2, 3], [only], finished=only.finish_reason is not None)
        for name, only in requests.items()
    }
    each = list(requests.values())
    counted: dict[str, Any] = {
        "num_generated_tokens": sum(len(c.token_ids) for c in each),
        "num_prefill_tokens_emitted": sum(c.stats.num_prefills for c in each),
        "num_decode_steps": sum(c.stats.num_decode_steps for c in each),
        "num_drafts": sum(c.stats.num_drafts for c in each),
        "num_drafted_tokens": sum(c.stats.num_drafted_tokens for c in each),
        "num_accepted_tokens": sum(c.stats.num_accepted_tokens for c in each),
        "num_computed_positions": sum(3 + len(c.token_ids) - 1 for c in each),
    }
    return Run(label, outputs, EngineStats(**counted | (stats or {})))
