"""Drafters of the tiny target: what their training computes, what comes out of it, and who can read that."""

from __future__ import annotations

import errno
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from engine.checkpoint import expected_tensors
from harness.datasets.example import Example
from harness.zoo.download import ZooError
from harness.zoo.training import transformer
from harness.zoo.training.documents import document, document_text
from harness.zoo.training.drafting import DrafterRecipe, FrozenTarget, Question, simulate
from harness.zoo.training.export import export_checkpoint
from harness.zoo.training.kinds import draft_model, medusa, pard
from harness.zoo.training.kinds.draft_model import DraftModelObjective
from harness.zoo.training.kinds.medusa import MedusaObjective
from harness.zoo.training.kinds.pard import PardObjective
from harness.zoo.training.loop import train
from harness.zoo.training.optimizer import Schedule
from harness.zoo.training.target import ModelSizes
from harness.zoo.training.tokenizer import train_tokenizer
from harness.zoo.training.transformer import Output, init_weights

TARGET_SIZES = ModelSizes("LlamaForCausalLM", 32, 64, 2, 2, 1, 16)
DRAFT_OPTIONS = (
    ("hidden_size", 32),
    ("intermediate_size", 48),
    ("num_layers", 2),
    ("num_heads", 2),
    ("num_kv_heads", 1),
    ("head_dim", 16),
)
OPTIONS: dict[str, tuple[tuple[str, int | float | str], ...]] = {
    "draft_model": DRAFT_OPTIONS,
    "pard": (*DRAFT_OPTIONS, ("num_drafts", 4), ("anchors", 6)),
    "medusa": (("num_heads", 3), ("num_layers", 2), ("own_heads", True)),
    "medusa_shared": (("num_heads", 3), ("num_layers", 2), ("own_heads", False)),
}
KINDS: dict[str, tuple[ModuleType, type[Any]]] = {
    "draft_model": (draft_model, DraftModelObjective),
    "pard": (pard, PardObjective),
    "medusa": (medusa, MedusaObjective),
    "medusa_shared": (medusa, MedusaObjective),
}
both_medusas = pytest.mark.parametrize("kind", ["medusa", "medusa_shared"])
all_kinds = pytest.mark.parametrize("kind", KINDS)


def sums(rng: random.Random, phase: float) -> Iterator[Example]:
    while True:
        a, b = rng.randint(1, 9), rng.randint(1, 9)
        yield Example(f"Ann has {a} pens and buys {b} more.", f"She has <<{a}+{b}={a + b}>>{a + b} pens.", "sum")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> FrozenTarget:
    """A random model, loud enough that its next token depends on what came before."""
    path = tmp_path_factory.mktemp("draft_kinds")
    stream = sums(random.Random(0), 0.0)
    texts = [document_text(document([next(stream)])) for _ in range(200)]
    train_tokenizer(texts, path / "tokenizer", vocab_size=300, context_length=128)
    config = replace(TARGET_SIZES.config(), vocab_size=300, max_position_embeddings=128)
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.ones(shape)
        if len(shape) == 1
        else torch.randn(shape, generator=generator) * (0.3 if shape[0] < 300 else 0.2)
        for name, shape in expected_tensors(config).items()
    }
    return FrozenTarget(export_checkpoint(config, weights, path / "tokenizer", path / "target"))


def recipe(kind: str, num_steps: int = 10) -> DrafterRecipe:
    return DrafterRecipe("test", kind, Schedule(num_steps, warmup_steps=3), rows=3, length=96, options=OPTIONS[kind])


def objective(kind: str, target: FrozenTarget, num_steps: int = 10) -> Any:
    return KINDS[kind][1](recipe(kind, num_steps), target, source=sums, compile_layers=False)


def scrambled(kind: str, target: FrozenTarget) -> Any:
    """An objective whose parameters are random and exact in bfloat16."""
    made = objective(kind, target)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters.values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
            parameter.copy_(parameter.bfloat16())
    return made


def tokens(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [0, *(rng.randrange(3, 300) for _ in range(count - 1))]


def states_before_the_last(target: FrozenTarget, token_ids: list[int]) -> Output:
    return target.forward(torch.tensor([token_ids[:-1]]))


def own_proposals(kind: str, made: Any, target: FrozenTarget, token_ids: list[int]) -> list[int]:
    """Three proposals from the forward pass that the training uses."""
    row, known = torch.tensor([token_ids]), len(token_ids)
    if kind == "draft_model":
        return [int(made.model.forward(row).logits[0, -1].argmax())]
    if kind == "pard":
        logits = made.logits(row, torch.tensor([[1, known - 1]]))[0]
        masks = logits[known + made.num_masks :]  # of the second group
        return [int(logits[known - 1].argmax()), *masks[:2].argmax(-1).tolist()]
    x = states_before_the_last(target, token_ids).normed[0, -1]
    proposals = []
    for head in range(3):
        y = x
        for layer in range(2):
            name = f"blocks.{head}.layers.{layer}"
            y = y + torch.nn.functional.silu(made.parameters[f"{name}.weight"] @ y + made.parameters[f"{name}.bias"])
        lm_head = made.parameters.get(f"lm_heads.{head}.weight", target.head)
        proposals.append(int((lm_head @ y).argmax()))
    return proposals


@all_kinds
def test_an_export_proposes_what_the_training_computes(kind: str, target: FrozenTarget, tmp_path: Path) -> None:
    made = scrambled(kind, target)
    drafter = KINDS[kind][0].load(KINDS[kind][0].export(made, tmp_path / kind), target)
    compared = 0
    for seed in range(8):
        token_ids = tokens(12 + 5 * seed, seed)
        states = states_before_the_last(target, token_ids)
        proposals = drafter.propose(token_ids, states, 3)
        assert len(proposals) == 3
        if kind == "draft_model":  # one at a time
            for i in range(3):
                assert own_proposals(kind, made, target, token_ids + proposals[:i]) == proposals[i : i + 1]
        else:
            assert own_proposals(kind, made, target, token_ids) == proposals
        assert drafter.propose(token_ids, states, 2) == proposals[:2]
        compared += 1
    assert compared == 8


@all_kinds
def test_training_lowers_the_loss(kind: str, target: FrozenTarget, tmp_path: Path) -> None:
    made = objective(kind, target, 25)
    batch = made.batch(1000)
    before = made.loss(batch)[0].item()
    train(made, made.recipe.schedule, tmp_path)
    assert made.loss(batch)[0].item() < before - 0.1


@all_kinds
def test_a_batch_and_its_loss_repeat(kind: str, target: FrozenTarget) -> None:
    losses = [objective(kind, target).loss(objective(kind, target).batch(step)) for step in (3, 3, 4)]
    assert torch.equal(losses[0][0], losses[1][0])
    assert not torch.equal(losses[0][0], losses[2][0])
    assert 0 < losses[0][1] <= 3 * 96


@all_kinds
def test_the_plain_call_makes_the_same_objective(kind: str, target: FrozenTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (KINDS[kind][0], transformer):  # the compiler's import alone takes seconds
        monkeypatch.setattr(module, "compiled", lambda function: function)
    made = KINDS[kind][0].objective(recipe(kind), target)
    assert made.identity == recipe(kind).identity(target)
    assert all(parameter.requires_grad for parameter in made.parameters.values())


@all_kinds
def test_recipes_name_their_module(kind: str) -> None:
    recipes = KINDS[kind][0].RECIPES
    assert recipes
    assert {r.kind for r in recipes} == {kind.removesuffix("_shared")}
    assert all({name for name, _ in OPTIONS[kind]} == {name for name, _ in r.options} for r in recipes)


@all_kinds
def test_a_full_disk_is_reported(kind: str, target: FrozenTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(KINDS[kind][0] if kind != "pard" else draft_model, "write_safetensors", full)
    with pytest.raises(ZooError, match="No space left"):
        KINDS[kind][0].export(objective(kind, target), tmp_path / "full")


@pytest.mark.parametrize("kind", ["draft_model", "pard"])
def test_transformers_computes_the_same_logits(kind: str, target: FrozenTarget, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    made = scrambled(kind, target)
    directory = KINDS[kind][0].export(made, tmp_path / "draft")
    hf = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    row = torch.tensor([tokens(40)])
    with torch.no_grad():
        torch.testing.assert_close(hf(row).logits, made.model.forward(row).logits, atol=1e-4, rtol=1e-4)
    text = "Ann has 3 pens"
    assert AutoTokenizer.from_pretrained(directory)(text).input_ids == target.tokenizer.hf(text).input_ids


def test_a_draft_that_is_the_target_has_everything_accepted(target: FrozenTarget, tmp_path: Path) -> None:
    options = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_layers": 2,
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_dim": 16,
    }
    twin = DraftModelObjective(
        replace(recipe("draft_model"), options=tuple(options.items())), target, source=sums, compile_layers=False
    )
    with torch.no_grad():
        for name, parameter in twin.parameters.items():
            parameter.copy_(target.model.weights[name])
    drafter = draft_model.load(draft_model.export(twin, tmp_path / "twin"), target)
    questions = [Question(tuple(tokens(9 + i, i)), "random") for i in range(6)]
    requests = simulate(drafter, target, questions, num_drafts=3, max_new_tokens=13)
    rounds = [accepted for request in requests for accepted in request.accepted[:-1]]
    assert len(rounds) >= 10
    assert set(rounds) == {3}


def test_the_groups_of_masks_do_not_see_each_other(target: FrozenTarget) -> None:
    """The training's layout is, for each anchor alone, the one that inference has: the row cut there, then masks."""
    made = scrambled("pard", target)
    row, anchors = torch.tensor([tokens(30)]), [3, 17, 9, 29 - made.num_masks]
    logits = made.logits(row, torch.tensor([anchors]))[0]
    torch.testing.assert_close(logits[:30], made.model.forward(row).logits[0], atol=1e-4, rtol=1e-4)
    for group, anchor in enumerate(anchors):
        ids = [*row[0, : anchor + 1].tolist(), *[made.mask_token_id] * made.num_masks]
        alone = made.model.forward(torch.tensor([ids])).logits[0, anchor + 1 :]
        start = 30 + group * made.num_masks
        torch.testing.assert_close(logits[start : start + made.num_masks], alone, atol=1e-4, rtol=1e-4)


def test_anchors_leave_room_for_their_masks_and_prefer_answers(target: FrozenTarget) -> None:
    made = objective("pard", target)
    weights = []
    for step in range(20):
        batch = made.batch(step)
        assert batch.anchors.min() >= 0
        assert batch.anchors.max() + made.num_masks < batch.rows.ids.shape[1]
        assert all(len(set(row)) == len(row) for row in batch.anchors.tolist())
        weights.append(batch.rows.weights.gather(1, batch.anchors + 2).mean() - batch.rows.weights.mean())
    assert len(weights) == 20
    assert torch.stack(weights).mean() > 0.05


def test_the_mask_is_named_as_vllm_reads_it(target: FrozenTarget, tmp_path: Path) -> None:
    config = json.loads((pard.export(objective("pard", target), tmp_path) / "config.json").read_text())
    assert config["pard_token"] == target.tokenizer.hf.pad_token_id == 2


@both_medusas
def test_medusa_heads_begin_as_the_target(kind: str, target: FrozenTarget, tmp_path: Path) -> None:
    """Zero blocks are the identity, and the head is the target's."""
    drafter = medusa.load(medusa.export(objective(kind, target), tmp_path), target)
    token_ids = tokens(20)
    states = states_before_the_last(target, token_ids)
    assert drafter.propose(token_ids, states, 3) == [int(states.logits[0, -1].argmax())] * 3


@both_medusas
def test_medusa_is_written_as_vllm_reads_it(kind: str, target: FrozenTarget, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    medusa.export(scrambled(kind, target), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("medusa", ["MedusaModel"])
    # vLLM takes any key with "num" and "heads" for the number of heads.
    assert [key for key in config if "num" in key and "heads" in key] == ["num_heads"]
    shapes = {name: tuple(tensor.shape) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    blocks = [f"blocks.{head}.layers.{layer}" for head in range(3) for layer in range(2)]
    weights, biases = {f"{name}.weight": (32, 32) for name in blocks}, {f"{name}.bias": (32,) for name in blocks}
    assert config["medusa_fc_bias"]
    heads = ["lm_head.weight"] if config["original_lm_head"] else [f"lm_heads.{head}.weight" for head in range(3)]
    assert config["original_lm_head"] == (kind == "medusa_shared")
    assert shapes == {**weights, **biases, **dict.fromkeys(heads, (300, 32))}


@pytest.mark.parametrize("kind", ["draft_model", "pard"])
def test_proposals_end_with_the_context(kind: str, target: FrozenTarget, tmp_path: Path) -> None:
    drafter = KINDS[kind][0].load(KINDS[kind][0].export(scrambled(kind, target), tmp_path), target)
    context = target.config.max_position_embeddings
    for known, expected in ((context - 1, 2), (context, 1), (context + 1, 0)):
        token_ids = tokens(known)
        assert len(drafter.propose(token_ids, states_before_the_last(target, token_ids), 4)) == expected


def test_a_draft_of_another_vocabulary_is_refused(target: FrozenTarget, tmp_path: Path) -> None:
    config = replace(TARGET_SIZES.config(), vocab_size=200)
    weights = init_weights(expected_tensors(config), 0)
    export_checkpoint(config, weights, target.directory.parent / "tokenizer", tmp_path / "other")
    with pytest.raises(ValueError, match="200 words"):
        draft_model.load(tmp_path / "other", target)
