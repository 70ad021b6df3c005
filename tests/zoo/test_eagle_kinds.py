"""EAGLE-1, EAGLE-3 and MTP of the zoo: what is in their files, that a chain is what it is said to be, that they learn."""

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
from safetensors.torch import load_file, save_file

from engine.checkpoint import ModelConfig, expected_tensors, open_checkpoint
from harness.datasets.mixture import examples
from harness.zoo.download import ZooError
from harness.zoo.training import chain
from harness.zoo.training.chain import ChainObjective, unroll
from harness.zoo.training.documents import document, document_text
from harness.zoo.training.drafting import DrafterRecipe, FrozenTarget, soft_cross_entropy
from harness.zoo.training.export import export_checkpoint
from harness.zoo.training.loop import train
from harness.zoo.training.optimizer import Schedule
from harness.zoo.training.target import ModelSizes
from harness.zoo.training.tokenizer import train_tokenizer

KINDS = ("eagle", "eagle3", "mtp")
VOCAB, D = 300, 32
LAYER = {
    "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.o_proj.weight",
    "post_attention_layernorm.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight",
}  # fmt: skip
BIASES = {f"self_attn.{name}_proj.bias" for name in "qkv"}
NAMES = {
    "eagle": {"fc.weight"} | {f"layers.0.{name}" for name in LAYER},
    "eagle3": {"fc.weight", "norm.weight", "lm_head.weight"}
    | {f"layers.0.{name}" for name in LAYER | {"input_layernorm.weight", "hidden_norm.weight"}},
    "mtp": {
        f"model.mtp_layers.0.{name}.weight" for name in ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
    }
    | {f"model.mtp_layers.0.{name}" for name in LAYER | BIASES | {"input_layernorm.weight"}},
}


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


def recipe(kind: str, num_steps: int = 10) -> DrafterRecipe:
    shipped: DrafterRecipe = module(kind).RECIPES[0]
    return replace(shipped, schedule=Schedule(num_steps, warmup_steps=2), rows=2, length=160)


def objective(kind: str, target: FrozenTarget) -> ChainObjective:
    """Not trained; every weight is random, so that none is without effect."""
    made: ChainObjective = module(kind).objective(recipe(kind), target, compile_layers=False)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters.values():
            parameter.copy_((torch.randn(parameter.shape, generator=generator) * 0.3).bfloat16())
    return made


def some_ids(length: int) -> list[int]:
    return torch.randint(3, VOCAB, (length,), generator=torch.Generator().manual_seed(length)).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_holds_the_names_that_vllm_asks_for(kind: str, target: FrozenTarget, tmp_path: Path) -> None:
    made = objective(kind, target)
    module(kind).export(made, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    of_target = set(expected_tensors(_as_qwen2(target.config))) if kind == "mtp" else set()
    assert set(tensors) == NAMES[kind] | of_target
    assert {t.dtype for t in tensors.values()} == {torch.bfloat16}
    assert set(made.parameters) == NAMES[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_drafter_proposes_what_the_trained_one_did(kind: str, target: FrozenTarget, tmp_path: Path) -> None:
    made = objective(kind, target)
    trained = chain.ChainDrafter(made.net, made.parameters, target)
    loaded = module(kind).load(module(kind).export(made, tmp_path), target)
    seen = set()
    for length in (2, 3, 17, 40):
        ids = some_ids(length)
        states = target.forward(torch.tensor([ids[:-1]]))
        drafts = loaded.propose(ids, states, 4)
        assert drafts == trained.propose(ids, states, 4)
        assert len(drafts) == 4
        seen.update(drafts)
    assert len(seen) > 4, "drafts that hardly differ test nothing"
    assert loaded.propose(some_ids(1), target.forward(torch.zeros(1, 1, dtype=torch.long)), 4) == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_chain_is_the_explicit_unroll(kind: str, target: FrozenTarget) -> None:
    """Every chain of the training, one by one: the whole prefix anew for each step, without the sharing between slots."""
    made = objective(kind, target)
    net, weights, num_steps = made.net, made.parameters, 3
    ids = torch.tensor([some_ids(14)])
    states = target.forward(ids)
    with torch.no_grad():
        together = unroll(net, weights, target.embedding, ids, net.features(states), num_steps)
        count = 0
        for slot in range(ids.shape[1] - 1 - num_steps):
            hidden = net.start(weights, net.features(states)[:, : slot + 1])
            for step in range(num_steps):
                embeds = F.embedding(ids[:, 1 : slot + 2 + step], target.embedding)
                state, output = net.step(weights, embeds, hidden, 0, [])
                for name, mine, theirs in (("state", state, together[step][0]), ("hidden", output, together[step][1])):
                    torch.testing.assert_close(mine[:, -1], theirs[:, slot], atol=1e-4, rtol=1e-4, msg=f"{name} {slot} {step}")
                    count += 1
                hidden = torch.cat((hidden, output[:, -1:]), dim=1)
        assert count == 10 * 3 * 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_proposals_are_the_chain_over_its_own_tokens(kind: str, target: FrozenTarget) -> None:
    made = objective(kind, target)
    ids = some_ids(12)
    states = target.forward(torch.tensor([ids[:-1]]))
    drafts = chain.ChainDrafter(made.net, made.parameters, target).propose(ids, states, 3)
    head = target.head if made.net.head_name is None else made.parameters[made.net.head_name]
    path = torch.tensor([[*ids, *drafts]])
    features = made.net.features(target.forward(path))
    with torch.no_grad():
        outputs = unroll(made.net, made.parameters, target.embedding, path, features, 3)
        assert [int(F.linear(state[0, len(ids) - 2], head).argmax()) for state, _ in outputs] == drafts


@pytest.mark.parametrize("kind", KINDS)
def test_training_lowers_the_loss(kind: str, target: FrozenTarget, tmp_path: Path) -> None:
    made = module(kind).objective(recipe(kind), target, compile_layers=False)
    batch = made.batch(3)
    assert torch.equal(batch.packed.ids, made.batch(3).packed.ids)
    before = made.loss(batch)[0].item()
    train(made, made.recipe.schedule, tmp_path)
    assert made.loss(batch)[0].item() < before


def test_the_mtp_file_is_still_the_target(target: FrozenTarget, tmp_path: Path) -> None:
    """As Qwen2 without the module: the target's own bits, and biases of zero."""
    module("mtp").export(objective("mtp", target), tmp_path)
    tensors = {name: t for name, t in load_file(tmp_path / "model.safetensors").items() if "mtp_layers" not in name}
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["architectures"], config["num_nextn_predict_layers"]) == (["MiMoForCausalLM"], 1)
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["Qwen2ForCausalLM"]}))
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config == _as_qwen2(target.config)
    for name in expected_tensors(checkpoint.config):
        expected = target.model.weights.get(name, torch.zeros(()))
        assert torch.equal(checkpoint.tensor(name).float(), expected.expand(checkpoint.tensor(name).shape)), name
    assert (tmp_path / "tokenizer.json").read_bytes() == (target.directory / "tokenizer.json").read_bytes()


def test_the_eagle3_config_is_of_the_speculators_format(target: FrozenTarget, tmp_path: Path) -> None:
    module("eagle3").export(objective("eagle3", target), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["speculators_model_type"] == "eagle3"
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3]
    assert config["transformer_layer_config"]["num_hidden_layers"] == 1
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk(kind: str, target: FrozenTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(
        "harness.zoo.training.kinds.mtp.write_safetensors" if kind == "mtp" else f"{chain.__name__}.write_safetensors", full
    )
    with pytest.raises(ZooError, match="No space left"):
        module(kind).export(objective(kind, target), tmp_path)


@pytest.fixture
def own_text(tmp_path: Path) -> Path:
    rng = Random(0)
    lines = [
        json.dumps({"prompt": some_ids(rng.randint(4, 9)), "reply": some_ids(rng.randint(10, 20)) if i else []})
        for i in range(11)
    ]
    (tmp_path / "own_text.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def own_text_objective(target: FrozenTarget, directory: Path) -> Any:
    kind = module("eagle_own_text")
    options = (("num_replies", 11), ("steps", 2), ("regression", 0.5), ("noise", 0.1), ("head_places", 12))
    return kind.objective(
        DrafterRecipe("own", "eagle_own_text", Schedule(10, warmup_steps=2), rows=2, options=options), target, directory
    )


def test_states_of_own_text_are_kept(target: FrozenTarget, own_text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = module("eagle_own_text")
    monkeypatch.setattr(kind, "SHARD", 4)
    made = own_text_objective(target, own_text)
    files = sorted((own_text / "states").iterdir())
    assert len(files) == 3
    files[1].unlink()  # as if interrupted
    computed: list[int] = []
    one_text = kind._normed

    def counted(frozen: FrozenTarget, ids: list[int]) -> Any:
        computed.append(len(ids))
        return one_text(frozen, ids)

    monkeypatch.setattr(kind, "_normed", counted)
    again = own_text_objective(target, own_text)
    assert len(computed) == 4
    assert len(made._texts) == 10, "a text without a reply teaches nothing"
    for first, second in zip(made._texts, again._texts, strict=True):
        assert torch.equal(first.normed, second.normed)
        torch.testing.assert_close(first.normed.float(), target.forward(first.ids[None]).normed[0], atol=0.05, rtol=0.01)
    (own_text / "own_text.jsonl").write_text(json.dumps({"prompt": [3, 4], "reply": [5] * 9}) + "\n")
    with pytest.raises(ZooError, match="another text"):
        own_text_objective(target, own_text)


def test_the_loss_of_own_text_is_of_replies(target: FrozenTarget, own_text: Path) -> None:
    made = own_text_objective(target, own_text)
    batch = made.batch(1)
    assert torch.equal(batch.noise, made.batch(1).noise)
    per_pass = len(made._texts) // 2
    seen = [tuple(ids[ids > 0].tolist()) for step in range(per_pass) for ids in made.batch(step).ids]
    assert sorted(seen) == sorted(tuple(text.ids.tolist()) for text in made._texts), "each text once in a pass"
    for step, places in enumerate(batch.places):
        counts = batch.counts[:, 2 + step : batch.counts.shape[1] - 1 - 2 + 2 + step].flatten()
        assert 0 < len(places) <= 12
        assert bool((counts[places] == 1).all())


def test_the_gradient_through_the_whole_vocabulary(target: FrozenTarget) -> None:
    generator = torch.Generator().manual_seed(0)
    state, wanted = torch.randn(2, 5, D, generator=generator)
    ours, plain = state.clone().requires_grad_(), state.clone().requires_grad_()
    loss = module("eagle_own_text")._head_loss(ours, wanted, target.head)
    reference = soft_cross_entropy(F.linear(plain, target.head), F.linear(wanted, target.head), torch.ones(5))
    torch.autograd.backward(loss * 3)
    torch.autograd.backward(reference * 3)
    torch.testing.assert_close(loss, reference)
    torch.testing.assert_close(ours.grad, plain.grad)


def test_own_text_trains_the_eagle_of_the_same_file(target: FrozenTarget, own_text: Path) -> None:
    made = own_text_objective(target, own_text)
    before = made.loss(made.batch(0))[0].item()
    train(made, made.recipe.schedule, own_text / "training")
    assert made.loss(made.batch(0))[0].item() < before
    loaded = module("eagle_own_text").load(module("eagle_own_text").export(made, own_text / "out"), target)
    assert set(load_file(own_text / "out" / "model.safetensors")) == NAMES["eagle"]
    ids = some_ids(9)
    assert len(loaded.propose(ids, target.forward(torch.tensor([ids[:-1]])), 3)) == 3


def _as_qwen2(config: ModelConfig) -> ModelConfig:
    return replace(config, architecture="Qwen2ForCausalLM", qkv_bias=True)
