"""Drafters that do not fit are refused when the engine is built, with what does not fit; reduced vocabularies work."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine import LLM, CheckpointError, SamplingParams
from engine.checkpoint import resolve_model
from harness.datasets.word_problems import fixed_split
from harness.prompts import prompt_text
from harness.zoo.training.drafting import FrozenTarget

TARGET = "zoo:tiny"
KINDS = ("draft_model", "eagle", "eagle3", "medusa", "dflash", "dspark")
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], None]


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An untrained drafter of each kind for the target."""
    target = FrozenTarget(resolve_model(TARGET))
    made = {}
    for kind in KINDS:
        module = importlib.import_module(f"harness.zoo.training.kinds.{kind}")
        made[kind] = tmp_path_factory.mktemp("drafters") / kind
        module.export(module.objective(module.RECIPES[0], target), made[kind])
    return made


def changed(source: Path, directory: Path, change: Change) -> Path:
    """A copy whose config and tensors are changed."""
    shutil.copytree(source, directory)
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(directory / "model.safetensors")
    change(config, tensors)
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
    return directory


def open_with(kind: str, directory: Path, **options: Any) -> LLM:
    config = {"method": kind, "model": str(directory), "num_speculative_tokens": 3, **options}
    return LLM(TARGET, speculative_config=config, num_threads=1, max_model_len=512, max_num_seqs=4)


def other_hidden_size(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    config["hidden_size"] = 64


def other_layer_size(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    config["transformer_layer_config"]["hidden_size"] = 64
    config["target_hidden_size"] = 64


def other_vocabulary(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    (config.get("transformer_layer_config") or config)["vocab_size"] = 2048


def truncated(name: str) -> Change:
    def change(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = tensors[name][:-1]

    return change


def without(name: str) -> Change:
    def change(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        del tensors[name]

    return change


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("eagle", other_hidden_size, "this drafter is for hidden states of 64, but the target has 128"),
        ("medusa", other_hidden_size, "this drafter is for hidden states of 64, but the target has 128"),
        ("eagle3", other_layer_size, "this drafter is for hidden states of 64, but the target has 128"),
        ("dflash", other_layer_size, "this drafter is for hidden states of 64, but the target has 128"),
        *[(kind, other_vocabulary, "a vocabulary of 2048, but the target has 1024") for kind in KINDS if kind != "draft_model"],
        ("medusa", truncated("lm_heads.0.weight"), r"'lm_heads.0.weight' has the shape \[1023, 128\].* ask for \[1024, 128\]"),
        ("eagle3", truncated("lm_head.weight"), r"'lm_head.weight' has the shape \[1023, 128\].* ask for \[1024, 128\]"),
        ("eagle", without("fc.weight"), r"tensor 'fc.weight' \[128, 256\] is missing"),
        ("dspark", without("markov_head.markov_w1.weight"), "'markov_head.markov_w1.weight' .* is missing"),
    ],
)
def test_what_does_not_fit_is_refused(
    kind: str, change: Change, message: str, drafters: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_with(kind, changed(drafters[kind], tmp_path / kind, change))


def test_a_draft_model_of_another_vocabulary_is_refused(toy_model: str) -> None:
    with pytest.raises(ValueError, match="use a draft model with the target's tokenizer"):
        open_with("draft_model", Path(toy_model))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("medusa", {"num_speculative_tokens": 4}, "there are 3 heads"),
        ("dflash", {"num_speculative_tokens": 8}, "room for 7 proposals"),
        ("draft_model", {"parallel_drafting": True}, "'pard_token'"),
        ("eagle", {"model": "no/such/directory/here"}, "neither a directory|no such directory"),
    ],
)
def test_what_a_drafter_cannot_do_is_refused(
    kind: str, options: dict[str, Any], message: str, drafters: dict[str, Path]
) -> None:
    with pytest.raises(ValueError, match=message):
        open_with(kind, drafters[kind], **options)


def test_mtp_needs_a_target_with_the_module() -> None:
    with pytest.raises(ValueError, match="needs a target with a module for multi-token prediction"):
        LLM(TARGET, speculative_config={"method": "mtp", "num_speculative_tokens": 2}, num_threads=1)


def test_a_reduced_vocabulary_with_a_map(drafters: dict[str, Path], tmp_path: Path) -> None:
    """Every third id, in an order of its own: what is proposed is one of them, and the text stays the target's."""
    known = torch.randperm(1024, generator=torch.Generator().manual_seed(3))[:300]

    def reduce(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        config["draft_vocab_size"] = len(known)
        tensors["lm_head.weight"] = tensors["lm_head.weight"][known]
        tensors["d2t"] = known - torch.arange(len(known))

    prompts = [prompt_text(problem.question) for problem in fixed_split()[:3]]
    with LLM(TARGET, num_threads=1, max_model_len=512) as llm:
        plain = [o.outputs[0].token_ids for o in llm.generate(prompts, GREEDY, use_tqdm=False)]
    with open_with("eagle3", changed(drafters["eagle3"], tmp_path / "reduced", reduce)) as llm:
        drafter = llm._executor._runner.drafter  # type: ignore[attr-defined]
        proposed: set[int] = set()
        real = drafter.propose

        def propose(context: Any) -> Any:
            drafts, counts = real(context)
            proposed.update(int(t) for row, count in zip(drafts, counts, strict=True) for t in row[:count])
            return drafts, counts

        drafter.propose = propose
        assert [o.outputs[0].token_ids for o in llm.generate(prompts, GREEDY, use_tqdm=False)] == plain
    assert proposed
    assert proposed <= set(known.tolist())


def test_a_map_that_leads_outside_is_refused(drafters: dict[str, Path], tmp_path: Path) -> None:
    def reduce(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        config["draft_vocab_size"] = 10
        tensors["lm_head.weight"] = tensors["lm_head.weight"][:10]
        tensors["d2t"] = torch.full((10,), 1020)

    with pytest.raises(CheckpointError, match="d2t leads outside"):
        open_with("eagle3", changed(drafters["eagle3"], tmp_path / "outside", reduce))
