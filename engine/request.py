"""The host's state of one sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from engine.errors import RequestError
from engine.step import RowLogprobs, SlotSampling

if TYPE_CHECKING:
    from engine.sampling_params import SamplingParams
    from engine.stop import Finish, StopChecker

__all__ = ["Request", "RequestGroup", "RequestStatus"]


class RequestStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Request:
    """Lengths, named as in law 3 of the design:

    * `num_tokens`: prompt and committed output.
    * `num_committed_tokens`: leading positions whose KV entries a step that has come back wrote. While decoding this is
      `num_tokens - 1`: the last token has not been through the model yet.
    * `num_planned_tokens`: upper bound of `num_tokens` once the steps in flight come back, every draft accepted. Only the KV
      allocator may read it.
    """

    request_id: str
    arrival: int
    prompt_token_ids: list[int]
    token_limit: int  # prompt and completion together
    sampling: SlotSampling
    stop_checker: StopChecker
    extra_args: dict[str, Any] | None = None

    output_token_ids: list[int] = field(default_factory=list)
    logprobs: list[RowLogprobs] = field(default_factory=list)
    status: RequestStatus = RequestStatus.WAITING
    finish: Finish | None = None
    error: RequestError | None = None

    slot: int = -1
    generation: int = -1
    block_ids: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)  # of the leading blocks that are full and committed
    num_cached_tokens: int = 0  # prefix-cache hits of the current admission
    num_prefill_tokens: int = 0  # known tokens at admission: the prefill is over when all of them are scheduled
    num_scheduled_prefill_tokens: int = 0
    num_committed_tokens: int = 0
    num_in_flight: int = 0  # steps in flight that name this request
    num_in_flight_tokens_min: int = 0  # new tokens that they bring at least,
    num_in_flight_tokens_max: int = 0  # and at most

    num_preemptions: int = 0
    num_drafts: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    num_decode_steps: int = 0  # that emitted
    drafts: list[tuple[int, int]] = field(default_factory=list)  # (drafted, accepted) of each
    num_prefills: int = 0  # tokens that came out of a prefill, one for each admission that got that far

    @property
    def token_ids(self) -> list[int]:
        return self.prompt_token_ids + self.output_token_ids

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_planned_tokens(self) -> int:
        return min(self.num_tokens + self.num_in_flight_tokens_max, self.token_limit)

    @property
    def is_prefilling(self) -> bool:
        return self.num_scheduled_prefill_tokens < self.num_prefill_tokens

    @property
    def may_need_a_step(self) -> bool:
        """False once the steps in flight bring it to its limit whatever they accept."""
        return self.num_tokens + self.num_in_flight_tokens_min < self.token_limit


@dataclass(frozen=True)
class RequestGroup:
    """The completions of one prompt."""

    request_id: str
    prompt: str | None  # where it came as text
    params: SamplingParams
    requests: list[Request]

    @property
    def finished(self) -> bool:
        return all(request.finish is not None for request in self.requests)
