"""The scheduler without a model: requests, configurations, and a device that is a page of plain Python.

The device's "model" is `true_token`, a function of the tokens before it. Its KV cache holds, at every position, a digest of the
prefix that was written there; a step that reads a position whose digest is not that of its own prefix is an error, so a block
that was reused, shared or published wrongly shows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine import EngineConfig, ResolvedConfig, SamplingParams
from engine.checkpoint import ModelConfig
from engine.core import EngineCore
from engine.detokenizer import NoDetokenizer
from engine.executor.base import Executor
from engine.parts import Parts, create_core
from engine.request import Request
from engine.step import NewSlot, PlanRow, SlotSampling, StepPlan, StepResult
from engine.stop import StopChecker

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
VOCAB = 50
MODEL = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=VOCAB,
    hidden_size=8,
    intermediate_size=8,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    max_position_embeddings=256,
    tie_word_embeddings=True,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    rope_scaling=None,
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    bos_token_id=None,
    eos_token_ids=(),
)


def make_config(*, depth: int = 0, **options: Any) -> ResolvedConfig:
    """depth: speculative tokens, of the method `ngram_gpu` (never built here)."""
    if depth:
        options["speculative_config"] = {"method": "ngram_gpu", "num_speculative_tokens": depth}
    small = {"block_size": 4, "num_kv_blocks": 64, "max_num_seqs": 4, "max_num_batched_tokens": 256, "max_model_len": 128}
    return EngineConfig(model="none", **small | options).resolve(MODEL)


def make_request(
    request_id: str = "r",
    prompt: Sequence[int] = (1, 2, 3),
    *,
    max_new_tokens: int = 8,
    stop_ids: Sequence[int] = (),
    logprobs: int | None = None,
    arrival: int = 0,
) -> Request:
    return Request(
        request_id=request_id,
        arrival=arrival,
        prompt_token_ids=list(prompt),
        token_limit=len(prompt) + max_new_tokens,
        sampling=SlotSampling(
            temperature=0.0,
            top_k=0,
            top_p=1.0,
            min_p=0.0,
            seed=0,
            sample_index=0,
            min_tokens=0,
            stop_ids=tuple(stop_ids),
            logprobs=logprobs,
        ),
        stop_checker=StopChecker(
            NoDetokenizer(),
            eos_token_ids=(),
            stop_token_ids=tuple(stop_ids),
            stop=(),
            include_stop_str=False,
            min_tokens=0,
            max_new_tokens=max_new_tokens,
        ),
    )


def true_token(tokens: Sequence[int]) -> int:
    """What the "model" says behind `tokens`; looks at all of them."""
    state = 7
    for token in tokens:
        state = (state * 31 + token + 1) % 100003
    return state % VOCAB


def true_output(request: Request) -> list[int]:
    """The request's new tokens as a plain loop makes them."""
    tokens = list(request.prompt_token_ids)
    while len(tokens) < request.token_limit:
        tokens.append(true_token(tokens))
        if tokens[-1] in request.sampling.stop_ids:
            break
    return tokens[request.num_prompt_tokens :]


@dataclass
class _Stay:
    generation: int
    tokens: list[int]
    limit: int
    num_computed: int
    blocks: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)


class FakeDevice(Executor):
    """Runs plans the moment they are submitted; `accept` says how many drafts are right in each round, in turn."""

    supports_async_scheduling = True

    def __init__(self, config: ResolvedConfig, accept: Sequence[int] = (99,), nan_behind: Sequence[Sequence[int]] = ()) -> None:
        self.config = config
        self.depth = config.num_speculative_tokens
        self.block_size = config.options.block_size
        self.accept = list(accept)
        self.nan_behind = {tuple(tokens) for tokens in nan_behind}
        self.plans: list[StepPlan] = []
        self.results: list[StepResult] = []
        self._stays: dict[int, _Stay] = {}
        self._kv: dict[tuple[int, int], tuple[int, ...]] = {}  # (block, offset) -> the prefix that was written there
        self._num_rounds = 0

    def submit(self, plan: StepPlan) -> Future[StepResult]:
        self._check_plan(plan)
        self.plans.append(plan)
        for new in plan.new_slots:
            self._admit(new)
        rows = [self._run(row) for row in plan.rows]
        tokens = np.full((len(rows), self.depth + 1), -1, dtype=np.int32)
        for index, (emitted, *_) in enumerate(rows):
            tokens[index, : len(emitted)] = emitted
        result = StepResult(
            step_id=plan.step_id,
            token_ids=tokens,
            num_emitted=np.array([len(emitted) for emitted, *_ in rows], dtype=np.int32),
            num_drafted=np.array([drafted for _, drafted, _, _ in rows], dtype=np.int32),
            num_computed=np.array([computed for _, _, computed, _ in rows], dtype=np.int32),
            nan_logits=np.array([nan for *_, nan in rows], dtype=np.bool_),
        )
        self.results.append(result)
        future: Future[StepResult] = Future()
        future.set_result(result)
        return future

    def shutdown(self) -> None:
        """Nothing to free."""

    def _check_plan(self, plan: StepPlan) -> None:
        options = self.config.options
        assert plan.rows, "an empty step"
        assert sum(row.num_tokens for row in plan.rows) <= options.max_num_batched_tokens
        assert len({row.slot for row in plan.rows}) == len(plan.rows) <= options.max_num_seqs
        assert all(row.num_tokens >= 1 for row in plan.rows)
        assert all(row.num_tokens <= 1 + self.depth for row in plan.rows if row.is_decode)

    def _admit(self, new: NewSlot) -> None:
        self._stays[new.slot] = _Stay(new.generation, new.token_ids.tolist(), new.token_limit, new.num_cached_tokens)

    def _run(self, row: PlanRow) -> tuple[list[int], int, int, bool]:
        """(emitted, drafted, computed, nan)"""
        stay = self._stays[row.slot]
        assert stay.generation == row.generation, "a step for a stay that is over"
        stay.blocks.extend(row.new_block_ids)
        if not row.is_decode:
            self._compute(stay, stay.tokens, row.num_tokens)
            if not row.wants_token:
                stay.num_computed += row.num_tokens
                return [], 0, row.num_tokens, False
            assert stay.num_computed + row.num_tokens == len(stay.tokens), "a prefill ends at the last known token"
            drafts: list[int] = []
            computed = row.num_tokens
        else:
            assert stay.num_computed == len(stay.tokens) - 1, "a decode row begins with the last known token"
            computed = min(1 + len(stay.drafts), row.num_tokens, stay.limit - len(stay.tokens))
            if computed == 0:
                return [], 0, 0, False
            drafts = stay.drafts[: computed - 1]
            self._compute(stay, stay.tokens + drafts, computed)
        emitted, nan = self._verify(stay.tokens, drafts)
        stay.tokens = stay.tokens + emitted
        stay.num_computed = len(stay.tokens) - 1
        assert len(stay.tokens) <= stay.limit
        stay.drafts = self._draft(stay, row.num_next_drafts) if emitted else []
        return emitted, len(drafts), computed, nan

    def _compute(self, stay: _Stay, tokens: Sequence[int], count: int) -> None:
        end = stay.num_computed + count
        assert end <= stay.limit - 1, "the last token of a request never goes through the model"
        for position in range(stay.num_computed, end):
            self._kv[self._place(stay, position)] = tuple(tokens[: position + 1])
        for position in range(end):
            assert self._kv.get(self._place(stay, position)) == tuple(tokens[: position + 1]), "someone else's KV entries"

    def _place(self, stay: _Stay, position: int) -> tuple[int, int]:
        assert position // self.block_size < len(stay.blocks), f"position {position} has no block"
        return stay.blocks[position // self.block_size], position % self.block_size

    def _verify(self, tokens: Sequence[int], drafts: Sequence[int]) -> tuple[list[int], bool]:
        emitted: list[int] = []
        for draft in [*drafts, -1]:
            prefix = (*tokens, *emitted)
            if prefix in self.nan_behind:
                return emitted, True
            emitted.append(true_token(prefix))
            if emitted[-1] != draft:
                break
        return emitted, False

    def _draft(self, stay: _Stay, wanted: int) -> list[int]:
        right = self.accept[self._num_rounds % len(self.accept)]
        self._num_rounds += 1
        drafts: list[int] = []
        for index in range(min(wanted, stay.limit - len(stay.tokens) - 1)):
            truth = true_token([*stay.tokens, *drafts])
            drafts.append(truth if index < right else (truth + 1) % VOCAB)
        return drafts


@dataclass
class Driver:
    """An `EngineCore` on a `FakeDevice`, with its laws checked after every step."""

    core: EngineCore
    device: FakeDevice
    _homes: dict[Request, tuple[tuple[int, int], int]] = field(default_factory=dict)  # (slot, generation), preemptions so far
    _stays: set[tuple[int, int]] = field(default_factory=set)

    @classmethod
    def make(
        cls,
        *,
        asynchronous: bool = True,
        accept: Sequence[int] = (99,),
        nan_behind: Sequence[Sequence[int]] = (),
        depth: int = 0,
        **options: Any,
    ) -> Driver:
        config = make_config(depth=depth, async_scheduling=asynchronous, **options)
        device = FakeDevice(config, accept, nan_behind)
        return cls(create_core(config, device, Parts()), device)

    @property
    def scheduler(self) -> Any:
        return self.core.scheduler

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add(request)

    def step(self) -> list[Request]:
        changed = self.core.step()
        self.core.check_integrity()
        for request in self.scheduler.running:
            home = ((request.slot, request.generation), request.num_preemptions)
            old = self._homes.get(request)
            if old == home:
                continue
            assert old is None or old[1] < home[1], "a request keeps its slot while it runs"
            assert home[0] not in self._stays, "a stay in a slot has its own generation"
            self._stays.add(home[0])
            self._homes[request] = home
        arrivals = [r.arrival for r in [*self.scheduler.running, *self.scheduler.waiting]]
        assert arrivals == sorted(arrivals), "first come, first served"
        return changed

    def run(self, step_limit: int = 2000) -> None:
        for _ in range(step_limit):
            if not self.core.has_work:
                break
            self.step()
        else:
            raise AssertionError(f"{step_limit} steps, and not done")
        self.core.check_integrity()
        assert self.scheduler.slots.num_free == self.scheduler.slots.num_slots

    def rows_of(self, slot: int, generation: int) -> list[PlanRow]:
        return [row for plan in self.device.plans for row in plan.rows if (row.slot, row.generation) == (slot, generation)]
