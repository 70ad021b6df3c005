"""What a caller gets back; names as in vLLM."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import RequestError
from engine.request import Request, RequestGroup
from engine.sampling_params import SamplingParams
from engine.stop import FinishReason
from engine.tokenizer import Tokenizer

__all__ = ["CompletionOutput", "Logprob", "RequestOutput", "RequestStats", "failed_output", "request_output"]


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
    drafts: tuple[tuple[int, int], ...] = ()
    """Every draft in order: (drafted tokens, accepted tokens)."""


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


def request_output(group: RequestGroup, tokenizer: Tokenizer | None) -> RequestOutput:
    """What a caller gets of a prompt now."""
    return RequestOutput(
        request_id=group.request_id,
        prompt=group.prompt,
        prompt_token_ids=list(group.requests[0].prompt_token_ids),
        outputs=[_completion(index, request, group.params, tokenizer) for index, request in enumerate(group.requests)],
        finished=group.finished,
        error=next((request.error for request in group.requests if request.error is not None), None),
    )


def _completion(index: int, request: Request, params: SamplingParams, tokenizer: Tokenizer | None) -> CompletionOutput:
    finish = request.finish
    return CompletionOutput(
        index=index,
        text=request.stop_checker.text,
        token_ids=list(request.output_token_ids),
        finish_reason=finish.reason if finish else None,
        stop_reason=finish.stop_reason if finish else None,
        logprobs=None if params.logprobs is None else _logprobs(request, tokenizer),
        stats=RequestStats(
            num_cached_tokens=request.num_cached_tokens,
            num_preemptions=request.num_preemptions,
            num_drafts=request.num_drafts,
            num_drafted_tokens=request.num_drafted_tokens,
            num_accepted_tokens=request.num_accepted_tokens,
            num_prefills=request.num_prefills,
            num_decode_steps=request.num_decode_steps,
            drafts=tuple(request.drafts),
        ),
    )


def _logprobs(request: Request, tokenizer: Tokenizer | None) -> list[dict[int, Logprob]]:
    def decoded(token_id: int) -> str | None:
        return tokenizer.decode([token_id], skip_special_tokens=False) if tokenizer else None

    chosen = iter(request.output_token_ids)
    positions = []
    for part in request.logprobs:
        for top_ids, top_logprobs, own, rank in zip(
            part.top_ids.tolist(), part.top_logprobs.tolist(), part.logprobs.tolist(), part.ranks.tolist(), strict=True
        ):
            entry = {
                token: Logprob(value, place, decoded(token))
                for place, (token, value) in enumerate(zip(top_ids, top_logprobs, strict=True), start=1)
            }
            token = next(chosen)
            entry.setdefault(token, Logprob(own, rank, decoded(token)))
            positions.append(entry)
    return positions


def failed_output(request_id: str, prompt: str | None, error: RequestError) -> RequestOutput:
    """For a prompt that was refused."""
    return RequestOutput(
        request_id=request_id,
        prompt=prompt,
        prompt_token_ids=[],
        outputs=[],
        finished=True,
        error=error,
    )
