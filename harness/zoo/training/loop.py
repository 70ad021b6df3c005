"""The training loop: any objective, saved every minute, resumed to the same bits after a kill at any moment."""

from __future__ import annotations

import contextlib
import io
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch

from harness.zoo.download import ZooError
from harness.zoo.training.optimizer import Optimizer, Schedule

__all__ = ["STATE_FILE", "Objective", "TrainingStopped", "train", "training_cost", "write_atomically"]

STATE_FILE = "state.pt"
BatchT = TypeVar("BatchT")


class TrainingStopped(ZooError):
    """Stopped by a signal; the state is saved and the same call goes on from it."""


class Objective(Protocol[BatchT]):
    """What is trained. Everything must be a function of the parameters and the step: the loop stores nothing else."""

    identity: str  # of the recipe; a state of another one is refused
    parameters: Mapping[str, torch.Tensor]  # float32 leaves, changed in place

    def batch(self, step: int) -> BatchT:
        """The batch of `step` (from 0), always the same."""

    def loss(self, batch: BatchT) -> tuple[torch.Tensor, int]:
        """A scalar to minimise and the number of tokens that it is of."""


class _Run(Generic[BatchT]):
    """The state of one training: parameters, optimizer, number of the next step, tokens and seconds so far."""

    def __init__(self, objective: Objective[BatchT], schedule: Schedule, directory: Path) -> None:
        self.objective = objective
        self.file = directory / STATE_FILE
        self.optimizer = Optimizer(objective.parameters, schedule)
        self.num_steps = schedule.num_steps
        self.step = 0
        self.tokens = 0
        self.seconds = 0.0  # of all sittings until the last load
        self._since = time.monotonic()

    def save(self) -> None:
        state = {
            "seconds": self.seconds + time.monotonic() - self._since,
            "identity": self.objective.identity,
            "step": self.step,
            "tokens": self.tokens,
            "parameters": {name: p.detach() for name, p in self.objective.parameters.items()},
            "optimizer": self.optimizer.state(),
        }
        stream = io.BytesIO()
        torch.save(state, stream)
        write_atomically(self.file, stream.getvalue())

    def load(self) -> None:
        try:
            state: dict[str, Any] = torch.load(self.file, weights_only=True)
        except FileNotFoundError:
            return
        if state["identity"] != self.objective.identity:
            raise ZooError(f"{self.file} is of another recipe ({state['identity']}): delete it or train elsewhere")
        with torch.no_grad():
            for name, parameter in self.objective.parameters.items():
                parameter.copy_(state["parameters"][name])
        self.optimizer.load_state(state["optimizer"])
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]
        self._since = time.monotonic()


def train(
    objective: Objective[BatchT],
    schedule: Schedule,
    directory: Path,
    *,
    first_step: int = 0,
    save_every_s: float = 60.0,
    report_every_s: float = 15.0,
    watch: Callable[[int], None] | None = None,
    watch_every: int = 0,
    stop_after: int | None = None,
) -> None:
    """Train to the end of `schedule`, from the state in `directory` if there is one. Progress goes to stderr.

    Without a state it begins at `first_step`, with the parameters as they are. `watch(step)` is called after every
    `watch_every` steps and at the end (to evaluate or to keep a snapshot; it must change nothing). `stop_after` returns once
    that many steps are done in all, saved. Raises `TrainingStopped` on SIGINT or SIGTERM
    and `ZooError` if the state cannot be written (the one before stays) or the loss is not finite.
    """
    directory.mkdir(parents=True, exist_ok=True)
    run = _Run(objective, schedule, directory)
    run.step = first_step
    run.load()
    if run.step:
        _say(f"going on from step {run.step} of {run.num_steps}")
    last = run.num_steps if stop_after is None else min(stop_after, run.num_steps)
    report = _Report(run.step, run.tokens)
    saved = time.monotonic()
    with _signals() as stopped:
        while run.step < last:
            loss, tokens = objective.loss(objective.batch(run.step))
            torch.autograd.backward(loss)
            value = loss.item()
            if not math.isfinite(value):
                raise ZooError(f"the loss of step {run.step} is {value}; the last good state is in {run.file}")
            run.optimizer.step(run.step)
            run.step += 1
            run.tokens += tokens
            report.add(value)
            if report.age() >= report_every_s or run.step == last:
                report.write(run.step, run.num_steps, run.tokens)
            if stopped:
                run.save()
                raise TrainingStopped(
                    f"stopped after step {run.step} of {run.num_steps}, saved in {directory}: run it again to go on"
                )
            if watch is not None and watch_every and (run.step % watch_every == 0 or run.step == run.num_steps):
                watch(run.step)
            if time.monotonic() - saved >= save_every_s:
                run.save()
                saved = time.monotonic()
    run.save()


def training_cost(directory: Path) -> dict[str, float]:
    """Steps, tokens and seconds that the training in `directory` has taken so far."""
    state: dict[str, Any] = torch.load(directory / STATE_FILE, weights_only=True)
    return {"steps": state["step"], "tokens": state["tokens"], "seconds": round(state["seconds"], 1)}


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, or leave it as it was and raise `ZooError` (a full disk)."""
    scratch = path.with_name(f".{path.name}.new")
    try:
        with scratch.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        scratch.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise ZooError(f"{path} cannot be written ({error.strerror or error}); what was there before is whole") from error


class _Report:
    """Mean loss and speed since the line before."""

    def __init__(self, step: int, tokens: int) -> None:
        self._first_step, self._tokens = step, tokens
        self._start = self._since = time.monotonic()
        self._losses: list[float] = []

    def add(self, loss: float) -> None:
        self._losses.append(loss)

    def age(self) -> float:
        return time.monotonic() - self._since

    def write(self, step: int, num_steps: int, tokens: int) -> None:
        now = time.monotonic()
        speed = (tokens - self._tokens) / max(now - self._since, 1e-9)
        minutes = (now - self._start) / (step - self._first_step) * (num_steps - step) / 60
        loss = sum(self._losses) / len(self._losses)
        _say(
            f"step {step}/{num_steps}  {tokens / 1e6:.2f} M tokens  loss {loss:.4f}  {speed:.0f} tok/s  {minutes:.0f} min to go"
        )
        self._losses.clear()
        self._since, self._tokens = now, tokens


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """A list that gets the first SIGINT or SIGTERM; the second one does what it would have done before."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(number: int, _frame: object) -> None:
        received.append(number)
        restore()
        _say("saving after this step; once more stops at once")

    for number in before:
        signal.signal(number, handle)
    try:
        yield received
    finally:
        restore()


def _say(message: str) -> None:
    print(f"[train] {message}", file=sys.stderr, flush=True)
