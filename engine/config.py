"""The configuration of one engine: options as the user gives them, and the same with every "auto" resolved."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from engine.async_scheduling import AsyncDecision, AsyncFacts, resolve_async_scheduling
from engine.checkpoint import ModelConfig
from engine.checkpoint.quantization import METHODS
from engine.drafters.registry import canonical_method, custom_drafter_class, drafter_class
from engine.executor.registry import executor_class, executor_info
from engine.options import check_options, is_int, named_options

if TYPE_CHECKING:
    from engine.drafters.base import Drafter
    from engine.executor.base import Executor

__all__ = ["EngineConfig", "ResolvedConfig", "SpeculativeConfig"]

DEFAULT_KV_BYTES = 1 << 30
MAX_SPECULATIVE_TOKENS = 16
DecideAsync: TypeAlias = Callable[[bool | None, AsyncFacts], AsyncDecision]
REJECTION_SAMPLE_METHODS = ("coupled", "standard", "synthetic")


@dataclass(frozen=True)
class SpeculativeConfig:
    """`speculative_config={...}` with vLLM's names; what the method itself understands is in `options`."""

    method: str
    num_speculative_tokens: int
    disable_padded_drafter_batch: bool = False
    rejection_sample_method: str = "coupled"
    draft_sample_method: str = "greedy"
    synthetic_acceptance_rates: Sequence[float] | None = None
    """For each place the rate at which it and all before it are accepted."""
    synthetic_acceptance_length: float | None = None
    num_speculative_tokens_per_batch_size: Sequence[Sequence[int]] | None = None
    """(first, last, drafts) for ranges of running requests, both ends included; elsewhere `num_speculative_tokens`."""
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, given: object) -> SpeculativeConfig:
        """Raises `ValueError` for a bad value, `UnknownOptionError` for a key that neither we nor the method know."""
        if not isinstance(given, Mapping) or not isinstance(given.get("method"), str):
            raise ValueError("speculative_config needs a method, such as {'method': 'ngram_gpu', 'num_speculative_tokens': 3}.")
        own = {f.name for f in dataclasses.fields(cls)} - {"options"}
        options = {k: v for k, v in given.items() if k not in own}
        if "tensor_parallel_size" in options:
            raise ValueError("speculative_config has no tensor_parallel_size; write draft_tensor_parallel_size.")
        config = cls(
            **{k: v for k, v in given.items() if k in own}
            | {
                "method": canonical_method(given["method"]),
                "num_speculative_tokens": given.get("num_speculative_tokens", 0),
            },
            options=options,
        )
        known = set(config.drafter_class.option_names) | ({"model"} if config.method == "custom_class" else set())
        check_options(f"speculative_config for {config.method!r}", options, known | own)
        config._check()
        return config

    @property
    def drafter_class(self) -> type[Drafter]:
        """`ValueError` for a method that is not built here, or a user's class that cannot be had."""
        if self.method == "custom_class":
            return custom_drafter_class(self.options.get("model"))
        return drafter_class(self.method)

    def _check(self) -> None:
        if not is_int(self.num_speculative_tokens) or not 1 <= self.num_speculative_tokens <= MAX_SPECULATIVE_TOKENS:
            raise ValueError(
                f"num_speculative_tokens must be 1 to {MAX_SPECULATIVE_TOKENS}, got {self.num_speculative_tokens!r}."
            )
        for name, known in (
            ("rejection_sample_method", REJECTION_SAMPLE_METHODS),
            ("draft_sample_method", ("greedy", "probabilistic")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}.")
        if self.draft_sample_method == "probabilistic" and not self.drafter_class.has_distribution:
            raise ValueError(f"{self.method!r} proposes tokens without probabilities; use draft_sample_method='greedy'.")
        given = [self.synthetic_acceptance_rates, self.synthetic_acceptance_length]
        num_given = sum(value is not None for value in given)
        if num_given != (self.rejection_sample_method == "synthetic"):
            raise ValueError(
                "rejection_sample_method='synthetic' needs either synthetic_acceptance_rates or synthetic_acceptance_length, "
                f"and the other methods neither; got {given[0]!r} and {given[1]!r} with {self.rejection_sample_method!r}."
            )
        if num_given:
            self._check_synthetic()
        self._check_schedule()

    def _check_synthetic(self) -> None:
        k, rates, length = self.num_speculative_tokens, self.synthetic_acceptance_rates, self.synthetic_acceptance_length
        if rates is not None:
            numbers = all(_is_number(rate) and 0 <= rate <= 1 for rate in rates)
            if not numbers or len(rates) != k or any(a < b for a, b in pairwise(rates)):
                raise ValueError(f"synthetic_acceptance_rates must be {k} numbers from 0 to 1 that do not grow, got {rates!r}.")
        elif not _is_number(length) or not 1 <= float(length or 0) <= k + 1:
            raise ValueError(f"synthetic_acceptance_length must be a number from 1 to {k + 1}, got {length!r}.")

    def _check_schedule(self) -> None:
        for entry in self.num_speculative_tokens_per_batch_size or ():
            whole = len(entry) == 3 and all(is_int(value) for value in entry)
            if not whole or not 1 <= entry[0] <= entry[1] or not 0 <= entry[2] <= self.num_speculative_tokens:
                raise ValueError(
                    "num_speculative_tokens_per_batch_size is a list of (first, last, drafts) with 1 <= first <= last and "
                    f"0 <= drafts <= num_speculative_tokens ({self.num_speculative_tokens}), got {entry!r}."
                )

    @property
    def synthetic_rates(self) -> tuple[float, ...]:
        """For each place the rate at which it and all before it are accepted; a length is met with the least variance."""
        if self.synthetic_acceptance_rates is not None:
            return tuple(map(float, self.synthetic_acceptance_rates))
        accepted = float(self.synthetic_acceptance_length or 1) - 1
        return tuple(min(1.0, max(0.0, accepted - place)) for place in range(self.num_speculative_tokens))

    def drafts_for(self, batch_size: int) -> int:
        """How many tokens to propose for each of `batch_size` running requests."""
        for first, last, drafts in self.num_speculative_tokens_per_batch_size or ():
            if first <= batch_size <= last:
                return drafts
        return self.num_speculative_tokens


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@named_options
@dataclass(frozen=True)
class EngineConfig:
    """The options of `LLM`, with vLLM's names. None means "auto"; `resolve` fills it in."""

    model: str
    tokenizer: str | None = None
    skip_tokenizer_init: bool = False
    """True: prompts are ids, no text and no stop strings."""
    runner: Literal["generate", "pooling"] = "generate"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Storage of the weights; arithmetic is fp32. "auto": as the checkpoint has them."""
    quantization: Literal["int8", "fp8"] | None = None
    """What the layers' matrices are rounded to, with a scale for each output; None: as the checkpoint has them."""
    seed: int = 0
    max_model_len: int | None = None
    """Prompt and completion together; None: what the checkpoint was made for."""
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    num_kv_blocks: int | None = None
    """KV blocks in the pool; None: room for `max_num_seqs` full sequences, in at most 1 GiB."""
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    async_scheduling: bool | None = None
    """None: on unless a rule in `engine/async_scheduling.py` says otherwise."""
    distributed_executor_backend: str | type[Executor] = "uni"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    enable_dbo: bool = False
    all2all_backend: str | None = None
    platform: Literal["cpu", "cuda", "rocm"] = "cpu"
    speculative_config: Mapping[str, Any] | None = None
    kernel_backend: str = "auto"
    num_threads: int | None = None
    """Threads of the device side; None: the cores that this process may use."""
    plugins: str | Sequence[str] = ()
    """Modules to import in every process of the engine, for instance to register drafters; see `engine/parts.py`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "plugins", (self.plugins,) if isinstance(self.plugins, str) else tuple(self.plugins))
        if not is_int(self.seed):
            raise ValueError(f"seed must be an integer, got {self.seed!r}.")
        for name in ("skip_tokenizer_init", "enable_prefix_caching", "enable_chunked_prefill", "enable_dbo"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}.")
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size"):
            self._check_positive(name)
        for name in ("max_model_len", "num_kv_blocks", "num_threads"):
            if getattr(self, name) is not None:
                self._check_positive(name)
        choices = {
            "runner": ("generate", "pooling"),
            "dtype": ("auto", "float32", "bfloat16"),
            "platform": ("cpu", "cuda", "rocm"),
            "quantization": (None, *METHODS),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(map(str, known))}, got {getattr(self, name)!r}.")
        if self.async_scheduling is not None and not isinstance(self.async_scheduling, bool):
            raise ValueError(f"async_scheduling must be None, True or False, got {self.async_scheduling!r}.")

    def _check_positive(self, name: str) -> None:
        value = getattr(self, name)
        if not is_int(value) or value < 1:
            raise ValueError(f"{name} must be an integer of at least 1, got {value!r}.")

    def async_facts(self) -> AsyncFacts:
        """What the rules of asynchronous scheduling look at; needs no model."""
        executor = executor_info(self.distributed_executor_backend)
        speculative = self.speculative_config or {}
        return AsyncFacts(
            method=speculative.get("method"),
            executor=executor.name,
            executor_supports_async=executor.supports_async_scheduling,
            disable_padded_drafter_batch=bool(speculative.get("disable_padded_drafter_batch", False)),
            pipeline_parallel_size=self.pipeline_parallel_size,
            is_pooling=self.runner == "pooling",
            is_rocm=self.platform == "rocm",
            all2all_backend=self.all2all_backend,
            enable_dbo=self.enable_dbo,
        )

    def resolve_async_scheduling(self, decide: DecideAsync | None = None) -> AsyncDecision:
        """By the rules of `engine/async_scheduling.py`, unless a plugin brings another judge."""
        return (decide or resolve_async_scheduling)(self.async_scheduling, self.async_facts())

    def resolve(self, model: ModelConfig, decide_async: DecideAsync | None = None) -> ResolvedConfig:
        """Fill in every "auto" for `model`. `ValueError` for what cannot work or is not built."""
        speculative = SpeculativeConfig.from_dict(self.speculative_config) if self.speculative_config is not None else None
        decision = self.resolve_async_scheduling(decide_async)
        self._check_built()
        if speculative is not None:  # its constructor checks the method's own options
            speculative.drafter_class(speculative.num_speculative_tokens, model.vocab_size, speculative.options)
        max_model_len = self.max_model_len or model.max_position_embeddings
        if max_model_len > model.max_position_embeddings:
            raise ValueError(
                f"max_model_len={max_model_len} is above what the checkpoint was made for ({model.max_position_embeddings})."
            )
        if max_model_len < 2:
            raise ValueError("max_model_len must be at least 2: one prompt token and one new token.")
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < max_model_len:
            raise ValueError(
                f"enable_chunked_prefill=False needs max_num_batched_tokens >= max_model_len ({max_model_len}), "
                f"got {self.max_num_batched_tokens}."
            )
        return ResolvedConfig(
            options=self,
            model=model,
            speculative=speculative,
            async_decision=decision,
            max_model_len=max_model_len,
            num_kv_blocks=self.num_kv_blocks or self._default_kv_blocks(model, max_model_len),
            num_threads=self.num_threads or len(os.sched_getaffinity(0)),
        )

    def _check_built(self) -> None:
        if self.runner == "pooling":
            raise ValueError("runner='pooling' is not built in this version; use 'generate'.")
        if self.platform != "cpu":
            raise ValueError(f"platform={self.platform!r} is not built in this version; use 'cpu'.")
        if self.tensor_parallel_size != 1 or self.pipeline_parallel_size != 1:
            raise ValueError("tensor_parallel_size and pipeline_parallel_size above 1 are not built in this version; use 1.")
        executor_class(self.distributed_executor_backend)

    def _default_kv_blocks(self, model: ModelConfig, max_model_len: int) -> int:
        per_sequence = -(-max_model_len // self.block_size)
        bytes_per_block = self.block_size * model.num_layers * 2 * model.num_kv_heads * model.head_dim * 4
        return max(per_sequence, min(per_sequence * self.max_num_seqs, DEFAULT_KV_BYTES // bytes_per_block))


@dataclass(frozen=True)
class ResolvedConfig:
    """What an engine runs with. Picklable: the worker process gets the same object."""

    options: EngineConfig
    model: ModelConfig
    speculative: SpeculativeConfig | None
    async_decision: AsyncDecision
    max_model_len: int
    num_kv_blocks: int
    num_threads: int

    @property
    def async_scheduling(self) -> bool:
        return self.async_decision.enabled

    @property
    def num_speculative_tokens(self) -> int:
        return self.speculative.num_speculative_tokens if self.speculative else 0

    @property
    def num_lookahead_tokens(self) -> int:
        """Positions behind the known tokens at which the drafter may write entries."""
        keeps_kv = self.speculative is not None and self.speculative.drafter_class.keeps_kv
        return self.num_speculative_tokens + 1 if keeps_kv else 0

    @property
    def drops_last_cached_block(self) -> bool:
        """The drafter's entries of a cached block hold only where the token behind it is the same too."""
        return self.speculative is not None and self.speculative.drafter_class.reads_next_token

    def as_record(self) -> dict[str, Any]:
        """Plain types for a result record."""
        options = dataclasses.asdict(self.options)
        options["distributed_executor_backend"] = executor_info(self.options.distributed_executor_backend).name
        options["plugins"] = list(self.options.plugins)
        return options | {
            "async_scheduling": self.async_scheduling,
            "async_scheduling_requested": self.options.async_scheduling,
            "async_scheduling_rule": self.async_decision.rule,
            "max_model_len": self.max_model_len,
            "num_kv_blocks": self.num_kv_blocks,
            "num_threads": self.num_threads,
        }
