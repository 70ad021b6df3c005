"""The boundary between the host and the device side."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future
from typing import ClassVar

from engine.config import ResolvedConfig
from engine.step import StepPlan, StepResult

__all__ = ["Executor"]


class Executor(ABC):
    """Runs plans in the order in which they are submitted."""

    supports_async_scheduling: ClassVar[bool] = False
    """Whether `submit` may be called while a step is in flight."""

    @abstractmethod
    def __init__(self, config: ResolvedConfig) -> None:
        """Build the runner; raises what building it raised, wherever it lives."""

    @abstractmethod
    def submit(self, plan: StepPlan) -> Future[StepResult]:
        """Never blocks on the device. The future raises `EngineDeadError` once the device side is gone."""

    @abstractmethod
    def shutdown(self) -> None:
        """Wait for the steps in flight and free everything. Calling it again does nothing."""
