"""The runner in a worker process. Plans and results cross one pipe; each side notices the death of the other."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import threading
from collections import deque
from concurrent.futures import Future
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler

from engine.config import ResolvedConfig
from engine.errors import EngineDeadError
from engine.executor.base import Executor
from engine.step import StepPlan, StepResult

__all__ = ["MpExecutor"]

SHUTDOWN_SECONDS = 10.0


class MpExecutor(Executor):
    supports_async_scheduling = True

    def __init__(self, config: ResolvedConfig) -> None:
        # A fork server with the runner's modules loaded starts a worker in milliseconds, and it has no threads when it forks.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["engine.parts"])
        self._pipe, worker_end = context.Pipe()
        self._process = context.Process(target=_worker, args=(config, worker_end), name="lockstep-worker", daemon=True)
        self._process.start()
        worker_end.close()  # else the end of the worker would not close the pipe
        self._pending: deque[Future[StepResult]] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self._wait_until_ready()
        self._receiver = threading.Thread(target=self._receive, name="lockstep-receiver", daemon=True)
        self._receiver.start()

    @property
    def worker_pid(self) -> int | None:
        return self._process.pid

    def _wait_until_ready(self) -> None:
        try:
            failure = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise EngineDeadError(
                f"{self._death()} while it was starting. In a script, what builds the LLM must stand under "
                "`if __name__ == '__main__':`, since the worker imports the script"
            ) from error
        if failure is not None:
            self._process.join(SHUTDOWN_SECONDS)
            raise failure

    def submit(self, plan: StepPlan) -> Future[StepResult]:
        message = ForkingPickler.dumps(plan)  # first, since a plan that cannot travel must not wait for a result
        future: Future[StepResult] = Future()
        with self._lock:
            self._pending.append(future)
        try:
            self._pipe.send_bytes(message)
        except OSError:
            self._fail_pending()
        return future

    def _receive(self) -> None:
        """Results come in the order of the plans; the end of the pipe fails whatever is still open."""
        while True:
            try:
                result = self._pipe.recv()
            except Exception:  # noqa: BLE001 - the end of the pipe, or a result that cannot be read: nothing can follow
                break
            with self._lock:
                future = self._pending.popleft()
            if isinstance(result, StepResult):
                future.set_result(result)
            else:
                future.set_exception(result)
        self._fail_pending()

    def _fail_pending(self) -> None:
        with self._lock:
            orphans = list(self._pending)
            self._pending.clear()
        for future in orphans:
            future.set_exception(self._death())

    def _death(self) -> EngineDeadError:
        self._process.join(SHUTDOWN_SECONDS)
        code = self._process.exitcode
        if self._closed:
            return EngineDeadError("this engine was shut down")
        how = f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        return EngineDeadError(f"the worker process (pid {self._process.pid}) died: {how}")

    def shutdown(self) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):  # it may be gone already
            self._pipe.send(None)
        self._process.join(SHUTDOWN_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._receiver.join(SHUTDOWN_SECONDS)
        self._pipe.close()


def _worker(config: ResolvedConfig, pipe: Connection) -> None:
    """Main function of the worker: build the runner, say so, then a result for each plan until None or the end of the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the host decides when to stop
    from engine.parts import create_runner

    try:
        runner = create_runner(config)
    except Exception as error:  # noqa: BLE001 - whatever it is, the host raises it
        pipe.send(_picklable(error))
        return
    pipe.send(None)
    while True:
        try:
            plan: StepPlan | None = pipe.recv()
        except (EOFError, OSError):
            return  # the host is gone
        if plan is None:
            return
        try:
            result = runner.execute(plan)
        except Exception as error:  # noqa: BLE001 - whatever it is, the host raises it
            pipe.send(EngineDeadError(f"step {plan.step_id} failed on the device: {type(error).__name__}: {error}"))
            return
        try:
            pipe.send(result)
        except OSError:
            return


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    except Exception:  # noqa: BLE001 - an error class that cannot travel still tells its name and text
        return EngineDeadError(f"building the runner failed: {type(error).__name__}: {error}")
    return error
