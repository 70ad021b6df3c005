"""The loop: plan, submit, wait, commit. Synchronous and asynchronous scheduling differ in one number (law 1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from engine.config import ResolvedConfig
from engine.errors import EngineDeadError, IntegrityError, StalledEngineError
from engine.executor.base import Executor
from engine.interrupts import Interrupts
from engine.request import Request
from engine.scheduler import Scheduler
from engine.step import StepPlan, StepResult

__all__ = ["EngineCore"]


class EngineCore:
    def __init__(self, config: ResolvedConfig, executor: Executor, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.stats = scheduler.stats
        self.executor = executor
        self.max_steps_in_flight = 2 if config.async_scheduling else 1
        self._in_flight: deque[tuple[StepPlan, Future[StepResult]]] = deque()
        self._death: EngineDeadError | None = None
        self.interrupts = Interrupts()

    def step(self) -> list[Request]:
        """Fill the pipeline, wait for the oldest step, commit it; returns the requests that changed.

        Raises `EngineDeadError` if the device side is gone, `StalledEngineError` if nothing can go on.
        """
        if self._death is not None:
            raise EngineDeadError(str(self._death)) from self._death
        self.interrupts.raise_pending()
        with self._unbroken():
            self._fill()
        if not self._in_flight:
            if self.scheduler.has_unfinished:
                raise StalledEngineError(
                    f"{len(self.scheduler.running)} running and {len(self.scheduler.waiting)} waiting requests, but nothing "
                    "can be planned and nothing is in flight"
                )
            return []
        plan, future = self._in_flight[0]
        try:
            result = future.result()  # an interrupt that comes here loses nothing: the step is still in flight
        except EngineDeadError as error:
            self._death = error
            raise
        with self._unbroken():
            self._in_flight.popleft()
            return self.scheduler.commit(plan, result)

    @contextmanager
    def _unbroken(self) -> Iterator[None]:
        """Whatever breaks off planning or committing leaves books that cannot be trusted, so the engine does not go on."""
        try:
            with self.interrupts.held_off():
                yield
        except BaseException as error:
            cause = f"{type(error).__name__}: {error}".removesuffix(": ")
            self._death = EngineDeadError(f"a step was broken off by {cause}; create a new LLM")
            raise

    def _fill(self) -> None:
        while len(self._in_flight) < self.max_steps_in_flight:
            plan = self.scheduler.schedule()
            if plan is None:
                return
            self.stats.num_overlapped_steps += bool(self._in_flight)
            self._in_flight.append((plan, self.executor.submit(plan)))

    @property
    def has_work(self) -> bool:
        """Unfinished requests, or steps in flight whose result has not been taken back."""
        return bool(self._in_flight) or self.scheduler.has_unfinished

    def check_integrity(self) -> None:
        self.scheduler.check_integrity()
        if not self.has_work and self.scheduler.kv_cache.pool.num_free != self.scheduler.kv_cache.pool.num_blocks:
            raise IntegrityError("the engine is idle, but blocks are held")
