"""When a request ends. One judge, token by token, so that a run of accepted tokens ends where single steps would end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.detokenizer import Detokenizer

__all__ = ["Finish", "FinishReason", "StopChecker"]

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class Finish:
    reason: FinishReason
    stop_reason: int | str | None = None
    """The stop id or stop string that was met; None for EOS and for the other reasons."""


class StopChecker:
    """Judges each new token: EOS, then stop ids, then stop strings, then the length. Until `min_tokens` are there,
    nothing stops but the length."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        *,
        eos_token_ids: tuple[int, ...],
        stop_token_ids: tuple[int, ...],
        stop: tuple[str, ...],
        include_stop_str: bool,
        min_tokens: int,
        max_new_tokens: int,
    ) -> None:
        self.detokenizer = detokenizer
        self._eos = frozenset(eos_token_ids)
        self._stop_ids = frozenset(stop_token_ids)
        self._stop = stop
        self._include_stop_str = include_stop_str
        self._min_tokens = min_tokens
        self._max_new_tokens = max_new_tokens
        self._num_tokens = 0

    @property
    def text(self) -> str:
        return self.detokenizer.text

    def feed(self, token_id: int) -> Finish | None:
        """Take one more token; returns why the request ends with it, or None."""
        self._num_tokens += 1
        may_stop = self._num_tokens > self._min_tokens
        if may_stop and (token_id in self._eos or token_id in self._stop_ids):
            self.detokenizer.flush()  # the stop token itself gives no text
            return Finish("stop", None if token_id in self._eos else token_id)
        is_last = self._num_tokens >= self._max_new_tokens
        before = len(self.detokenizer.text)
        self.detokenizer.feed(token_id)
        if is_last:
            self.detokenizer.flush()
        if may_stop and (found := self._find_stop(before)):
            return Finish("stop", found)
        return Finish("length") if is_last else None

    def _find_stop(self, before: int) -> str | None:
        """The stop string that ends first in the text; cuts the text there. Only an end behind `before` is new."""
        text = self.detokenizer.text
        if not self._stop or len(text) == before:
            return None
        # From here on a match ends behind `before`; an older one stood there before min_tokens and does not count.
        starts = ((stop, text.find(stop, max(0, before - len(stop) + 1))) for stop in self._stop)
        hits = [(at + len(stop), at, stop) for stop, at in starts if at >= 0]
        if not hits:
            return None
        end, at, stop = min(hits)
        self.detokenizer.cut(end if self._include_stop_str else at)
        return stop
