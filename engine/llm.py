"""The front end: prompts in, completions out. Names and meaning follow vLLM's offline API."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from numbers import Integral
from types import TracebackType
from typing import Any, Literal, TypeAlias

from tqdm.auto import tqdm

from engine.checkpoint import open_checkpoint, resolve_model
from engine.config import EngineConfig, ResolvedConfig
from engine.core import EngineCore
from engine.detokenizer import Detokenizer, NoDetokenizer
from engine.errors import InvalidRequestError, RequestError, RequestFailedError
from engine.executor.registry import executor_class
from engine.metrics import EngineStats, Metric, as_metrics
from engine.outputs import CompletionOutput, Logprob, RequestOutput, RequestStats
from engine.request import Request
from engine.runner import load_plugins
from engine.sampling_params import SamplingParams
from engine.step import SlotSampling
from engine.stop import StopChecker
from engine.tokenizer import Tokenizer, load_tokenizer

__all__ = ["LLM", "Prompt"]

_SMALLEST_FLOAT32 = 2.0**-126  # a top_p below it still keeps one token

Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, `{"prompt": text}` or `{"prompt_token_ids": ids}`."""


@dataclass(frozen=True)
class _Group:
    """The completions of one prompt."""

    request_id: str
    prompt: str | None
    params: SamplingParams
    requests: list[Request]

    @property
    def finished(self) -> bool:
        return all(request.finish is not None for request in self.requests)


class LLM:
    """An engine with its model. A context manager; `shutdown` frees it.

    Options are those of `EngineConfig`. Raises `UnknownOptionError` (a `TypeError`) for an unknown option, `ValueError` for a
    bad value, `CheckpointError` (a `ValueError`) for a model that cannot be loaded.
    """

    def __init__(self, model: str, **options: Any) -> None:
        engine_config = EngineConfig(model=str(model), **options)
        load_plugins(engine_config.plugins)
        path = resolve_model(engine_config.model)
        self.config: ResolvedConfig = engine_config.resolve(open_checkpoint(path).config)
        self._tokenizer = None if engine_config.skip_tokenizer_init else load_tokenizer(engine_config.tokenizer or path)
        self._executor = executor_class(engine_config.distributed_executor_backend)(self.config)
        self._core = EngineCore(self.config, self._executor)
        self._groups: dict[str, _Group] = {}  # unfinished
        self._group_of_request: dict[Request, _Group] = {}
        self._num_arrivals = 0
        self._num_generated = 0

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        """Wait for the steps in flight and free the device side. Calling it again does nothing."""
        self._executor.shutdown()

    # --- whole batches ----------------------------------------------------------------------------------------------
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        on_error: Literal["raise", "return"] = "raise",
    ) -> list[RequestOutput]:
        """Complete every prompt; outputs come in the order of the prompts.

        A prompt that is wrong or fails does not touch the others. When they are done, `RequestFailedError` is raised with the
        errors and the finished outputs; with on_error="return" all are returned, the failed ones with `error` set. Raises
        `InvalidRequestError` for an empty list and `ValueError` where the number of sampling parameters does not fit.
        """
        batch = _as_batch(prompts)
        params = _params_for(batch, sampling_params)
        if self.has_unfinished_requests():
            raise InvalidRequestError(
                "requests of add_request are unfinished; finish them with step() or abort() before generate()."
            )
        ids: list[str] = []
        outputs: list[RequestOutput | None] = [None] * len(batch)
        errors: dict[int, RequestError] = {}
        index_of: dict[str, int] = {}
        try:
            for index, (prompt, param) in enumerate(zip(batch, params, strict=True)):
                request_id = f"generate-{self._num_generated}"
                self._num_generated += 1
                try:
                    self.add_request(request_id, prompt, param)
                except RequestError as error:
                    errors[index] = error
                    continue
                ids.append(request_id)
                index_of[request_id] = index
            with tqdm(total=len(index_of), desc="requests", disable=not use_tqdm, dynamic_ncols=True) as progress:
                while self.has_unfinished_requests():
                    for group in self._step_groups():
                        if group.finished:
                            outputs[index_of[group.request_id]] = self._output(group)
                            progress.update()
        except BaseException:
            for request_id in ids:
                self.abort(request_id)
            raise
        for index, output in enumerate(outputs):
            if output is not None and output.error is not None:
                errors[index] = output.error
        if errors and on_error == "raise":
            raise RequestFailedError(dict(sorted(errors.items())), list(outputs))
        return [
            output if output is not None else _failed_output(f"rejected-{index}", batch[index], errors[index])
            for index, output in enumerate(outputs)
        ]

    def chat(
        self,
        messages: Sequence[Mapping[str, str]] | Sequence[Sequence[Mapping[str, str]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        **template_arguments: Any,
    ) -> list[RequestOutput]:
        """`generate` for one conversation or a list of them, through the checkpoint's chat template."""
        conversations: Any = [messages] if messages and isinstance(messages[0], Mapping) else messages
        tokenizer = self.get_tokenizer()
        prompts = [{"prompt_token_ids": tokenizer.apply_chat_template(c, **template_arguments)} for c in conversations]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    # --- one request at a time --------------------------------------------------------------------------------------
    def add_request(self, request_id: str, prompt: Prompt, params: SamplingParams | None = None) -> None:
        """Queue one prompt. Raises `InvalidRequestError` and changes nothing if it cannot run.

        Every call counts as an arrival; an unseeded request takes its seed from the engine's seed and that number.
        """
        params = params or SamplingParams()
        arrival = self._num_arrivals
        self._num_arrivals += 1
        if request_id in self._groups:
            raise InvalidRequestError(f"request id {request_id!r} is in use by an unfinished request; choose another.")
        text, token_ids = self._tokenize(prompt)
        self._check(token_ids, params)
        requests = [self._request(request_id, index, arrival, token_ids, params) for index in range(params.n)]
        group = _Group(request_id, text, params, requests)
        for request in requests:
            self._core.scheduler.add(request)
            self._group_of_request[request] = group
        self._groups[request_id] = group
        self._core.stats.num_prompt_tokens += len(token_ids)

    def step(self) -> list[RequestOutput]:
        """Advance by one step; returns the requests that have new tokens or ended, cumulative."""
        return [self._output(group) for group in self._step_groups()]

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now and return what it has; None for an id that is not running any more."""
        group = self._groups.get(request_id)
        if group is None:
            return None
        for request in group.requests:
            self._core.scheduler.abort(request)
        self._forget(group)
        return self._output(group)

    def has_unfinished_requests(self) -> bool:
        return bool(self._groups)

    # --- what the engine says of itself -----------------------------------------------------------------------------
    def get_tokenizer(self) -> Tokenizer:
        """Raises `ValueError` with skip_tokenizer_init=True."""
        if self._tokenizer is None:
            raise ValueError("this engine has no tokenizer (skip_tokenizer_init=True); give token ids as prompts.")
        return self._tokenizer

    @property
    def stats(self) -> EngineStats:
        """A copy of the counters; take one before and one after to get those of a run."""
        stats = self._core.stats
        return replace(
            stats,
            num_accepted_tokens_per_pos=list(stats.num_accepted_tokens_per_pos),
            num_finished=dict(stats.num_finished),
        )

    def get_metrics(self) -> list[Metric]:
        """The counters as vLLM's `Counter` and `Vector` objects, under its names."""
        return as_metrics(self._core.stats)

    def check_integrity(self) -> None:
        """Slots, blocks, reference counts and lengths add up, and nothing is held when idle; else `IntegrityError`.

        Steps in flight whose requests have all ended are taken back first.
        """
        while not self.has_unfinished_requests() and self._core.has_work:
            self._core.step()
        self._core.check_integrity()

    # --- inside -----------------------------------------------------------------------------------------------------
    def _step_groups(self) -> list[_Group]:
        changed = {id(group): group for r in self._core.step() if (group := self._group_of_request.get(r))}
        for group in changed.values():
            if group.finished:
                self._forget(group)
        return list(changed.values())

    def _forget(self, group: _Group) -> None:
        del self._groups[group.request_id]
        for request in group.requests:
            del self._group_of_request[request]

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
        model, max_model_len = self.config.model, self.config.max_model_len
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
        model = self.config.model
        room = self.config.max_model_len - len(token_ids)
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
                seed=params.seed if params.seed is not None else _derived_seed(self.config.options.seed, arrival),
                sample_index=index,
                min_tokens=params.min_tokens,
                stop_ids=tuple(dict.fromkeys(eos_ids + stop_ids)),
                logprobs=params.logprobs,
            ),
            stop_checker=StopChecker(
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

    def _output(self, group: _Group) -> RequestOutput:
        return RequestOutput(
            request_id=group.request_id,
            prompt=group.prompt,
            prompt_token_ids=list(group.requests[0].prompt_token_ids),
            outputs=[self._completion(index, request, group.params) for index, request in enumerate(group.requests)],
            finished=group.finished,
            error=next((request.error for request in group.requests if request.error is not None), None),
        )

    def _completion(self, index: int, request: Request, params: SamplingParams) -> CompletionOutput:
        finish = request.finish
        return CompletionOutput(
            index=index,
            text=request.stop_checker.text,
            token_ids=list(request.output_token_ids),
            finish_reason=finish.reason if finish else None,
            stop_reason=finish.stop_reason if finish else None,
            logprobs=None if params.logprobs is None else self._logprobs(request),
            stats=RequestStats(
                num_cached_tokens=request.num_cached_tokens,
                num_preemptions=request.num_preemptions,
                num_drafts=request.num_drafts,
                num_drafted_tokens=request.num_drafted_tokens,
                num_accepted_tokens=request.num_accepted_tokens,
                num_prefills=request.num_prefills,
                num_decode_steps=request.num_decode_steps,
            ),
        )

    def _logprobs(self, request: Request) -> list[dict[int, Logprob]]:
        def decoded(token_id: int) -> str | None:
            return self._tokenizer.decode([token_id], skip_special_tokens=False) if self._tokenizer else None

        chosen = iter(request.output_token_ids)
        positions = []
        for part in request.logprobs:
            for top_ids, top_logprobs, own, rank in zip(
                part.top_ids.tolist(), part.top_logprobs.tolist(), part.logprobs.tolist(), part.ranks.tolist(), strict=True
            ):
                entry = {
                    token: Logprob(value, place, decoded(token))
                    for place, (token, value) in enumerate(zip(top_ids, top_logprobs, strict=True), start=1)
                }
                token = next(chosen)
                entry.setdefault(token, Logprob(own, rank, decoded(token)))
                positions.append(entry)
        return positions


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, (str, Mapping)) or (len(prompts) and isinstance(prompts[0], Integral)):
        return [prompts]  # type: ignore[list-item]
    if not len(prompts):
        raise InvalidRequestError("the list of prompts is empty; give at least one.")
    return list(prompts)  # type: ignore[arg-type]


def _params_for(batch: list[Prompt], given: SamplingParams | Sequence[SamplingParams] | None) -> list[SamplingParams]:
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * len(batch)
    if len(given) != len(batch):
        raise ValueError(f"there are {len(batch)} prompts and {len(given)} sampling parameters; give one, or one for each.")
    return list(given)


def _derived_seed(engine_seed: int, arrival: int) -> int:
    digest = blake2b(f"{engine_seed}/{arrival}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _failed_output(request_id: str, prompt: Prompt, error: RequestError) -> RequestOutput:
    return RequestOutput(
        request_id=request_id,
        prompt=prompt if isinstance(prompt, str) else None,
        prompt_token_ids=[],
        outputs=[],
        finished=True,
        error=error,
    )
