"""Where the runner lives: what a death or a failing step looks like from the host, and what crosses the boundary."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import LLM, CheckpointError, EngineDeadError, SamplingParams
from engine.executor.mp import MpExecutor
from engine.step import StepPlan, StepResult
from harness.scripted import METHOD, PLUGIN, script
from tests.engine.support import GREEDY

NewLLM = Callable[..., LLM]
PROMPTS = [list(b"The first"), list(b"The second one"), list(b"x")]
LONG = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True)
MP = {"distributed_executor_backend": "mp"}


def generate(llm: LLM, params: SamplingParams = GREEDY) -> list[list[int]]:
    return [o.outputs[0].token_ids for o in llm.generate(PROMPTS, params, use_tqdm=False)]


def worker_pid(llm: LLM) -> int:
    assert isinstance(llm._executor, MpExecutor)
    assert llm._executor.worker_pid is not None
    return llm._executor.worker_pid


def assert_dead(llm: LLM, message: str) -> None:
    """Every call that needs the device says why, promptly; requests are not left behind."""
    for _ in range(2):
        start = time.monotonic()
        with pytest.raises(EngineDeadError, match=message):
            generate(llm)
        assert time.monotonic() - start < 5
        assert not llm.has_unfinished_requests()
    llm.add_request("late", PROMPTS[0], GREEDY)
    with pytest.raises(EngineDeadError, match=message):
        llm.step()
    llm.abort("late")
    llm.shutdown()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


# --- the worker process --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_mp_says_what_uni_says(asynchronous: bool, new_llm: NewLLM) -> None:
    llm = new_llm(**MP, async_scheduling=asynchronous)
    assert generate(llm) == generate(new_llm())
    assert worker_pid(llm) != os.getpid()
    llm.check_integrity()


def test_a_worker_that_is_killed_while_idle(new_llm: NewLLM) -> None:
    llm = new_llm(**MP)
    generate(llm)
    pid = worker_pid(llm)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid))
    assert_dead(llm, rf"worker process \(pid {pid}\) died: killed by SIGKILL")


def test_a_worker_that_is_killed_with_steps_in_flight(new_llm: NewLLM) -> None:
    llm = new_llm(**MP)
    pid = worker_pid(llm)
    os.kill(pid, signal.SIGSTOP)  # so that the steps are certainly in flight
    llm.add_request("a", PROMPTS[0], LONG)
    llm._core._fill()
    assert len(llm._core._in_flight) == 2
    os.kill(pid, signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(EngineDeadError, match="killed by SIGKILL"):
        llm.step()
    assert time.monotonic() - start < 5
    llm.abort("a")
    assert_dead(llm, "killed by SIGKILL")


def test_two_workers_die_alone(new_llm: NewLLM) -> None:
    """The fork server that both come from does not keep the dead one's pipe open, nor does the other worker."""
    first, second = new_llm(**MP), new_llm(**MP)
    expected = generate(second)
    os.kill(worker_pid(first), signal.SIGKILL)
    assert_dead(first, "killed by SIGKILL")
    assert generate(second) == expected


def test_the_worker_ends_with_its_host(toy_model: str) -> None:
    code = (
        "import sys, time\n"
        "from engine import LLM\n"
        "if __name__ == '__main__':\n"
        f"    llm = LLM({toy_model!r}, max_model_len=64, num_threads=1, distributed_executor_backend='mp')\n"
        "    print(llm._executor.worker_pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    host = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert host.stdout is not None
    pid = int(host.stdout.readline())
    assert is_alive(pid)
    host.kill()
    host.wait()
    wait_for(lambda: not is_alive(pid))


def test_shutdown_ends_the_worker_and_may_come_twice(new_llm: NewLLM) -> None:
    llm = new_llm(**MP)
    generate(llm)
    pid = worker_pid(llm)
    llm.shutdown()
    assert not is_alive(pid)
    llm.shutdown()
    with pytest.raises(EngineDeadError, match="this engine was shut down"):
        generate(llm)


def test_uni_says_that_it_was_shut_down(new_llm: NewLLM) -> None:
    llm = new_llm()
    generate(llm)
    llm.shutdown()
    assert_dead(llm, "this engine was shut down")


def test_shutdown_with_steps_in_flight(new_llm: NewLLM) -> None:
    for options in ({}, MP):
        llm = new_llm(**options)
        llm.add_request("a", PROMPTS[0], LONG)
        llm.step()
        start = time.monotonic()
        llm.shutdown()
        assert time.monotonic() - start < 5


def test_an_interrupt_of_the_terminal_does_not_reach_the_worker(new_llm: NewLLM) -> None:
    llm = new_llm(**MP)
    expected = generate(llm)
    os.kill(worker_pid(llm), signal.SIGINT)
    assert generate(llm) == expected


# --- errors while the runner is built ------------------------------------------------------------------------------------


def test_a_checkpoint_error_of_the_worker_keeps_its_type(new_llm: NewLLM, toy_model: str, tmp_path: Path) -> None:
    """The host reads the configuration only; that a tensor is missing shows when the worker loads the weights."""
    import shutil

    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    shutil.copytree(toy_model, broken)
    tensors = load_file(broken / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, broken / "model.safetensors")
    messages = []
    for options in ({}, MP):
        with pytest.raises(CheckpointError, match=r"model\.norm\.weight") as caught:
            new_llm(model=str(broken), **options)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_a_plugin_that_the_worker_cannot_import(new_llm: NewLLM) -> None:
    with pytest.raises(ImportError, match="a library that the worker lacks"):
        new_llm(**MP, plugins=("tests.engine.broken_plugin",))


def test_a_plugin_that_nobody_can_import(new_llm: NewLLM) -> None:
    for options in ({}, MP):
        with pytest.raises(ModuleNotFoundError, match="no_such_plugin"):
            new_llm(**options, plugins=("no_such_plugin",))


# --- a step that fails ---------------------------------------------------------------------------------------------------


def test_a_step_that_raises_kills_its_engine_only(new_llm: NewLLM) -> None:
    llm, other = new_llm(), new_llm()
    expected = generate(other)
    runner: Any = llm._executor._runner  # type: ignore[attr-defined]
    real, count = runner.model.forward, 0

    def forward(batch: Any, layer_ids: Any = ()) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            raise RuntimeError("out of cheese")
        return real(batch, layer_ids)

    runner.model.forward = forward
    with pytest.raises(EngineDeadError, match="step 2 failed on the device: RuntimeError: out of cheese"):
        generate(llm)
    assert count == 3, "no later step runs on a table that nobody knows"
    assert_dead(llm, "step 2 failed on the device: RuntimeError: out of cheese")
    assert count == 3
    assert generate(other) == expected


def test_a_step_that_raises_in_the_worker(new_llm: NewLLM) -> None:
    """A drafter with a script that it cannot read."""
    config = {"method": METHOD, "num_speculative_tokens": 2}
    llm = new_llm(**MP, speculative_config=config, plugins=(PLUGIN,))
    params = SamplingParams(temperature=0, max_tokens=8, extra_args={"script": {"continuations": 5, "accept": [1]}})
    with pytest.raises(EngineDeadError, match=r"step 0 failed on the device: TypeError"):
        generate(llm, params)
    assert_dead(llm, r"step 0 failed on the device: TypeError")


# --- what crosses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 5])
def test_plans_and_results_of_a_decode_step_are_small(depth: int, new_llm: NewLLM) -> None:
    options: dict[str, Any] = {}
    if depth:
        options = {"speculative_config": {"method": METHOD, "num_speculative_tokens": depth}, "plugins": (PLUGIN,)}
    llm = new_llm(**options, max_num_seqs=32, num_kv_blocks=999)
    runner: Any = llm._executor._runner  # type: ignore[attr-defined]
    real = runner.execute
    sent: list[tuple[StepPlan, StepResult]] = []

    def execute(plan: StepPlan) -> StepResult:
        sent.append((plan, real(plan)))
        return sent[-1][1]

    runner.execute = execute
    prompts = [[*b"A prompt of some length, number ", i] for i in range(32)]
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, extra_args=script([list(range(20))], [1]))
    llm.generate(prompts, params, use_tqdm=False)
    decodes = [step for step in sent if len(step[0].rows) == 32 and all(row.is_decode for row in step[0].rows)]
    assert len(decodes) >= 4
    for plan, result in decodes:
        assert len(pickle.dumps(plan)) < 4096
        assert len(pickle.dumps(result)) < 4096
