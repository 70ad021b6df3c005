"""The front end: prompts in, completions out. Names and meaning follow vLLM's offline API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from types import TracebackType
from typing import Any, Literal

from tqdm.auto import tqdm

from engine.admission import Admission, Prompt
from engine.checkpoint import open_checkpoint, resolve_model
from engine.config import EngineConfig, ResolvedConfig
from engine.errors import InvalidRequestError, RequestError, RequestFailedError
from engine.metrics import EngineStats, Metric, as_metrics
from engine.outputs import RequestOutput, failed_output, request_output
from engine.parts import create_core, load_parts
from engine.request import Request, RequestGroup
from engine.sampling_params import SamplingParams
from engine.tokenizer import Tokenizer, load_tokenizer

__all__ = ["LLM", "Prompt"]


class LLM:
    """An engine with its model. A context manager; `shutdown` frees it.

    Options are those of `EngineConfig`. Raises `UnknownOptionError` (a `TypeError`) for an unknown option, `ValueError` for a
    bad value, `CheckpointError` (a `ValueError`) for a model that cannot be loaded.
    """

    def __init__(self, model: str, **options: Any) -> None:
        engine_config = EngineConfig(model=str(model), **options)
        parts = load_parts(engine_config.plugins)
        path = resolve_model(engine_config.model)
        self.config: ResolvedConfig = engine_config.resolve(open_checkpoint(path).config, parts.decide_async)
        self._tokenizer = None if engine_config.skip_tokenizer_init else load_tokenizer(engine_config.tokenizer or path)
        self._admission = Admission(self.config, self._tokenizer, parts.stop_checker)
        self._executor = parts.executor(engine_config.distributed_executor_backend)(self.config)
        self._core = create_core(self.config, self._executor, parts)
        self._groups: dict[str, RequestGroup] = {}  # unfinished
        self._group_of_request: dict[Request, RequestGroup] = {}
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
                "the engine is busy with requests of add_request; finish them with step() or abort() first. "
                "(Or another thread is in generate(): an LLM is for one thread at a time.)"
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
                            outputs[index_of[group.request_id]] = request_output(group, self._tokenizer)
                            progress.update()
            self._core.interrupts.raise_pending()
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
            output if output is not None else failed_output(f"rejected-{index}", _text_of(batch[index]), errors[index])
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
        group = self._admission.make(request_id, prompt, params, arrival)
        for request in group.requests:
            self._core.scheduler.add(request)
            self._group_of_request[request] = group
        self._groups[request_id] = group
        self._core.stats.num_prompt_tokens += group.requests[0].num_prompt_tokens

    def step(self) -> list[RequestOutput]:
        """Advance by one step; returns the requests that have new tokens or ended, cumulative."""
        return [request_output(group, self._tokenizer) for group in self._step_groups()]

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now and return what it has; None for an id that is not running any more."""
        group = self._groups.get(request_id)
        if group is None:
            return None
        for request in group.requests:
            self._core.scheduler.abort(request)
        self._forget(group)
        return request_output(group, self._tokenizer)

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
    def _step_groups(self) -> list[RequestGroup]:
        changed = {id(group): group for r in self._core.step() if (group := self._group_of_request.get(r))}
        for group in changed.values():
            if group.finished:
                self._forget(group)
        return list(changed.values())

    def _forget(self, group: RequestGroup) -> None:
        del self._groups[group.request_id]
        for request in group.requests:
            del self._group_of_request[request]


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if not isinstance(prompts, (str, Mapping)) and not (hasattr(prompts, "__len__") and hasattr(prompts, "__getitem__")):
        raise InvalidRequestError(f"prompts must be a prompt or a list of prompts, got {type(prompts).__name__}.")
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


def _text_of(prompt: Prompt) -> str | None:
    return prompt if isinstance(prompt, str) else None
