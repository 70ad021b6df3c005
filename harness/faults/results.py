"""Changes of plans and results that several faults need."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, replace
from typing import Any

import numpy as np

from engine.step import StepPlan, StepResult

__all__ = ["without_rows"]


def without_rows(plan: StepPlan, result: StepResult, dropped: Collection[int]) -> tuple[StepPlan, StepResult]:
    """The same step, as if the rows at the indices `dropped` had never been in it."""
    kept = [index for index in range(len(plan.rows)) if index not in dropped]
    arrays: dict[str, Any] = {
        f.name: getattr(result, f.name)[kept] for f in fields(StepResult) if isinstance(getattr(result, f.name), np.ndarray)
    }
    logprobs = {place: result.logprobs[index] for place, index in enumerate(kept) if index in result.logprobs}
    return replace(plan, rows=tuple(plan.rows[i] for i in kept)), replace(result, logprobs=logprobs, **arrays)
