"""Training of the zoo's own models: what goes in, that it learns, that it resumes to the same bits, what comes out."""

from __future__ import annotations

import errno
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.tokenizer import load_tokenizer
from harness.datasets.example import Example
from harness.zoo.download import ZooError
from harness.zoo.training.documents import (
    ANSWER_WEIGHT,
    QUESTION_WEIGHT,
    FewShot,
    document,
    document_text,
    documents,
    prompt_text,
)
from harness.zoo.training.export import export_checkpoint
from harness.zoo.training.generation import greedy
from harness.zoo.training.loop import STATE_FILE, TrainingStopped, train, write_atomically
from harness.zoo.training.optimizer import Schedule, orthogonalized
from harness.zoo.training.packing import Encoder, PackedStream, pack
from harness.zoo.training.target import ModelSizes, Phase, Rows, TargetObjective, TargetRecipe
from harness.zoo.training.tokenizer import train_tokenizer
from harness.zoo.training.transformer import Decoder

ITEMS = ("pen", "cup", "hat", "box")
PHASES = (Phase(0.5, (Rows(4, 96, FewShot(0.1)),)), Phase(1.0, (Rows(2, 192, FewShot(0.5, 2, 3)),)))
SIZES = {
    "LlamaForCausalLM": ModelSizes("LlamaForCausalLM", 48, 96, 2, 4, 2, 12),
    "Qwen3ForCausalLM": ModelSizes("Qwen3ForCausalLM", 48, 96, 2, 2, 1, 32),
}


def sums(rng: random.Random, phase: float) -> Iterator[Example]:
    """A stand-in for the mixture."""
    while True:
        a, b, item = rng.randint(1, 9), rng.randint(1, 9), rng.choice(ITEMS)
        yield Example(
            f"Ann has {a} {item}s and buys {b} more.", f"She has <<{a}+{b}={a + b}>>{a + b} {item}s.\n#### {a + b}", "sum"
        )


def few(rng: random.Random, phase: float) -> Iterator[Example]:
    """Four examples, over and over."""
    while True:
        i = rng.randrange(4)
        yield Example(f"Which is number {i}?", f"It is the {ITEMS[i]}.", "item")


def recipe(num_steps: int, architecture: str = "LlamaForCausalLM") -> TargetRecipe:
    return TargetRecipe("test", SIZES[architecture], Schedule(num_steps, warmup_steps=3), phases=PHASES)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("training") / "tokenizer"
    rng = random.Random(0)
    stream = sums(rng, 0.0)
    train_tokenizer((document_text(document([next(stream)])) for _ in range(300)), path, vocab_size=300)
    return path


def objective(tokenizer: Path, num_steps: int, **changes: Any) -> TargetObjective:
    architecture = changes.pop("architecture", "LlamaForCausalLM")
    return TargetObjective(recipe(num_steps, architecture), tokenizer, source=changes.pop("source", sums), compile_layers=False)


def test_the_answer_begins_at_a_token(tokenizer: Path) -> None:
    hf = load_tokenizer(tokenizer).hf
    example = Example("How many?", "12 pens.", "sum")
    for answer in ("12", "She has 3.", "<<1+1=2>>2", "- x", '{"a": 1}', "\n1"):
        shots = [example]
        prompt = prompt_text("What is left?", shots)
        whole = hf.encode(f"{prompt} {answer}")
        assert whole == hf.encode(prompt) + hf.encode(f" {answer}", add_special_tokens=False)
        assert hf.decode(whole, skip_special_tokens=True) == f"{prompt} {answer}"
        assert f"{prompt} {answer}" == document_text(document([*shots, Example("What is left?", answer, "sum")]))


def test_the_tokenizer(tokenizer: Path) -> None:
    hf = load_tokenizer(tokenizer).hf
    assert (hf.bos_token_id, hf.eos_token_id, hf.pad_token_id, len(hf)) == (0, 1, 2, 300)
    assert hf.convert_ids_to_tokens(hf.encode("in 407"))[-4:] == ["Ġ", "4", "0", "7"]
    messages = [
        {"role": "user", "content": "How many?"},
        {"role": "assistant", "content": "12 pens."},
        {"role": "user", "content": "What is left?"},
    ]
    text = hf.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<s>" + prompt_text("What is left?", [Example("How many?", "12 pens.", "")])
    assert hf.apply_chat_template(messages[:1], tokenize=False) == "<s>" + prompt_text("How many?")


def test_the_same_texts_give_the_same_tokenizer(tokenizer: Path, tmp_path: Path) -> None:
    stream = sums(random.Random(0), 0.0)
    train_tokenizer((document_text(document([next(stream)])) for _ in range(300)), tmp_path, vocab_size=300)
    files = sorted(p.name for p in tokenizer.iterdir())
    assert files
    assert {name: (tmp_path / name).read_bytes() for name in files} == {n: (tokenizer / n).read_bytes() for n in files}


def test_each_token_has_the_weight_of_its_segment(tokenizer: Path) -> None:
    hf = load_tokenizer(tokenizer).hf
    shots = [Example("A?", "é 1.", "x"), Example("B?", "2.", "x")]
    ids, weights = Encoder(hf)(document(shots))
    assert (ids[0], ids[-1], weights[0], weights[-1]) == (0, 1, 0.0, ANSWER_WEIGHT)
    answers = hf.decode([i for i, w in zip(ids, weights, strict=True) if w == ANSWER_WEIGHT], skip_special_tokens=True)
    questions = hf.decode([i for i, w in zip(ids, weights, strict=True) if w == QUESTION_WEIGHT])
    # The full stop and the blank line after it are one token where the vocabulary has it; it counts as the answer's.
    assert answers.replace("\n", "") == " é 1. 2."
    assert questions.replace("\n", "") == "Question: A?Answer:Question: B?Answer:"


def test_few_shot_documents_have_the_asked_sizes() -> None:
    stream = documents(sums(random.Random(1), 0.0), random.Random(2), FewShot(0.5, 2, 4))
    counts = [document_text(next(stream)).count("Question:") for _ in range(400)]
    assert set(counts) == {1, 2, 3, 4}
    assert documents(sums(random.Random(1), 0.0), random.Random(2), FewShot(0.0)).__next__() == document(
        [next(sums(random.Random(1), 0.0))]
    )


def test_packing_keeps_documents_whole() -> None:
    docs = [([0, *[10 + i] * n, 1], [0.0, *[1.0] * n, 1.0]) for i, n in enumerate((3, 9, 4, 5, 2, 30))]
    batch = pack(docs, 2, 16, pad=2)
    assert batch.ids.shape == batch.weights.shape == (2, 16)
    assert batch.num_tokens == int((batch.ids != 2).sum()) == 5 + 11 + 6 + 7
    assert batch.weights[batch.ids == 2].sum() == 0
    text = [" ".join(map(str, row)) for row in batch.ids.tolist()]
    for ids, _ in docs[:4]:
        assert sum(" ".join(map(str, ids)) in row for row in text) == 1


def test_a_batch_depends_on_seed_and_step_alone(tokenizer: Path) -> None:
    stream = PackedStream(sums, Encoder(load_tokenizer(tokenizer).hf), 7, 100)
    again = PackedStream(sums, Encoder(load_tokenizer(tokenizer).hf), 7, 100)
    arguments = (8, 256, FewShot(0.3, 2, 4))
    first = stream.batch(5, *arguments)
    stream.batch(6, *arguments)
    second = again.batch(5, *arguments)
    assert torch.equal(first.ids, second.ids)
    assert torch.equal(first.weights, second.weights)
    assert not torch.equal(first.ids, stream.batch(6, *arguments).ids)
    assert not torch.equal(first.ids, replace(again, seed=8).batch(5, *arguments).ids)
    assert first.num_tokens > 0.93 * first.ids.numel()


def test_the_schedule() -> None:
    schedule = Schedule(1000)
    factors = [schedule.factor(step) for step in range(1000)]
    assert factors[0] == pytest.approx(1 / 60)
    assert factors[59:351] == [1.0] * 292
    assert factors[675] == pytest.approx(0.5)
    assert 0 < factors[999] < 0.002


@pytest.mark.parametrize("shape", [(2, 8, 8), (1, 24, 8), (3, 8, 24)], ids=str)
def test_muon_moves_singular_values_to_one(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalized(x))
    assert 0.3 < values.min() < values.max() < 1.3
    alone = torch.stack([orthogonalized(matrix[None])[0] for matrix in x])
    torch.testing.assert_close(orthogonalized(x), alone)


@pytest.mark.parametrize("architecture", SIZES)
def test_it_learns_a_few_documents_by_heart(architecture: str, tokenizer: Path, tmp_path: Path) -> None:
    trained = objective(tokenizer, 120, source=few, architecture=architecture)
    train(trained, trained.recipe.schedule, tmp_path)
    hf = load_tokenizer(tokenizer).hf
    prompts = [hf.encode(prompt_text(f"Which is number {i}?")) for i in range(4)]
    prompts[1] = hf.encode(prompt_text("Which is number 1?", [next(few(random.Random(1), 0.0))]))  # another length
    answers = greedy(trained.model, prompts, 30, eos=hf.eos_token_id, pad=hf.pad_token_id)
    assert [hf.decode(a).split("\n\n")[0] for a in answers] == [f" It is the {item}." for item in ITEMS]


@pytest.mark.parametrize("architecture", SIZES)
def test_generation_with_a_cache_is_the_full_forward(architecture: str, tokenizer: Path) -> None:
    model = _random_model(tokenizer, architecture)
    prompts = [[0, 5, 6, 7], [0, 9], [0, *range(20, 40)]]
    answers = greedy(model, prompts, 6, eos=-1, pad=2)
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = list(prompt)
        for token in answer:
            with torch.no_grad():
                assert int(model.forward(torch.tensor([ids])).logits[0, -1].argmax()) == token
            ids.append(token)
    assert len(set(map(tuple, answers))) == 3


def _random_model(tokenizer: Path, architecture: str) -> Decoder:
    model = objective(tokenizer, 5, architecture=architecture).model
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in model.weights.values():
            tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.2)
    return model


@pytest.mark.parametrize("stop", [1, 7, 11])
def test_resuming_gives_the_same_bits(stop: int, tokenizer: Path, tmp_path: Path) -> None:
    whole = objective(tokenizer, 12)
    train(whole, whole.recipe.schedule, tmp_path / "whole")
    first = objective(tokenizer, 12)
    train(first, first.recipe.schedule, tmp_path / "parts", stop_after=stop)
    second = objective(tokenizer, 12)
    train(second, second.recipe.schedule, tmp_path / "parts")
    assert set(whole.parameters) == set(second.parameters)
    for name, tensor in whole.parameters.items():
        assert torch.equal(tensor, second.parameters[name]), name
    states = [torch.load(tmp_path / part / STATE_FILE, weights_only=True) for part in ("whole", "parts")]
    assert states[0]["step"] == states[1]["step"] == 12
    assert states[0]["tokens"] == states[1]["tokens"]


def test_a_kill_between_saves_costs_only_the_steps_since(tokenizer: Path, tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def die(step: int) -> None:
        raise Killed

    whole = objective(tokenizer, 12)
    train(whole, whole.recipe.schedule, tmp_path / "whole")
    killed = objective(tokenizer, 12)
    train(killed, killed.recipe.schedule, tmp_path / "parts", stop_after=4)
    killed = objective(tokenizer, 12)
    with pytest.raises(Killed):
        train(killed, killed.recipe.schedule, tmp_path / "parts", watch=die, watch_every=9)
    (tmp_path / "parts" / f".{STATE_FILE}.new").write_bytes(b"half a state")
    resumed = objective(tokenizer, 12)
    train(resumed, resumed.recipe.schedule, tmp_path / "parts")
    assert all(torch.equal(tensor, resumed.parameters[name]) for name, tensor in whole.parameters.items())


def test_an_interrupt_saves(tokenizer: Path, tmp_path: Path) -> None:
    stopped = objective(tokenizer, 12)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(TrainingStopped, match=r"after step 6 of 12.*run it again"):
        train(stopped, stopped.recipe.schedule, tmp_path, watch=lambda _: os.kill(os.getpid(), signal.SIGINT), watch_every=5)
    assert signal.getsignal(signal.SIGINT) == before
    assert torch.load(tmp_path / STATE_FILE, weights_only=True)["step"] == 6


def test_a_full_disk_leaves_the_last_state(tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = objective(tokenizer, 12)
    train(run, run.recipe.schedule, tmp_path, stop_after=2)
    before = (tmp_path / STATE_FILE).read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ZooError, match="No space left on device"):
        train(run, run.recipe.schedule, tmp_path, save_every_s=0)
    assert (tmp_path / STATE_FILE).read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [STATE_FILE]


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    write_atomically(tmp_path / "x", b"old")
    write_atomically(tmp_path / "x", b"new")
    assert (tmp_path / "x").read_bytes() == b"new"


def test_a_state_of_another_recipe_is_refused(tokenizer: Path, tmp_path: Path) -> None:
    first, other = objective(tokenizer, 12), objective(tokenizer, 13)
    train(first, first.recipe.schedule, tmp_path, stop_after=1)
    with pytest.raises(ZooError, match="another recipe"):
        train(other, other.recipe.schedule, tmp_path)


@pytest.mark.parametrize("architecture", SIZES)
def test_an_export_loads_in_transformers(architecture: str, tokenizer: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = _random_model(tokenizer, architecture)
    export_checkpoint(model.config, model.weights, tokenizer, tmp_path)
    rounded = Decoder(model.config, {name: t.detach().bfloat16().float() for name, t in model.weights.items()})
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert theirs.config.architectures == [architecture]
    ids = torch.tensor([load_tokenizer(tmp_path).encode(prompt_text("Ann has 3 pens."))])
    with torch.no_grad():
        torch.testing.assert_close(rounded.forward(ids).logits, theirs(ids).logits, rtol=1e-4, atol=1e-4)
    assert theirs.generation_config.eos_token_id == load_tokenizer(tmp_path).eos_token_id
