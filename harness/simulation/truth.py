"""What a request must say, from its prompt and parameters alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from engine import CompletionOutput, EngineStats, RequestOutput, SamplingParams
from engine.outputs import RequestStats
from engine.stop import FinishReason
from harness.simulation.hash_model import DIGEST_WEIGHTS, ID_WEIGHTS, LOGITS, MASK, NUM_STATES, TOKEN_WEIGHTS
from harness.toy_model import EOS_ID
from harness.workload import Run, WorkItem
from kernels.backend import create_kernels
from kernels.interface import DrawPurpose

__all__ = ["Truth", "true_run"]

_NO_STATS = RequestStats(0, 0, 0, 0, 0, 0, 0)
_GREEDY_CHOICE = [-1 if row.isnan().any() else int(row.argmax()) for row in LOGITS]


@dataclass
class _Sequence:
    """A prefix and its hash, extended token by token."""

    tokens: list[int] = field(default_factory=list)
    digest: int = 0
    total: int = 0

    def append(self, token: int) -> None:
        position = len(self.tokens)
        self.tokens.append(token)
        self.digest = (self.digest + int(TOKEN_WEIGHTS[token]) * int(ID_WEIGHTS[position])) & MASK
        self.total = (self.total + self.digest * int(DIGEST_WEIGHTS[position])) & MASK

    @property
    def state(self) -> int:
        return (self.total >> 32) % NUM_STATES


@dataclass(frozen=True)
class Truth:
    """One completion."""

    token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: int | None
    beyond: list[int]
    """What the model would say behind the end."""

    @classmethod
    def of(cls, prompt: Sequence[int], params: SamplingParams, index: int, max_model_len: int, num_beyond: int) -> Truth:
        sequence = _Sequence()
        for token in prompt:
            sequence.append(token)
        room = max_model_len - len(prompt)
        most = room if params.max_tokens is None else min(params.max_tokens, room)
        choose = _Choice(params, index)
        found: list[int] = []
        finish: tuple[FinishReason, int | None] | None = None
        while finish is None:
            token = choose(sequence, masked=len(found) < params.min_tokens)
            if token < 0:
                return cls(found, "error", None, [])
            sequence.append(token)
            found.append(token)
            finish = _ending(token, len(found), params, most)
        beyond: list[int] = []
        while len(beyond) < num_beyond and len(sequence.tokens) < max_model_len:
            token = choose(sequence, masked=False)
            if token < 0:
                break
            sequence.append(token)
            beyond.append(token)
        return cls(found, finish[0], finish[1], beyond)


class _Choice:
    """How one completion chooses its tokens."""

    def __init__(self, params: SamplingParams, index: int) -> None:
        self._is_greedy = params.is_greedy
        self._stop_ids = {*(() if params.ignore_eos else (EOS_ID,)), *(params.stop_token_ids or ())}
        self._kernels = create_kernels("auto", 1)
        self._parameters = (
            torch.tensor([0.0 if params.is_greedy else params.temperature]),
            torch.tensor([max(params.top_k, 0)], dtype=torch.int32),
            torch.tensor([params.top_p]),
            torch.tensor([params.min_p]),
            torch.tensor([params.seed or 0], dtype=torch.int64),
            torch.tensor([index], dtype=torch.int32),
        )

    def __call__(self, sequence: _Sequence, *, masked: bool) -> int:
        """The token behind `sequence`; -1 for NaN."""
        stop_ids = self._stop_ids if masked else set()
        if self._is_greedy and _GREEDY_CHOICE[sequence.state] not in stop_ids:
            return _GREEDY_CHOICE[sequence.state]
        logits = LOGITS[sequence.state][None].clone()
        logits[0, list(stop_ids)] = -torch.inf
        position = torch.tensor([len(sequence.tokens)], dtype=torch.int64)
        return int(self._kernels.sample(logits, *self._parameters, position, DrawPurpose.TARGET))


def _ending(token: int, count: int, params: SamplingParams, most: int) -> tuple[FinishReason, int | None] | None:
    if count > params.min_tokens:
        if token == EOS_ID and not params.ignore_eos:
            return "stop", None
        if token in (params.stop_token_ids or ()):
            return "stop", token
    return ("length", None) if count >= most else None


def true_run(items: Sequence[WorkItem], truths: dict[str, list[Truth]]) -> Run:
    """The whole workload as a run that never was."""
    outputs = {}
    for item in items:
        completions = [
            CompletionOutput(index, "", truth.token_ids, truth.finish_reason, truth.stop_reason, None, _NO_STATS)
            for index, truth in enumerate(truths[item.request_id])
        ]
        outputs[item.request_id] = RequestOutput(item.request_id, None, list(item.prompt_token_ids), completions, True)
    return Run("closed form", outputs, EngineStats())
