"""From a prompt to requests that can run: text to ids, every check of bad input, sampling parameters in the runner's form."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, TypeAlias

from engine.config import ResolvedConfig
from engine.detokenizer import Detokenizer, NoDetokenizer
from engine.errors import InvalidRequestError
from engine.request import Request, RequestGroup
from engine.sampling_params import SamplingParams
from engine.step import SlotSampling
from engine.stop import StopChecker
from engine.tokenizer import Tokenizer

__all__ = ["Admission", "Prompt"]

Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, `{"prompt": text}` or `{"prompt_token_ids": ids}`."""

_SMALLEST_FLOAT32 = 2.0**-126  # a top_p below it still keeps one token


class Admission:
    def __init__(
        self, config: ResolvedConfig, tokenizer: Tokenizer | None, stop_checker: Callable[..., StopChecker] = StopChecker
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._stop_checker = stop_checker

    def make(self, request_id: str, prompt: Prompt, params: SamplingParams, arrival: int) -> RequestGroup:
        """One request for each of the n completions. `InvalidRequestError` says what is wrong, and what to give instead."""
        text, token_ids = self._tokenize(prompt)
        self._check(token_ids, params)
        requests = [self._request(request_id, index, arrival, token_ids, params) for index in range(params.n)]
        return RequestGroup(request_id, text, params, requests)

    def _tokenize(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        if isinstance(prompt, Mapping):
            keys = set(prompt)
            if keys == {"prompt_token_ids"}:
                return self._tokenize(prompt["prompt_token_ids"])
            if keys == {"prompt"}:
                return self._tokenize(prompt["prompt"])
            raise InvalidRequestError(
                f"a prompt dict has the key 'prompt' or 'prompt_token_ids', got {sorted(map(str, keys))}."
            )
        if isinstance(prompt, str):
            if self._tokenizer is None:
                raise InvalidRequestError("this engine has no tokenizer (skip_tokenizer_init=True); give token ids.")
            try:
                return prompt, self._tokenizer.encode(prompt)
            except (TypeError, ValueError) as error:
                raise InvalidRequestError(f"the tokenizer refuses the prompt {prompt!r}: {error}") from error
        try:
            return None, [operator.index(token) for token in prompt]
        except TypeError as error:
            raise InvalidRequestError(f"a prompt is text or a list of integer token ids, got {prompt!r}.") from error

    def _check(self, token_ids: list[int], params: SamplingParams) -> None:
        model, max_model_len = self._config.model, self._config.max_model_len
        vocab_size = model.vocab_size
        if not token_ids:
            raise InvalidRequestError("the prompt is empty; give at least one token.")
        if len(token_ids) >= max_model_len:
            raise InvalidRequestError(
                f"the prompt has {len(token_ids)} tokens; max_model_len={max_model_len} allows {max_model_len - 1} at most."
            )
        for name, ids in (("the prompt", token_ids), ("stop_token_ids", params.stop_token_ids or ())):
            wrong = next((token for token in ids if not 0 <= token < vocab_size), None)
            if wrong is not None:
                raise InvalidRequestError(f"{name} holds token id {wrong}; the vocabulary has the ids 0 to {vocab_size - 1}.")
        if params.logprobs is not None and params.logprobs > vocab_size:
            raise InvalidRequestError(f"logprobs={params.logprobs} is above the vocabulary size ({vocab_size}).")
        if params.min_tokens and len({*model.eos_token_ids, *(params.stop_token_ids or ())}) >= vocab_size:
            raise InvalidRequestError(
                "min_tokens forbids the stop ids, and these are the whole vocabulary; leave some token out."
            )
        try:
            pickle.dumps(params.extra_args)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise InvalidRequestError(f"extra_args must be plain data that can be pickled: {error}") from error
        if params.stop and self._tokenizer is None:
            raise InvalidRequestError("stop strings need a tokenizer; this engine has skip_tokenizer_init=True.")

    def _request(self, request_id: str, index: int, arrival: int, token_ids: list[int], params: SamplingParams) -> Request:
        model = self._config.model
        room = self._config.max_model_len - len(token_ids)
        max_new_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        eos_ids = () if params.ignore_eos else model.eos_token_ids
        stop_ids = tuple(params.stop_token_ids or ())
        return Request(
            request_id=request_id if params.n == 1 else f"{request_id}#{index}",
            arrival=arrival,
            prompt_token_ids=token_ids,
            token_limit=len(token_ids) + max_new_tokens,
            sampling=SlotSampling(
                temperature=0.0 if params.is_greedy else params.temperature,
                top_k=min(max(params.top_k, 0), model.vocab_size),
                top_p=max(params.top_p, _SMALLEST_FLOAT32),
                min_p=params.min_p,
                seed=params.seed if params.seed is not None else _derived_seed(self._config.options.seed, arrival),
                sample_index=index,
                min_tokens=params.min_tokens,
                stop_ids=tuple(dict.fromkeys(eos_ids + stop_ids)),
                logprobs=params.logprobs,
            ),
            stop_checker=self._stop_checker(
                self._detokenizer(token_ids, params),
                eos_token_ids=eos_ids,
                stop_token_ids=stop_ids,
                stop=tuple(params.stop or ()),
                include_stop_str=params.include_stop_str_in_output,
                min_tokens=params.min_tokens,
                max_new_tokens=max_new_tokens,
            ),
            extra_args=params.extra_args,
        )

    def _detokenizer(self, token_ids: list[int], params: SamplingParams) -> Detokenizer:
        tokenizer = self._tokenizer
        if tokenizer is None or not params.detokenize:
            return NoDetokenizer()
        return Detokenizer(
            lambda ids: tokenizer.decode(ids, skip_special_tokens=params.skip_special_tokens), context_ids=token_ids
        )


def _derived_seed(engine_seed: int, arrival: int) -> int:
    digest = blake2b(f"{engine_seed}/{arrival}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
