"""Every model that the zoo trains, by name: how to train it, check it in and describe it."""

from __future__ import annotations

import importlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from engine.checkpoint import resolve_model, shipped_zoo
from engine.errors import CheckpointError, nearest_hint
from harness.zoo.card import write_card
from harness.zoo.download import ZooError
from harness.zoo.evaluate import acceptance_figures, accuracy_figures, chosen_problems, text_task_figures
from harness.zoo.shipped import write_manifest
from harness.zoo.training.drafting import Drafter, DrafterRecipe, FrozenTarget
from harness.zoo.training.export import export_checkpoint
from harness.zoo.training.loop import train, training_cost
from harness.zoo.training.own_text import write_own_text
from harness.zoo.training.target import RECIPES as TARGET_RECIPES
from harness.zoo.training.target import TargetRecipe, train_target

__all__ = ["KINDS", "load_drafter", "recipe_of", "recipes", "train_model"]

Recipe = TargetRecipe | DrafterRecipe
KINDS = ("draft_model", "pard", "eagle", "eagle3", "medusa", "mtp", "dflash", "dspark", "eagle_own_text")


def recipes() -> dict[str, Recipe]:
    """In the order of training: targets before their drafters."""
    known: dict[str, Recipe] = dict(TARGET_RECIPES)
    for kind in KINDS:
        known |= {recipe.name: recipe for recipe in _module(kind).RECIPES}
    return known


def recipe_of(name: str) -> Recipe:
    """Raises `CheckpointError` with the nearest name for one that the zoo does not train."""
    name = name.removeprefix("zoo:")
    known = recipes()
    if name not in known:
        raise CheckpointError(f"there is no recipe {name!r}.{nearest_hint(name, known)}")
    return known[name]


def load_drafter(recipe: DrafterRecipe, directory: Path, target: FrozenTarget) -> Drafter:
    drafter: Drafter = _module(recipe.kind).load(directory, target)
    return drafter


def train_model(
    name: str,
    output: Path,
    work: Path,
    *,
    threads: int,
    say: Callable[[str], None],
    seed: int | None = None,
    start: tuple[Path, int] | None = None,
) -> Path:
    """Train `name`, or go on training it, and put it, measured and described, into `output / name`.

    The state is kept below `work`. `start` (for a target): see `train_target`; the card then says so. A drafter's
    target must lie in `output` or be in the cache. Raises `CheckpointError` for an unknown name,
    `ZooError` if the disk is full or the training was stopped; the same call then goes on.
    """
    recipe = recipe_of(name)
    if seed is not None:
        recipe = replace(recipe, seed=seed)
    torch.set_num_threads(threads)
    directory = work / (recipe.name if recipe.seed == 0 else f"{recipe.name}-seed{recipe.seed}")
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{recipe.name}-", dir=output) as scratch:
        built = Path(scratch) / recipe.name
        facts: dict[str, Any] = {"name": recipe.name, "recipe": repr(recipe)}
        if isinstance(recipe, TargetRecipe):
            figures = _make_target(recipe, directory, built, threads, say, start)
        elif start is not None:
            raise ZooError(f"only a target can begin at a checkpoint's weights; {recipe.name} is a drafter")
        else:
            figures = _make_drafter(recipe, directory, built, output, threads, say)
        if start is not None:
            facts["note"] = (
                f"These weights were made in two parts: the first {start[1]} steps, then from their bfloat16 weights, with a "
                "fresh optimizer, to the end of the recipe. The cost is that of the second part."
            )
        facts |= {"training": training_cost(directory), "figures": figures}
        write_manifest(built, facts)
        write_card(built)
        _install(built, output / recipe.name)
    say(f"{recipe.name} is in {output / recipe.name}")
    return output / recipe.name


def _make_target(
    recipe: TargetRecipe,
    directory: Path,
    built: Path,
    threads: int,
    say: Callable[[str], None],
    start: tuple[Path, int] | None,
) -> dict[str, Any]:
    objective = train_target(recipe, directory, threads=threads, start=start)
    export_checkpoint(recipe.sizes.config(), objective.parameters, directory / "tokenizer", built)
    say("measuring its accuracy")
    accuracy = accuracy_figures(str(built), chosen_problems(None, 1000), num_threads=threads)
    return {"accuracy": accuracy, "text_tasks": text_task_figures(str(built))}


def _make_drafter(
    recipe: DrafterRecipe, directory: Path, built: Path, output: Path, threads: int, say: Callable[[str], None]
) -> dict[str, Any]:
    target = FrozenTarget(_target_directory(recipe, output))
    module = _module(recipe.kind)
    if recipe.kind == "eagle_own_text":
        count = int(recipe.option("num_replies"))
        write_own_text(
            str(target.directory), directory / "own_text.jsonl", count=count, seed=recipe.seed, num_threads=threads, say=say
        )
        objective = module.objective(recipe, target, directory)
    else:
        objective = module.objective(recipe, target)
    train(objective, recipe.schedule, directory)
    module.export(objective, built)
    say("measuring its acceptance")
    return {"acceptance": acceptance_figures(recipe, built, target)}


def _target_directory(recipe: DrafterRecipe, output: Path) -> Path:
    made = output / recipe.target
    if (made / "config.json").exists():
        return made
    if recipe.target in TARGET_RECIPES and recipe.target not in shipped_zoo():
        raise ZooError(f"{recipe.name} drafts for {recipe.target}, which is not in {output}: train that first")
    return resolve_model(f"zoo:{recipe.target}")


def _install(built: Path, target: Path) -> None:
    """In place of what was there; a reader sees the old directory or the new one, whole."""
    old = built.with_name("old")
    try:
        if target.exists():
            target.rename(old)
        built.rename(target)
    except OSError as error:
        raise ZooError(f"{target} cannot be written ({error.strerror or error})") from error
    shutil.rmtree(old, ignore_errors=True)


def _module(kind: str) -> Any:
    return importlib.import_module(f"harness.zoo.training.kinds.{kind}")
