"""Faults of how a request ends: the reason, the text."""

from __future__ import annotations

from typing import Any

from engine.stop import Finish, StopChecker
from harness.faults.fault import fault, reach


@fault(
    "T-03",
    "the length is looked at before the stop",
    part="stop_checker",
    case="simulation:300",
    raises="FinishReasonMismatchError",
    source="SGLang #31599, #33758",
    simulated=True,
)
class LengthFirst(StopChecker):
    def feed(self, token_id: int) -> Finish | None:
        finish = super().feed(token_id)
        if finish is not None and finish.reason == "stop" and self._num_tokens >= self._max_new_tokens:
            reach("T-03")
            return Finish("length")
        return finish


@fault(
    "own/text-unflushed",
    "the last bytes of a text wait for a character that never gets complete",
    part="stop_checker",
    case="cell:roomy/whole/nocache/plain/several",
    raises="TextMismatchError",
)
class NeverFlushes(StopChecker):
    def __init__(self, detokenizer: Any, **options: Any) -> None:
        super().__init__(detokenizer, **options)
        detokenizer.flush = lambda: reach("own/text-unflushed")
