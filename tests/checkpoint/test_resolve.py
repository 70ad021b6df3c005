"""What a user may write as a model, and what the message says when it cannot be had."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.checkpoint import CheckpointError, cache_dir, open_checkpoint, resolve_model
from engine.checkpoint.resolve import FETCHED_ZOO, shipped_zoo
from harness.toy_model import make_toy_checkpoint
from harness.zoo import CATALOG

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_directories_and_gguf_files_are_taken_as_they_are(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path)) == tmp_path
    file = tmp_path / "model.GGUF"
    file.touch()
    assert resolve_model(str(file)) == file


def test_the_cache_is_in_the_home_directory_unless_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCKSTEP_CACHE", raising=False)
    assert cache_dir() == Path.home() / ".cache" / "lockstep"
    monkeypatch.setenv("LOCKSTEP_CACHE", "~/models")
    assert cache_dir() == Path.home() / "models"


def test_zoo_names(cache: Path) -> None:
    with pytest.raises(CheckpointError, match="Run: lockstep zoo fetch smollm2-135m"):
        resolve_model("zoo:smollm2-135m")
    made = make_toy_checkpoint(cache / "zoo" / "smollm2-135m")
    assert resolve_model("zoo:smollm2-135m") == made


@pytest.mark.parametrize("name", ["smolm2-135m", "", "../zoo/x"])
def test_unknown_zoo_names_get_the_nearest_or_all(cache: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="smollm2-135m"):
        resolve_model(f"zoo:{name}")


def test_the_engine_knows_the_names_of_the_harness_catalog() -> None:
    assert set(FETCHED_ZOO) == set(CATALOG)
    assert not set(FETCHED_ZOO) & set(shipped_zoo())


@pytest.mark.parametrize(
    "model", ["/no/such/place", "./nothing", "../nothing", "a/b/c", "~/nothing-here", "no.gguf", "a b", ""]
)
def test_a_path_that_does_not_exist(model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="there is no such directory or file"):
        resolve_model(model)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(CheckpointError, match=r"is a file\. A model is a directory"):
        resolve_model(str(file))
    with pytest.raises(CheckpointError, match=r"no such directory or \.gguf file"):
        open_checkpoint(file)


def test_a_hub_id_without_network_or_cache(tmp_path: Path) -> None:
    script = "from engine.checkpoint import resolve_model\nresolve_model('some-one/some-model')"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    last = result.stderr.strip().splitlines()
    message = next(line for line in reversed(last) if "CheckpointError" in line)
    assert "'some-one/some-model' is neither a directory nor a file here" in message
    assert "zoo:smollm2-135m" in result.stderr


def test_a_hub_id_in_the_hub_cache_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: list[tuple[str, list[str]]] = []

    def snapshot_download(model: str, *, allow_patterns: list[str]) -> str:
        asked.append((model, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert resolve_model("gpt/tiny") == tmp_path
    assert asked[0][0] == "gpt/tiny"
    assert not [pattern for pattern in asked[0][1] if pattern.endswith((".bin", ".pt", ".py", "*"))]
