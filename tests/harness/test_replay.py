"""A failing case survives as a file, runs again exactly, and shrinks to something that a person can read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import SamplingParams
from harness.cells import equivalence_cell
from harness.cli import main
from harness.drafting import DRAFTERS
from harness.errors import TokenMismatchError, ValidationError
from harness.faults.catalog import find_fault
from harness.reference import References
from harness.replay import Replay, ReplayError, read_replay, write_replay
from harness.shrink import run_replay, shrink
from harness.simulation.campaign import as_replay, first_violation
from harness.simulation.scenario import draw_scenario
from harness.toy_model import toy_model_path
from harness.workload import WorkItem


def failing(fault_id: str) -> Replay:
    """The first scenario that this fault breaks."""
    plugins = (find_fault(fault_id).plugin,)
    count, error = first_violation(iter(range(1000)), plugins, 1000)
    assert error is not None
    return as_replay(draw_scenario(count - 1), plugins).after(error)


@pytest.fixture(scope="module")
def stalled() -> Replay:
    return failing("S-10")


def test_a_file_gives_the_same_case_back(stalled: Replay, tmp_path: Path) -> None:
    path = tmp_path / "a" / "case.json"
    write_replay(stalled, path)
    again = read_replay(path)
    assert again == replace(stalled, options=again.options)
    assert list(again.options.items()) == [(k, list(v) if isinstance(v, tuple) else v) for k, v in stalled.options.items()]
    error = run_replay(again)
    assert type(error).__name__ == stalled.exception == "StalledEngineError"
    assert str(error) == stalled.message


@pytest.mark.parametrize("fault_id", ["S-10", "own/hash-without-parent", "S-05/history"])
def test_a_case_shrinks_to_a_screen(fault_id: str) -> None:
    found = failing(fault_id)
    small = shrink(found)
    assert small.exception == type(run_replay(found)).__name__
    assert len(small.items) <= 2
    assert small.num_tokens <= 20
    assert type(run_replay(small)).__name__ == small.exception


def test_what_passes_cannot_be_shrunk(stalled: Replay) -> None:
    healthy = replace(stalled, options=stalled.options | {"plugins": []})
    with pytest.raises(ValueError, match="passes here"):
        shrink(healthy)


def test_a_failing_comparison_carries_its_case(tmp_path: Path) -> None:
    plugin = find_fault("own/noise-by-row").plugin
    axes = ("uni", "roomy", "whole", "nocache", "right", "temperature")
    with pytest.raises(TokenMismatchError) as caught:
        equivalence_cell(*axes, reference_for=References(), plugins=(plugin,))
    replay = caught.value.replay
    write_replay(replay, tmp_path / "case.json")
    error = run_replay(read_replay(tmp_path / "case.json"))
    assert isinstance(error, ValidationError)
    assert error.evidence["position"] == caught.value.evidence["position"]


def test_on_the_command_line(stalled: Replay, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "case.json"
    write_replay(stalled, path)
    assert main(["replay", str(path), "--shrink"]) == 1
    out = capsys.readouterr().out
    assert "StalledEngineError" in out
    assert main(["replay", str(tmp_path / "case.small.json")]) == 1
    healthy = replace(stalled, options=stalled.options | {"plugins": []})
    write_replay(healthy, path)
    assert main(["replay", str(path)]) == 0
    assert "passes here, it was StalledEngineError" in capsys.readouterr().out
    assert main(["replay", str(tmp_path / "nothing.json")]) == 2
    assert main(["simulate", "--scenarios", "60", "--processes", "1", "--fault", "S-10", "--replays", str(tmp_path)]) == 1
    assert "lockstep replay" in capsys.readouterr().out
    assert main(["simulate", "--fault", "S-1"]) == 2
    assert "Did you mean" in capsys.readouterr().err


def equivalence_replay() -> Replay:
    item = WorkItem("r", (65, 66), SamplingParams(temperature=0, max_tokens=2))
    return Replay("async_equals_sync", str(toy_model_path()), {"max_model_len": 64}, (item,), DRAFTERS["plain"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lockstep_replay": 99}, "has schema version 99, this Lockstep reads 1"),
        ({"lockstep_replay": None}, "no field 'lockstep_replay'"),
        ({"itemz": []}, "unknown field 'itemz'. Did you mean 'items'?"),
        ({"check": "simulatoin"}, "unknown check 'simulatoin'. Did you mean 'simulation'?"),
        ({"exception": "TokenMissmatchError"}, "Did you mean 'TokenMismatchError'?"),
        ({"model_sha256": "0" * 64}, "was written with another checkpoint"),
        ({"items": [{"request_id": "r"}]}, "is damaged"),
        ({"items": 3}, "is damaged"),
    ],
)
def test_a_bad_file_says_what_differs(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    write_replay(equivalence_replay(), path)
    assert read_replay(path).model_sha256
    content = json.loads(path.read_text()) | change
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
    with pytest.raises(ReplayError) as caught:
        read_replay(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"'])
def test_what_is_no_replay_file_says_so(text: str, tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    path.write_text(text)
    with pytest.raises(ReplayError, match="is no replay file"):
        read_replay(path)
