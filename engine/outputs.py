"""What a caller gets back; names as in vLLM."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import RequestError
from engine.stop import FinishReason

__all__ = ["CompletionOutput", "Logprob", "RequestOutput", "RequestStats"]


@dataclass(frozen=True)
class Logprob:
    logprob: float
    rank: int
    decoded_token: str | None = None


@dataclass(frozen=True)
class RequestStats:
    """Counters of one completion; see `engine.metrics.DEFINITIONS`."""

    num_cached_tokens: int
    num_preemptions: int
    num_drafts: int
    num_drafted_tokens: int
    num_accepted_tokens: int
    num_prefills: int
    num_decode_steps: int


@dataclass(frozen=True)
class CompletionOutput:
    index: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    logprobs: list[dict[int, Logprob]] | None
    stats: RequestStats

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True)
class RequestOutput:
    """All completions of one prompt, cumulative while they grow."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    error: RequestError | None = None
