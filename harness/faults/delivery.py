"""Faults between the device side and the host: results in the wrong order, cut short, or overwritten before they are read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from engine.runner import Runner
from engine.step import StepPlan, StepResult
from harness.faults.fault import fault, reach


@fault(
    "X-01",
    "the counts of accepted tokens are read in another order of rows",
    part="runner",
    case="cell:roomy/whole/nocache/mixed/greedy",
    raises="EngineCrashError",
    source="vLLM #53919, #45100",
    simulated=True,
)
class PermutesTheCounts(Runner):
    def execute(self, plan: StepPlan) -> StepResult:
        result = super().execute(plan)
        decodes = [index for index, row in enumerate(plan.rows) if row.is_decode]
        num_emitted = result.num_emitted.copy()
        num_emitted[decodes] = np.roll(num_emitted[decodes], 1)
        reach("X-01", int((num_emitted != result.num_emitted).sum()))
        return replace(result, num_emitted=num_emitted)


@fault(
    "X-02",
    "of an accepted run one token reaches the other side",
    part="runner",
    case="cell:roomy/whole/nocache/right/greedy",
    raises="StalledEngineError",
    source="vLLM #52071, #44697 (between pipeline stages there)",
    simulated=True,
)
class RelaysOneToken(Runner):
    def execute(self, plan: StepPlan) -> StepResult:
        result = super().execute(plan)
        reach("X-02", int((result.num_emitted > 1).sum()))
        return replace(result, num_emitted=np.minimum(result.num_emitted, 1), logprobs={})


@fault(
    "own/buffer-shared",
    "every step writes its tokens to the same buffer, which the host may read too late",
    part="runner",
    case="simulation:300",
    raises="TokenMismatchError",
    simulated=True,
)
class SharesOneBuffer(Runner):
    def execute(self, plan: StepPlan) -> StepResult:
        result = super().execute(plan)
        buffer: Any = self.__dict__.setdefault("_buffer", np.zeros((self.table.tokens.shape[0], self.depth + 1), np.int32))
        rows = len(plan.rows)
        reach("own/buffer-shared")
        buffer[:rows] = result.token_ids
        return replace(result, token_ids=buffer[:rows])
