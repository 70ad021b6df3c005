"""DFlash and DSpark of the zoo: what is in their files, that a block stands alone, and that they learn."""

from __future__ import annotations

import errno
import importlib
import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from engine.checkpoint import expected_tensors
from harness.datasets.mixture import examples
from harness.zoo.download import ZooError
from harness.zoo.training import blocks
from harness.zoo.training.documents import document, document_text
from harness.zoo.training.drafting import DrafterRecipe, FrozenTarget
from harness.zoo.training.export import export_checkpoint
from harness.zoo.training.kinds.dspark import DSparkDrafter
from harness.zoo.training.loop import train
from harness.zoo.training.optimizer import Schedule
from harness.zoo.training.target import ModelSizes
from harness.zoo.training.tokenizer import train_tokenizer

KINDS = ("dflash", "dspark")
VOCAB, D, RANK = 300, 32, 6
LAYER = {
    "input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
    "self_attn.o_proj.weight", "self_attn.q_norm.weight", "self_attn.k_norm.weight", "post_attention_layernorm.weight",
    "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight",
}  # fmt: skip
BACKBONE = {"fc.weight", "hidden_norm.weight", "norm.weight"} | {f"layers.{i}.{name}" for i in (0, 1) for name in LAYER}
HEADS = {
    "markov_head.markov_w1.weight": (VOCAB, RANK),
    "markov_head.markov_w2.weight": (VOCAB, RANK),
    "confidence_head.proj.weight": (1, D + RANK),
    "confidence_head.proj.bias": (1,),
}
NAMES = {"dflash": BACKBONE, "dspark": BACKBONE | set(HEADS)}
OPTIONS = {"intermediate_size": 48, "queries": 32, "markov_rank": RANK}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> FrozenTarget:
    """Random weights, large enough that its tokens differ."""
    work = tmp_path_factory.mktemp("target")
    texts = (document_text(document([example])) for example in islice(examples(Random(0), 0.5), 100))
    train_tokenizer(texts, work / "tokenizer", vocab_size=VOCAB, context_length=512)
    sizes = ModelSizes("LlamaForCausalLM", D, 64, 3, 4, 2, 8).config()
    config = replace(sizes, vocab_size=VOCAB, max_position_embeddings=512)
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in expected_tensors(config).items()}
    return FrozenTarget(export_checkpoint(config, weights, work / "tokenizer", work / "model"))


def module(kind: str) -> Any:
    return importlib.import_module(f"harness.zoo.training.kinds.{kind}")


def fresh(kind: str, target: FrozenTarget) -> Any:
    """Before training, at tiny sizes, not compiled."""
    shipped: DrafterRecipe = module(kind).RECIPES[0]
    options = tuple((name, OPTIONS.get(name, value)) for name, value in shipped.options)
    recipe = replace(shipped, schedule=Schedule(10, warmup_steps=2), rows=2, length=160, options=options)
    return module(kind).objective(recipe, target, compile_layers=False)


def scrambled(kind: str, target: FrozenTarget) -> Any:
    """Every weight is random, so that none is without effect, and what bfloat16 can say."""
    made = fresh(kind, target)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters.values():
            parameter.copy_((torch.randn(parameter.shape, generator=generator) * 0.3).bfloat16())
    return made


def some_ids(length: int) -> list[int]:
    return torch.randint(3, VOCAB, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def drafter(made: Any, target: FrozenTarget) -> Any:
    kind = DSparkDrafter if made.recipe.kind == "dspark" else blocks.BlockDrafter
    return kind(made.net, made.net.complete(made.parameters), target, 8)


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_holds_the_names_that_vllm_asks_for(kind: str, target: FrozenTarget, tmp_path: Path) -> None:
    made = scrambled(kind, target)
    module(kind).export(made, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert set(tensors) == NAMES[kind]
    assert {t.dtype for t in tensors.values()} == {torch.bfloat16}
    assert tensors["fc.weight"].shape == (D, 3 * D)
    assert {name: tuple(tensors[name].shape) for name in HEADS if name in tensors} == (HEADS if kind == "dspark" else {})
    assert torch.equal(tensors["layers.0.self_attn.k_norm.weight"], tensors["layers.1.self_attn.k_norm.weight"])
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["speculators_model_type"] == kind
    assert config["aux_hidden_state_layer_ids"] == [1, 2, 3]
    assert (config["block_size"], config["mask_token_id"]) == (8, target.tokenizer.hf.pad_token_id)
    assert "sliding_window_non_causal" not in config
    assert config["transformer_layer_config"]["model_type"] == "qwen3"


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_drafter_proposes_what_the_trained_one_did(kind: str, target: FrozenTarget, tmp_path: Path) -> None:
    made = scrambled(kind, target)
    loaded = module(kind).load(module(kind).export(made, tmp_path), target)
    seen = set()
    for length in (1, 2, 9, 17, 25, 33, 40):
        ids = some_ids(length)
        states = target.forward(torch.tensor([ids]))
        states = replace(states, hidden=tuple(h[:, :-1] for h in states.hidden))
        drafts = loaded.propose(ids, states, 4)
        assert drafts == drafter(made, target).propose(ids, states, 4)
        assert len(drafts) == 4
        seen.update(drafts)
    assert len(seen) > 4, "drafts that hardly differ test nothing"
    assert len(loaded.propose(ids, states, 20)) == 7, "a block has no more places"


@pytest.mark.parametrize("step", [0, 1])
def test_a_block_of_a_packed_batch_is_the_block_alone(step: int, target: FrozenTarget) -> None:
    """Nothing of other blocks, of the anchor's own state or of what comes after it; the target runs on the prefix only."""
    made = scrambled("dflash", target)
    batch = made.batch(step)
    ids = batch.packed.ids
    first = ids.gather(1, batch.anchors)
    with torch.no_grad():
        features = made.net.features(target.forward(ids))
        weights = made.net.complete(made.parameters)
        packed = made.net.forward(weights, target.embedding, features, first, batch.anchors, batch.size)
    assert packed.shape == (2, 32 // batch.size, batch.size, D)
    compared = 0
    for row in range(2):
        for block, anchor in enumerate(batch.anchors[row].tolist()):
            if anchor == 0:
                continue
            states = target.forward(ids[row : row + 1, :anchor])
            alone = drafter(made, target).block_hidden(ids[row, : anchor + 1].tolist(), states, batch.size - 1)
            torch.testing.assert_close(packed[row, block, 1:], alone, atol=2e-4, rtol=1e-3)
            compared += 1
    assert compared >= 6


def test_the_anchors_stand_before_what_counts(target: FrozenTarget) -> None:
    made = fresh("dflash", target)
    for step, size in ((0, 4), (1, 8)):
        batch = made.batch(step)
        assert batch.size == size
        assert torch.equal(batch.anchors, made.batch(step).anchors)
        assert int(batch.anchors.max()) + size <= made.recipe.length
        assert all(len(set(row)) == len(row) for row in batch.anchors.tolist())
        assert bool((batch.packed.weights.gather(1, batch.anchors + 1) > 0).all())


def test_nothing_behind_the_end_of_a_document_counts(target: FrozenTarget) -> None:
    made = scrambled("dflash", target)
    batch = made.batch(1)
    batch = replace(batch, anchors=torch.arange(0, 150, 3).expand(2, -1))
    seen: list[torch.Tensor] = []
    made.masks_loss = lambda *arguments: (seen.append(arguments[4]), torch.zeros(()))[1]
    made.loss(batch)
    ends = 0
    for row in range(2):
        for block, anchor in enumerate(batch.anchors[row].tolist()):
            weights = batch.packed.weights[row, anchor + 1 : anchor + 8]
            for place in range(7):
                if bool((weights[: place + 1] > 0).all()):
                    expected = float(weights[place]) * torch.exp(torch.tensor(-place / 4)).item()
                else:
                    expected, ends = 0.0, ends + 1
                assert float(seen[0][row, block, place]) == pytest.approx(expected)
    assert ends > 0


@pytest.mark.parametrize("kind", KINDS)
def test_training_lowers_the_loss(kind: str, target: FrozenTarget, tmp_path: Path) -> None:
    made = fresh(kind, target)
    batch = made.batch(3)
    before = made.loss(batch)[0].item()
    train(made, made.recipe.schedule, tmp_path)
    assert made.loss(batch)[0].item() < before


def test_a_markov_head_of_zeros_is_dflash(target: FrozenTarget, tmp_path: Path) -> None:
    """At the start, and for the rest of the weights as they come."""
    plain, spark = fresh("dflash", target), fresh("dspark", target)
    for name, parameter in plain.parameters.items():
        assert torch.equal(parameter, spark.parameters[name]), name
    plain, spark = scrambled("dflash", target), scrambled("dspark", target)
    with torch.no_grad():
        for name, parameter in plain.parameters.items():
            spark.parameters[name].copy_(parameter)
        spark.parameters["markov_head.markov_w2.weight"].zero_()
    ids = some_ids(30)
    states = target.forward(torch.tensor([ids[:-1]]))
    assert drafter(spark, target).propose(ids, states, 7) == drafter(plain, target).propose(ids, states, 7)


def test_the_markov_head_reads_the_draft_before(target: FrozenTarget) -> None:
    made = scrambled("dspark", target)
    ids = some_ids(20)
    states = target.forward(torch.tensor([ids[:-1]]))
    rated = drafter(made, target).rated(ids, states, 5)
    weights = made.parameters
    w1, w2 = weights["markov_head.markov_w1.weight"], weights["markov_head.markov_w2.weight"]
    hidden = drafter(made, target).block_hidden(ids, states, 5)
    with torch.no_grad():
        for place, (draft, confidence) in enumerate(rated):
            before = ids[-1] if place == 0 else rated[place - 1][0]
            assert draft == int((F.linear(hidden[place], target.head) + w2 @ w1[before]).argmax())
            read = torch.cat((hidden[place], w1[before]))
            logit = weights["confidence_head.proj.weight"][0] @ read + weights["confidence_head.proj.bias"][0]
            assert confidence == pytest.approx(float(logit.sigmoid()), abs=1e-5)
    assert len({confidence for _, confidence in rated}) == 5


def test_the_confidence_head_does_not_change_the_drafts(target: FrozenTarget) -> None:
    """Its loss has no gradient for anything else."""
    gradients = []
    for scale in (0.0, 1.0):
        made = scrambled("dspark", target)
        with torch.no_grad():
            made.parameters["confidence_head.proj.weight"].mul_(scale)
        torch.autograd.backward(made.loss(made.batch(0))[0])
        gradients.append({name: p.grad for name, p in made.parameters.items()})
    for name in made.parameters:
        if not name.startswith("confidence_head"):
            assert torch.equal(gradients[0][name], gradients[1][name]), name
    assert not torch.equal(gradients[0]["confidence_head.proj.weight"], gradients[1]["confidence_head.proj.weight"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk(kind: str, target: FrozenTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(f"{blocks.__name__}.write_safetensors", full)
    with pytest.raises(ZooError, match="No space left"):
        module(kind).export(fresh(kind, target), tmp_path)
