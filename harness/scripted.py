"""A scripted drafter: the test chooses how many drafts are right in each round. A plugin: `plugins=["harness.scripted"]`.

The script travels with the request, in `SamplingParams.extra_args`, so that it reaches the runner in every process and one
engine serves any number of scripts. With it nearly every public defect of this field has a small deterministic test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.drafters.base import DraftContext, Drafter
from engine.drafters.registry import register_drafter
from engine.step import NewSlot

__all__ = ["METHOD", "PLUGIN", "ScriptedDrafter", "script"]

METHOD = "scripted"
PLUGIN = "harness.scripted"
_KEY = "script"


def script(continuations: Sequence[Sequence[int]], accept: Sequence[int]) -> dict[str, Any]:
    """`extra_args` of a request.

    continuations: for each completion (n of them) the true tokens behind the prompt; it may go on behind a stop. accept: how
    many drafts are right in each round, used in turn; more than K means all.
    """
    if not accept or min(accept) < 0:
        raise ValueError(f"accept must name at least one round, each with 0 or more right drafts, got {list(accept)}.")
    return {_KEY: {"continuations": [list(map(int, c)) for c in continuations], "accept": [int(a) for a in accept]}}


@dataclass
class _Script:
    num_prompt_tokens: int
    continuation: npt.NDArray[np.int32]
    accept: list[int]
    num_rounds: int = 0


class ScriptedDrafter(Drafter):
    """Proposes the true continuation as far as the script says so, then a token that is certainly wrong, then anything."""

    def __init__(self, num_speculative_tokens: int, vocab_size: int, options: Mapping[str, Any]) -> None:
        super().__init__(num_speculative_tokens, vocab_size, options)
        self._scripts: dict[int, _Script] = {}

    def admit(self, new: NewSlot) -> None:
        self._scripts.pop(new.slot, None)
        if given := (new.extra_args or {}).get(_KEY):
            truth = np.asarray(given["continuations"][new.sampling.sample_index], dtype=np.int32)
            self._scripts[new.slot] = _Script(new.num_prompt_tokens, truth, given["accept"])

    def propose(self, context: DraftContext) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        drafts = np.zeros((len(context.slots), self.num_speculative_tokens), dtype=np.int32)
        counts = np.zeros(len(context.slots), dtype=np.int64)
        for row, slot in enumerate(context.slots.tolist()):
            script = self._scripts.get(slot)
            if script is None:
                continue
            start = int(context.num_tokens[row]) - script.num_prompt_tokens
            truth = script.continuation[start : start + int(context.max_drafts[row])]
            num_right = script.accept[script.num_rounds % len(script.accept)]
            script.num_rounds += 1
            drafts[row, : len(truth)] = truth
            drafts[row, num_right : len(truth)] = (truth[num_right:] + 1) % self.vocab_size
            # Behind the known truth nothing is right (the model gives NaN there): a wrong draft is still a draft.
            is_open = len(script.continuation) > 0 and num_right < context.max_drafts[row]
            counts[row] = context.max_drafts[row] if is_open else len(truth)
        return drafts, counts


register_drafter(METHOD, f"{__name__}:ScriptedDrafter", supports_async_scheduling=True)
