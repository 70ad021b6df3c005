"""A model whose next token is a hash of what it reads back through its block table. A plugin: see `PLUGINS`.

Every position has an entry in a paged cache, as in a real model: the token's id, and a digest of the entries that it saw when
it was written. The state of a position is a hash of both for all positions up to its own, so an entry that is misplaced, stale,
missing, or written behind other tokens changes what comes next. A step takes microseconds, and `Truth` is the closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import cast

import numpy as np
import torch

from engine.config import ResolvedConfig
from engine.executor.base import Executor
from engine.model import Batch, Decoder, Hidden
from engine.parts import Parts, create_runner
from engine.runner import Runner
from engine.step import StepPlan, StepResult
from harness.toy_model import EOS_ID, TOY_VOCAB_SIZE
from kernels.interface import Kernels

__all__ = ["PLUGINS", "HashModel", "SimulatedExecutor"]

PLUGINS = (f"{__name__}:hash_model",)
NUM_STATES = 509
MAX_LENGTH = 4096
MASK = 2**64 - 1


def _odd_numbers(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**63, count, dtype=np.uint64) * 2 + 1


TOKEN_WEIGHTS = _odd_numbers(1, TOY_VOCAB_SIZE)
ID_WEIGHTS, DIGEST_WEIGHTS = _odd_numbers(2, MAX_LENGTH), _odd_numbers(3, MAX_LENGTH)


def _logit_table() -> torch.Tensor:
    """[NUM_STATES, V] f32: the first states are NaN, those after them end the text, some have two equal maxima."""
    logits = np.random.default_rng(4).normal(0, 2, (NUM_STATES, TOY_VOCAB_SIZE)).astype(np.float32)
    logits[0] = np.nan
    logits[1:8, EOS_ID] = 12.0
    for row in logits[8:60]:
        best = row.argsort()[-2:]
        row[best] = row.max()
    return torch.from_numpy(logits)


LOGITS = _logit_table()


class HashModel:
    """What the runner and the drafters ask of a `Decoder`."""

    def __init__(self, config: ResolvedConfig, kernels: Kernels) -> None:
        self.config = config.model
        self.kernels = kernels
        self.block_size = config.options.block_size
        entries = config.num_kv_blocks * self.block_size
        self.ids = np.zeros(entries, dtype=np.int64)
        self.digests = np.zeros(entries, dtype=np.uint64)
        self._positions = np.arange(-(-config.max_model_len // self.block_size) * self.block_size)

    def forward(self, batch: Batch, layer_ids: Sequence[int] = ()) -> Hidden:
        positions, slots = batch.positions.numpy(), batch.slot_mapping.numpy()
        places = self._positions[: int(positions.max()) + 1]
        blocks = batch.block_tables.numpy()[batch.rows.numpy()[:, None], places // self.block_size]
        entries = blocks * self.block_size + places % self.block_size
        seen = places <= positions[:, None]
        self.ids[slots] = batch.token_ids.numpy()
        parts = TOKEN_WEIGHTS[self.ids[entries]] * ID_WEIGHTS[places]
        self.digests[slots] = np.where(seen, parts, 0).sum(axis=1, dtype=np.uint64)
        states = np.where(seen, self.digests[entries] * DIGEST_WEIGHTS[places], 0).sum(axis=1, dtype=np.uint64)
        normed = ((states >> np.uint64(32)) % np.uint64(NUM_STATES)).astype(np.float32)
        return Hidden(torch.from_numpy(normed[:, None]), ())

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return LOGITS[hidden[:, 0].long()]


class _Pending(Future[StepResult]):
    """A step that runs when its result is asked for, or before, as the executor likes."""

    def __init__(self, executor: SimulatedExecutor) -> None:
        super().__init__()
        self._executor = executor

    def result(self, timeout: float | None = None) -> StepResult:
        while not self.done():
            self._executor.run_oldest()
        return super().result(timeout)


class SimulatedExecutor(Executor):
    """The device as a queue without a thread; whether it has caught up with the host is drawn for each step."""

    supports_async_scheduling = True

    def __init__(self, config: ResolvedConfig) -> None:
        self._runner: Runner = create_runner(config)
        # Fixed by the engine's seed.
        self._draws = np.random.default_rng(config.options.seed).random(64) < 0.5
        self._queue: list[tuple[StepPlan, Future[StepResult]]] = []

    def submit(self, plan: StepPlan) -> Future[StepResult]:
        future = _Pending(self)
        self._queue.append((plan, future))
        while self._queue and self._draws[plan.step_id % len(self._draws)]:
            self.run_oldest()
        return future

    def run_oldest(self) -> None:
        plan, future = self._queue.pop(0)
        try:
            future.set_result(self._runner.execute(plan))
        except Exception as error:  # noqa: BLE001 - as in every executor, the host raises it
            future.set_exception(error)

    def shutdown(self) -> None:
        """Nothing to free."""


def hash_model(parts: Parts) -> Parts:
    def model(config: ResolvedConfig, kernels: Kernels) -> Decoder:
        return cast(Decoder, HashModel(config, kernels))

    return replace(parts, model=model, executor=lambda backend: SimulatedExecutor)
