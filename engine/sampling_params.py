"""What a request asks of the sampler and where it stops; names and defaults as in vLLM's `SamplingParams`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.options import is_int, named_options

__all__ = ["GREEDY_EPS", "SamplingParams"]

GREEDY_EPS = 1e-5  # a temperature below this is greedy, as in vLLM
MAX_COMPLETIONS = 1024
MAX_TEMPERATURE = 1e30  # the kernels compute in fp32; this is uniform for all purposes


@named_options
@dataclass(frozen=True)
class SamplingParams:
    """Sampling and stopping of one request.

    Raises `ValueError` for a value outside of its range and `UnknownOptionError` (a `TypeError`) for an unknown field.
    """

    n: int = 1
    """Completions for each prompt; each has its own random draws."""
    temperature: float = 1.0
    """0 is greedy: the first index of the largest logit."""
    top_k: int = 0
    """Keep the k most probable tokens; 0 or -1 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose mass reaches this; in (0, 1]."""
    min_p: float = 0.0
    """Keep tokens whose probability is at least this share of the largest; in [0, 1]."""
    seed: int | None = None
    """Addresses every draw of the request; None: from the engine's seed and the arrival number."""
    max_tokens: int | None = 16
    """New tokens at most; None: up to `max_model_len`."""
    min_tokens: int = 0
    """No stop (id, string or EOS) before this many new tokens."""
    stop: str | Sequence[str] | None = None
    """Strings that end the text (left out of it unless `include_stop_str_in_output`)."""
    stop_token_ids: Sequence[int] | None = None
    """Ids that end the request; the id stays in `token_ids`, its text is left out."""
    ignore_eos: bool = False
    """Go on behind the model's end-of-sequence ids."""
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    detokenize: bool = True
    logprobs: int | None = None
    """Raw log-probabilities of this many top tokens, and always of the chosen one, for each new token."""
    extra_args: dict[str, Any] | None = field(default=None, hash=False)
    """Handed to the drafter as it is; for plugins."""

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "stop", (self.stop,) if isinstance(self.stop, str) else _as_tuple("stop", self.stop))
        set_field(self, "stop_token_ids", _as_tuple("stop_token_ids", self.stop_token_ids))
        self._check_numbers()
        texts: Sequence[object] = self.stop or ()
        for text in texts:
            if not isinstance(text, str) or not text:
                raise ValueError(f"stop holds {text!r}; every stop string must be a non-empty string.")
        for token in self.stop_token_ids or ():
            if not is_int(token) or token < 0:
                raise ValueError(f"stop_token_ids holds {token!r}; ids are integers of at least 0.")
        if self.stop and not self.detokenize:
            raise ValueError("stop strings need detokenize=True; use stop_token_ids to stop without text.")

    def _check_numbers(self) -> None:
        def finite(name: str) -> float:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, got {value!r}.")
            return float(value)

        if not 0 <= finite("temperature") <= MAX_TEMPERATURE:
            raise ValueError(
                f"temperature must be 0 (greedy) or positive, {MAX_TEMPERATURE:g} at most, got {self.temperature}."
            )
        if not 0 < finite("top_p") <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}; 1 turns it off.")
        if not 0 <= finite("min_p") <= 1:
            raise ValueError(f"min_p must be in [0, 1], got {self.min_p}; 0 turns it off.")
        if not is_int(self.top_k) or self.top_k < -1:
            raise ValueError(f"top_k must be a positive integer, or 0 or -1 for all, got {self.top_k!r}.")
        if not is_int(self.n) or not 1 <= self.n <= MAX_COMPLETIONS:
            raise ValueError(f"n must be an integer from 1 to {MAX_COMPLETIONS}, got {self.n!r}.")
        if self.seed is not None and (not is_int(self.seed) or not -(2**63) <= self.seed < 2**63):
            raise ValueError(f"seed must be a 64-bit integer or None, got {self.seed!r}.")
        if self.max_tokens is not None and (not is_int(self.max_tokens) or self.max_tokens < 1):
            raise ValueError(f"max_tokens must be at least 1, or None for no limit but max_model_len, got {self.max_tokens!r}.")
        if not is_int(self.min_tokens) or self.min_tokens < 0:
            raise ValueError(f"min_tokens must be an integer of at least 0, got {self.min_tokens!r}.")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens ({self.min_tokens}) is above max_tokens ({self.max_tokens}).")
        if self.logprobs is not None and (not is_int(self.logprobs) or self.logprobs < 0):
            raise ValueError(f"logprobs must be None or an integer of at least 0, got {self.logprobs!r}.")

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_EPS


def _as_tuple(name: str, values: Iterable[Any] | None) -> tuple[Any, ...]:
    try:
        return tuple(values or ())
    except TypeError as error:
        raise ValueError(f"{name} must be a list, got {values!r}.") from error
