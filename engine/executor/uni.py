"""The runner in a thread of this process: the host plans and commits while the device computes in calls without the GIL."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from engine.config import ResolvedConfig
from engine.errors import EngineDeadError
from engine.executor.base import Executor
from engine.parts import create_runner
from engine.step import StepPlan, StepResult

__all__ = ["UniExecutor"]


class UniExecutor(Executor):
    supports_async_scheduling = True

    def __init__(self, config: ResolvedConfig) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lockstep-device")
        try:
            self._runner = self._thread.submit(create_runner, config).result()
        except BaseException:
            self._thread.shutdown()
            raise
        self._failure: Exception | None = None
        self._closed = False

    def submit(self, plan: StepPlan) -> Future[StepResult]:
        if self._closed:
            refused: Future[StepResult] = Future()
            refused.set_exception(EngineDeadError("this engine was shut down"))
            return refused
        return self._thread.submit(self._execute, plan)

    def _execute(self, plan: StepPlan) -> StepResult:
        # After a failed step the table no longer says what the host believes, so no later step may run on it.
        if self._failure is not None:
            raise EngineDeadError(f"an earlier step failed: {self._failure}") from self._failure
        try:
            return self._runner.execute(plan)
        except Exception as error:
            self._failure = error
            raise EngineDeadError(f"step {plan.step_id} failed on the device: {type(error).__name__}: {error}") from error

    def shutdown(self) -> None:
        self._closed = True
        self._thread.shutdown(wait=True)
        self.__dict__.pop("_runner", None)
