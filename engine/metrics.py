"""Counters of one engine, and the figures derived from them; `DEFINITIONS` says what they mean."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["DEFINITIONS", "Counter", "EngineStats", "Metric", "Vector", "acceptance_length", "acceptance_rate"]

DEFINITIONS = """\
draft: one proposal round of one request with at least one proposed token that the verifier saw.
drafted tokens: proposed tokens that the verifier saw; no padding. accepted: those accepted and emitted; the last token of a
step is always the step's own (the bonus token, or the stop that cut an accepted run), so each step emits 1 + accepted.
acceptance rate = accepted / drafted (n/a without drafts); acceptance length = 1 + accepted / drafts (1 without drafts);
per-position rate = accepted at position i / drafts. Conservation: emitted = prefill tokens + sum over steps (1 + accepted)."""


def acceptance_rate(num_accepted: int, num_drafted: int) -> float | None:
    """accepted / drafted; None (n/a) without drafts."""
    return num_accepted / num_drafted if num_drafted else None


def acceptance_length(num_accepted: int, num_drafts: int) -> float:
    """1 + accepted / drafts; the bonus token is included; 1 without drafts."""
    return 1 + num_accepted / num_drafts if num_drafts else 1.0


@dataclass
class EngineStats:
    """Raw counters since the engine began. Only committed results count, except for the work that was done."""

    num_speculative_tokens: int = 0
    num_steps: int = 0
    num_overlapped_steps: int = 0  # submitted while another step was in flight
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_prefill_tokens_emitted: int = 0  # one for each prefill that was completed
    num_decode_steps: int = 0  # decode rows that emitted
    num_computed_positions: int = 0  # positions that went through the model, dropped results included
    num_dropped_rows: int = 0  # went through the model for requests that had ended meanwhile
    num_dropped_positions: int = 0  # the positions of those rows
    num_empty_rows: int = 0  # were planned, and had no position to compute: a step in flight had reached the limit
    num_partial_prefills: int = 0  # prefill rows that left a part of the prompt for later
    num_preemptions: int = 0
    num_preempted_positions: int = 0  # committed positions that preempted requests gave up
    num_prefix_queries: int = 0  # tokens looked up
    num_prefix_hits: int = 0  # tokens found
    num_drafts: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)
    num_nan_rows: int = 0
    num_finished: dict[str, int] = field(default_factory=dict)  # by finish reason

    def __post_init__(self) -> None:
        self.num_accepted_tokens_per_pos = self.num_accepted_tokens_per_pos or [0] * self.num_speculative_tokens

    def count_draft(self, num_drafted: int, num_accepted: int) -> None:
        self.num_drafts += 1
        self.num_drafted_tokens += num_drafted
        self.num_accepted_tokens += num_accepted
        for position in range(num_accepted):
            self.num_accepted_tokens_per_pos[position] += 1

    @property
    def acceptance_rate(self) -> float | None:
        return acceptance_rate(self.num_accepted_tokens, self.num_drafted_tokens)

    @property
    def acceptance_length(self) -> float:
        return acceptance_length(self.num_accepted_tokens, self.num_drafts)


@dataclass(frozen=True)
class Metric:
    name: str


@dataclass(frozen=True)
class Counter(Metric):
    value: int


@dataclass(frozen=True)
class Vector(Metric):
    values: list[int]


def as_metrics(stats: EngineStats) -> list[Metric]:
    """The counters under vLLM's names where it has one (so that scripts can move over), else under `lockstep:`."""
    return [
        Counter("vllm:prompt_tokens", stats.num_prompt_tokens),
        Counter("vllm:generation_tokens", stats.num_generated_tokens),
        Counter("vllm:num_preemptions", stats.num_preemptions),
        Counter("vllm:prefix_cache_queries", stats.num_prefix_queries),
        Counter("vllm:prefix_cache_hits", stats.num_prefix_hits),
        Counter("vllm:spec_decode_num_drafts", stats.num_drafts),
        Counter("vllm:spec_decode_num_draft_tokens", stats.num_drafted_tokens),
        Counter("vllm:spec_decode_num_accepted_tokens", stats.num_accepted_tokens),
        Vector("vllm:spec_decode_num_accepted_tokens_per_pos", list(stats.num_accepted_tokens_per_pos)),
        Counter("lockstep:num_steps", stats.num_steps),
        Counter("lockstep:num_overlapped_steps", stats.num_overlapped_steps),
        Counter("lockstep:num_computed_positions", stats.num_computed_positions),
        Counter("lockstep:num_dropped_rows", stats.num_dropped_rows),
        Counter("lockstep:num_nan_rows", stats.num_nan_rows),
    ]
