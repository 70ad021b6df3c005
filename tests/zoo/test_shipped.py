"""The checkpoints that come with Lockstep: whole, described, small; and what the command line says of them."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint import shipped_zoo
from engine.checkpoint.resolve import SHIPPED_ZOO, resolve_model
from engine.errors import CheckpointError
from harness.cli.main import main
from harness.zoo import card as cards
from harness.zoo.card import ABOUT, card_text, write_card
from harness.zoo.download import ZooError
from harness.zoo.shipped import CARD, damage, read_manifest, shipped_path, write_manifest
from harness.zoo.training import registry

MAX_BYTES = 40_000_000
FIGURE = {"value": 0.9, "n": 1000, "right": 900, "interval": [0.88, 0.92]}
FACTS = {
    "name": "tiny",
    "recipe": "TargetRecipe()",
    "training": {"steps": 10, "tokens": 30720, "seconds": 60.0},
    "figures": {
        "accuracy": {"all": FIGURE},
        "acceptance": {
            "math": {"length": 2.5, "interval": [2.4, 2.6], "n": 9, "drafts": 99, "rate": 0.5, "per_position": [0.7, 0.5, 0.3]}
        },
    },
}


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zoo of one model, `tiny`, whose files are no model at all."""
    directory = tmp_path / "tiny"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"weights")
    write_manifest(directory, FACTS)
    write_card(directory)
    monkeypatch.setattr("engine.checkpoint.resolve.SHIPPED_ZOO", tmp_path)
    return directory


@pytest.mark.parametrize("name", shipped_zoo())
def test_shipped_checkpoint_is_whole_and_described(name: str) -> None:
    directory = shipped_path(name)
    manifest = read_manifest(directory)
    assert manifest["name"] == name
    assert name in ABOUT
    assert (directory / CARD).read_text(encoding="utf-8") == card_text(manifest)


def test_all_shipped_checkpoints_together_are_small() -> None:
    assert sum(file.stat().st_size for file in SHIPPED_ZOO.rglob("*")) <= MAX_BYTES


def test_every_recipe_has_a_description_and_the_other_way_round() -> None:
    assert set(registry.recipes()) == set(ABOUT)


def test_shipped_model_resolves(zoo: Path) -> None:
    assert resolve_model("zoo:tiny") == shipped_path("tiny") == shipped_path("zoo:tiny") == zoo


def test_wrong_hash_is_refused(zoo: Path) -> None:
    (zoo / "model.safetensors").write_bytes(b"wights")
    with pytest.raises(ZooError, match=r"model\.safetensors has the sha256 .*lockstep zoo train tiny"):
        shipped_path("tiny")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "missing"), ("{", "cannot be read"), ("{}", "cannot be read"), ('{"sha256": 3}', "cannot be read")],
)
def test_damaged_manifest_is_refused(zoo: Path, content: str | None, message: str) -> None:
    if content is None:
        (zoo / "manifest.json").unlink()
    else:
        (zoo / "manifest.json").write_text(content)
    assert message in str(damage(zoo))


def test_missing_file_is_refused(zoo: Path) -> None:
    (zoo / "model.safetensors").unlink()
    with pytest.raises(ZooError, match=r"model\.safetensors is missing"):
        shipped_path("tiny")


def test_unknown_name(zoo: Path) -> None:
    with pytest.raises(CheckpointError, match="Did you mean 'tiny'"):
        shipped_path("tny")
    with pytest.raises(CheckpointError, match=r"Known: .*smollm2-135m"):
        shipped_path("gpt")


def test_card_says_what_the_manifest_says(zoo: Path) -> None:
    text = (zoo / CARD).read_text(encoding="utf-8")
    for part in (
        "# zoo:tiny",
        "lockstep zoo train tiny",
        "10 steps",
        "| all | 90.0% | 88.0%–92.0% | 1000 |",
        "| math | 2.50 |",
    ):
        assert part in text
    assert cards.card_text(read_manifest(zoo)) == text


def zoo_command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["zoo", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_list_path_card(zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = zoo_command(capsys, "list", f"--json={tmp_path / 'list.json'}")
    assert (status, "zoo:tiny" in out, "zoo:smollm2-135m" in out) == (0, True, True)
    assert json.loads((tmp_path / "list.json").read_text())[0]["name"] == "tiny"
    assert zoo_command(capsys, "path", "zoo:tiny")[:2] == (0, f"{zoo}\n")
    assert "# zoo:tiny" in zoo_command(capsys, "card", "tiny")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("path", "tiney"), "Did you mean 'tiny'"),
        (("card", "tiney"), "Did you mean 'tiny'"),
        (("evaluate", "tiney"), "Did you mean 'tiny'"),
        (("train", "tiney"), "Did you mean 'tiny'"),
        (("train",), "name what to train, or say --all"),
        (("train", "tiny", "--threads=0"), "--threads is at least 1"),
        (("train", "tiny", "--seed=-1"), "--seed at least 0"),
        (("evaluate", "tiny", "--n=1001"), "the fixed test split has 1000 problems"),
        (("evaluate", "tiny", "--seed=-3"), "from 0 on"),
    ],
)
def test_bad_calls_say_what_to_do(zoo: Path, capsys: pytest.CaptureFixture[str], arguments: Any, message: str) -> None:
    status, _, err = zoo_command(capsys, *arguments)
    assert status == 1
    assert message in err


def test_a_drafter_needs_its_target(zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.checkpoint.resolve.SHIPPED_ZOO", tmp_path / "nothing")
    with pytest.raises(ZooError, match=r"tiny-eagle drafts for tiny, which is not in .*train that first"):
        registry.train_model("tiny-eagle", tmp_path / "out", tmp_path / "work", threads=1, say=print)


def test_a_full_disk_leaves_what_was_there(zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = tmp_path / "scratch" / "tiny"
    built.mkdir(parents=True)

    def full(self: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(ZooError, match="No space left on device"):
        registry._install(built, zoo)
    assert damage(zoo) is None
