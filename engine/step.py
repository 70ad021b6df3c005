"""What crosses the boundary between the scheduler and the runner: one plan down, one result back. Frozen, picklable, small."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["NewSlot", "PlanRow", "RowLogprobs", "SlotSampling", "StepPlan", "StepResult"]


@dataclass(frozen=True, slots=True)
class SlotSampling:
    """The sampler's view of a request; never changes while the request keeps its slot."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int  # 64 bits, signed
    sample_index: int
    min_tokens: int
    stop_ids: tuple[int, ...]  # masked until min_tokens are there
    logprobs: int | None


@dataclass(frozen=True, slots=True)
class NewSlot:
    """A request takes a slot: admitted for the first time, or again after a preemption."""

    slot: int
    generation: int
    token_ids: npt.NDArray[np.int32]  # all tokens known so far (prompt, and committed output after a preemption)
    num_prompt_tokens: int
    num_cached_tokens: int  # positions whose KV entries are already in the given blocks
    token_limit: int  # prompt and completion together never get longer than this
    sampling: SlotSampling
    extra_args: dict[str, Any] | None  # for the drafter


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One request's share of a step. Set by the scheduler; the runner fills in the values from its table."""

    slot: int
    generation: int
    num_tokens: int  # prefill: exactly this many; decode: the last token and at most num_tokens - 1 drafts
    is_decode: bool
    wants_token: bool  # a decode row, or the chunk that completes the prefill
    num_next_drafts: int  # how many drafts to propose behind this step, at most
    new_block_ids: tuple[int, ...]  # appended to the slot's block table


@dataclass(frozen=True, slots=True)
class StepPlan:
    step_id: int
    rows: tuple[PlanRow, ...]
    new_slots: tuple[NewSlot, ...] = ()  # applied before the rows


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """For each emitted position: the top ids with their raw log-probabilities, and those of the token itself."""

    top_ids: npt.NDArray[np.int32]  # [emitted, k]
    top_logprobs: npt.NDArray[np.float64]  # [emitted, k]
    logprobs: npt.NDArray[np.float64]  # [emitted]
    ranks: npt.NDArray[np.int32]  # [emitted], 1 is the largest


@dataclass(frozen=True, slots=True)
class StepResult:
    """Set by the runner, row for row as in the plan."""

    step_id: int
    token_ids: npt.NDArray[np.int32]  # [rows, K + 1]; the first num_emitted[i] of a row count
    num_emitted: npt.NDArray[np.int32]  # [rows]; 0 where no token was wanted, or none fits any more
    num_drafted: npt.NDArray[np.int32]  # [rows]; drafts that were verified
    num_computed: npt.NDArray[np.int32]  # [rows]; positions that went through the model
    nan_logits: npt.NDArray[np.bool_]  # [rows]; the position behind the emitted ones had no usable logits
    logprobs: dict[int, RowLogprobs] = field(default_factory=dict)  # by index of the row
