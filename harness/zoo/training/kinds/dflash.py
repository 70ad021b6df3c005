"""DFlash (arXiv 2602.06036) in the format of the speculators library, as vLLM reads it (`qwen3_dflash.py`, `algos.py`).

See `blocks`. The file holds neither embedding nor output matrix: they are the target's. The mask is the target's padding token,
whose frozen embedding marks the places to fill in. As in the speculators library's training, blocks stand at random anchors
and the place j of a block weighs exp(-(j - 1) / gamma).
"""

from __future__ import annotations

from pathlib import Path

from harness.zoo.training.blocks import (
    BlockDrafter,
    BlockNet,
    BlockObjective,
    block_config,
    export_block,
    net_arguments,
    read_config,
)
from harness.zoo.training.drafting import DrafterRecipe, FrozenTarget
from harness.zoo.training.optimizer import Schedule
from harness.zoo.training.transformer import load_weights

__all__ = ["RECIPES", "export", "load", "objective"]

RECIPES = (
    DrafterRecipe(
        "tiny-dflash",
        "dflash",
        Schedule(num_steps=600, warmup_steps=20),
        options=(("layers", 2), ("intermediate_size", 256), ("block_sizes", "4,8"), ("queries", 256), ("gamma", 4.0)),
    ),
)


def objective(recipe: DrafterRecipe, target: FrozenTarget, *, compile_layers: bool = True) -> BlockObjective:
    """For `loop.train`."""
    net = BlockNet(target.config, **net_arguments(recipe, target))
    return BlockObjective(recipe, target, net, compile_layers=compile_layers)


def export(objective: BlockObjective, directory: Path) -> Path:
    """Write config.json and model.safetensors (bfloat16); `directory` comes back. `ZooError` if the disk does not take it."""
    return export_block(objective, block_config(objective, "dflash", "DFlashSpeculator"), directory)


def load(directory: Path, target: FrozenTarget) -> BlockDrafter:
    """The drafter that `export` wrote, widened to float32."""
    config, arguments = read_config(directory)
    net = BlockNet(target.config, **arguments)
    return BlockDrafter(net, load_weights(directory, net.shapes), target, config["block_size"])
