"""The toy model: the same bytes everywhere, and behaviour that gives the suites something to compare."""

from __future__ import annotations

import hashlib
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.checkpoint import SUPPORTED_ARCHITECTURES, open_checkpoint
from engine.tokenizer import load_tokenizer
from harness.toy_model import CHAT_TEMPLATE, EOS_ID, PAD_ID, make_toy_checkpoint, toy_model_path

# A change here changes every golden hash that was made with a toy model: raise RECIPE_VERSION with it.
WEIGHT_HASHES = {
    "LlamaForCausalLM": "f9c613f348acc0709a8c772ab9d85e30d863a4a80386c45fc711bea916354312",
    "Qwen2ForCausalLM": "2c7ae497ff4c05287f9f95dee0308e018d7d0f740cba78d5301457d65785e9a6",
    "Qwen3ForCausalLM": "a20595128297f34f222c81007139418948a41504d91ce837797e1ff5e0b2b5a0",
}
PROMPTS = [
    "Hello, how are you?",
    "Janet's ducks lay 16 eggs per day.",
    "x",
    "The sum of 3 and 4 is",
    "def f(a, b):\n    return",
    "1 2 3 4 5 6 7 8",
    "Weng earns $12 an hour for babysitting.",
    "{'a': [1, 2]}",
    "A robe takes 2 bolts of blue fiber and half that much white fiber.",
    "zzzzzzzz",
    "Kylar went to the store to buy glasses",
    "ü",
]


def file_hashes(path: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in path.iterdir()}


@pytest.mark.parametrize("architecture", SUPPORTED_ARCHITECTURES)
def test_the_bytes_are_the_same_on_every_machine(tmp_path: Path, architecture: str) -> None:
    first = file_hashes(make_toy_checkpoint(tmp_path / "a", architecture=architecture))
    assert first["model.safetensors"] == WEIGHT_HASHES[architecture]
    assert file_hashes(make_toy_checkpoint(tmp_path / "b", architecture=architecture)) == first
    other = make_toy_checkpoint(tmp_path / "c", architecture=architecture, seed=1)
    assert file_hashes(other)["model.safetensors"] != first["model.safetensors"]


@pytest.mark.parametrize("architecture", SUPPORTED_ARCHITECTURES)
def test_transformers_reads_the_same_model(tmp_path: Path, architecture: str) -> None:
    from transformers import AutoModelForCausalLM

    path = make_toy_checkpoint(tmp_path, architecture=architecture)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    assert type(model).__name__ == architecture
    checkpoint = open_checkpoint(path)
    state = model.state_dict()
    assert sorted(state) == sorted(checkpoint.names())
    assert all(torch.equal(state[name], checkpoint.tensor(name)) for name in checkpoint.names())
    assert model.config.rope_parameters["rope_theta"] == checkpoint.config.rope_theta
    assert model.generation_config.eos_token_id == EOS_ID


def test_variants(tmp_path: Path) -> None:
    plain = open_checkpoint(make_toy_checkpoint(tmp_path / "f32"))
    rounded = open_checkpoint(make_toy_checkpoint(tmp_path / "bf16", dtype="bfloat16"))
    for name in plain.names():
        assert torch.equal(rounded.tensor(name), plain.tensor(name).bfloat16())
    tied = open_checkpoint(make_toy_checkpoint(tmp_path / "tied", tie_word_embeddings=True, num_layers=1, vocab_size=300))
    assert "lm_head.weight" not in tied.names()
    assert tied.tensor("model.embed_tokens.weight").shape == (300, 48)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"architecture": "Qwen4ForCausalLM"}, "Did you mean 'Qwen"),
        ({"dtype": "float16"}, "Did you mean"),
        ({"vocab_size": 256}, "the tokenizer has 259 ids"),
    ],
    ids=["architecture", "dtype", "vocabulary"],
)
def test_bad_arguments(tmp_path: Path, arguments: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        make_toy_checkpoint(tmp_path, **arguments)


def test_tokenizer_files(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(make_toy_checkpoint(tmp_path))
    assert tokenizer.hf.chat_template == CHAT_TEMPLATE
    assert tokenizer.hf.pad_token_id == PAD_ID
    every_byte = bytes(range(256)).decode("latin-1")
    assert tokenizer.decode(tokenizer.encode(every_byte)) == every_byte


def test_the_cache_has_one_directory_for_each_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))
    first = toy_model_path()
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert toy_model_path() == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    paths = [first, toy_model_path(seed=1), toy_model_path(dtype="bfloat16"), toy_model_path(num_layers=3)]
    paths += [toy_model_path("Qwen2ForCausalLM"), toy_model_path("Qwen3ForCausalLM")]
    assert len(set(paths)) == len(paths)
    assert {p.name for p in (tmp_path / "toy").iterdir()} == {p.name for p in paths}


def test_parallel_processes_make_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        paths = set(pool.map(toy_model_path, ["LlamaForCausalLM"] * 3))
    assert len(paths) == 1
    assert list((tmp_path / "toy").iterdir()) == list(paths)
    assert file_hashes(paths.pop())["model.safetensors"] == WEIGHT_HASHES["LlamaForCausalLM"]


@pytest.mark.parametrize("architecture", SUPPORTED_ARCHITECTURES)
def test_continuations_behave_like_those_of_a_model(tmp_path: Path, architecture: str) -> None:
    """Greedy text wanders, its probabilities are spread, it repeats itself enough for n-gram drafts, and it sometimes ends."""
    from transformers import AutoModelForCausalLM

    path = make_toy_checkpoint(tmp_path, architecture=architecture)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    tokenizer = load_tokenizer(path)
    best, ended, drafts, right = [], 0, 0, 0
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt)
        with torch.no_grad():
            result = model.generate(
                torch.tensor([ids]),
                max_new_tokens=80,
                do_sample=False,
                pad_token_id=PAD_ID,
                output_scores=True,
                return_dict_in_generate=True,
            )
        sequence = result.sequences[0].tolist()
        best += [score[0].softmax(-1).max().item() for score in result.scores]
        ended += sequence[-1] == EOS_ID
        found = [draft_after(sequence[:end]) for end in range(len(ids), len(sequence))]
        drafts += sum(draft is not None for draft in found)
        right += sum(draft == token for draft, token in zip(found, sequence[len(ids) :], strict=True))
        tail = sequence[len(ids) :][-32:]
        assert len(tail) < 32 or len(set(tail)) > 4, f"{prompt!r} ends in a loop"
    quantiles = torch.tensor(best).quantile(torch.tensor([0.1, 0.5, 0.9])).tolist()
    assert 0.1 < quantiles[0] < 0.25 < quantiles[1] < 0.5 < quantiles[2] < 0.9
    assert 0.15 < drafts / len(best) < 0.7
    assert 0.25 < right / drafts < 0.8
    assert 0 < ended < len(PROMPTS)


def draft_after(sequence: list[int]) -> int | None:
    """The token after the latest earlier occurrence of the last two tokens."""
    for start in range(len(sequence) - 3, -1, -1):
        if sequence[start : start + 2] == sequence[-2:]:
            return sequence[start + 2]
    return None
