"""Model cards, made from manifests: what a checkpoint is, how it was made, what it can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.zoo.shipped import CARD, read_manifest

__all__ = ["ABOUT", "About", "card_text", "write_card"]


@dataclass(frozen=True)
class About:
    title: str
    what: str
    layout: str  # whose checkpoint format


TINY = "Drafts for `zoo:tiny`."
HF = "Hugging Face"
ABOUT = {
    "tiny": About("a small Llama that solves word problems", "The target of the embedded suites.", HF),
    "tiny-qwen3": About("a small Qwen3 of the same training", "A second family: QK norm, head size 128.", HF),
    "tiny-draft": About("a good draft model", TINY, HF),
    "tiny-draft-small": About("a poor draft model, on purpose", TINY, HF),
    "tiny-pard": About("a draft model that proposes in one pass (PARD)", TINY, HF),
    "tiny-eagle": About("an EAGLE head", TINY, "vLLM"),
    "tiny-eagle3": About("an EAGLE-3 head", TINY, "speculators"),
    "tiny-medusa": About("Medusa heads", TINY, "vLLM"),
    "tiny-mtp": About("`tiny` with a multi-token-prediction module", "Target and drafter in one checkpoint.", "MiMo"),
    "tiny-dflash": About("a block drafter (DFlash)", TINY, "vLLM"),
    "tiny-dspark": About("a block drafter with Markov and confidence heads (DSpark)", TINY, "vLLM"),
    "smollm2-135m-eagle": About("an EAGLE head for SmolLM2-135M-Instruct", "Drafts for `zoo:smollm2-135m`.", "vLLM"),
}
OWN_DATA = (
    "Made by this repository alone: generated word problems and text tasks (`harness/datasets`), nothing downloaded. "
    "Names and a fifth of the combinations of operations are kept out of the training."
)
OWN_TEXT = "Replies that the target itself wrote to generated questions (`harness/zoo/training/own_text.py`)."


def write_card(directory: Path) -> Path:
    path = directory / CARD
    path.write_text(card_text(read_manifest(directory)), encoding="utf-8")
    return path


def card_text(manifest: Mapping[str, Any]) -> str:
    """Markdown. Every number in it comes from the manifest."""
    name, cost = manifest["name"], manifest["training"]
    about = ABOUT[name]
    lines = [
        f"# zoo:{name}: {about.title}",
        "",
        f"{about.what} Checkpoint layout: {about.layout}. Licence: Apache-2.0, like the code. "
        "For tests only: it knows nothing of the world.",
        "",
        "## Made by",
        "",
        f"    lockstep zoo train {name}",
        "",
        f"Data: {OWN_TEXT if 'smollm2' in name else OWN_DATA}",
        f"Cost: {cost['steps']} steps, {cost['tokens'] / 1e6:.1f} M tokens, {cost['seconds'] / 60:.0f} minutes.",
        "Recipe:",
        "",
        f"    {manifest['recipe']}",
        "",
        *([manifest["note"], ""] if "note" in manifest else []),
    ]
    for title, figures in manifest["figures"].items():
        lines += _table(title, figures)
    return "\n".join(lines)


def _table(title: str, figures: Mapping[str, Any]) -> list[str]:
    if title == "acceptance":
        rows = [
            f"| {name} | {f['length']:.2f} | {f['interval'][0]:.2f}–{f['interval'][1]:.2f} | "
            + " / ".join(f"{p:.2f}" for p in f["per_position"])
            + f" | {f['drafts']} | {f['n']} |"
            for name, f in figures.items()
        ]
        return [
            "## Acceptance",
            "",
            "Greedy, 3 drafts, offline simulation along the target's own answers; the length has the bonus token in it.",
            "",
            "| category | length | 95 % | by position | drafts | requests |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    heading = "Accuracy on the fixed test split" if title == "accuracy" else "Exact answers to text tasks"
    return [
        f"## {heading}",
        "",
        "| part | right | 95 % | n |",
        "|---|---|---|---|",
        *(
            f"| {name.replace('_', ' ')} | {f['value']:.1%} | "
            + (f"{f['interval'][0]:.1%}–{f['interval'][1]:.1%}" if "interval" in f else "")
            + f" | {f['n']} |"
            for name, f in figures.items()
        ),
        "",
    ]
