"""DSpark (arXiv 2607.05147) in the format of the speculators library, as vLLM reads it (`qwen3_dspark.py`, `algos.py`).

DFlash's block, and two small heads. The Markov head adds W2 W1[t] to the logits of a place, where t is the token before it, so
that a draft agrees with the one before it; W2 starts at 0, which is DFlash. The confidence head estimates from a place's hidden
state and W1[t] the probability that its draft is accepted if those before it are. vLLM runs the head type `vanilla` only.

Of the two layouts this is `sample_from_anchor: false`, in which the masks stand at DFlash's places and the anchor predicts
nothing, so that both drafters are one network. In training t is the true token: a draft counts only where those before it were
right. The confidence head learns 1 - TV(draft, target) by binary cross entropy, as in the speculators library, but its gradient
stops at what it reads: the drafts are those of a drafter without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from harness.zoo.training.blocks import (
    BlockDrafter,
    BlockNet,
    BlockObjective,
    Tensors,
    block_config,
    export_block,
    net_arguments,
    read_config,
)
from harness.zoo.training.drafting import DrafterRecipe, FrozenTarget, soft_cross_entropy
from harness.zoo.training.optimizer import Schedule
from harness.zoo.training.transformer import Output, load_weights

__all__ = ["RECIPES", "DSparkDrafter", "export", "load", "objective"]

W1, W2 = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
CONFIDENCE, CONFIDENCE_BIAS = "confidence_head.proj.weight", "confidence_head.proj.bias"
RECIPES = (
    DrafterRecipe(
        "tiny-dspark",
        "dspark",
        Schedule(num_steps=600, warmup_steps=20),
        options=(
            ("layers", 2),
            ("intermediate_size", 256),
            ("block_sizes", "4,8"),
            ("queries", 256),
            ("gamma", 4.0),
            ("markov_rank", 64),
        ),
    ),
)


class DSparkNet(BlockNet):
    markov_rank = 0

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        d, vocab, rank = self.config.hidden_size, self.config.vocab_size, self.markov_rank
        heads = {W1: (vocab, rank), W2: (vocab, rank), CONFIDENCE: (1, d + rank), CONFIDENCE_BIAS: (1,)}
        return {**super().shapes, **heads}

    def initial(self, seed: int) -> dict[str, torch.Tensor]:
        """As DFlash's, to the bit, and heads that do nothing yet."""
        weights = super().initial(seed)
        with torch.no_grad():
            for name in (W2, CONFIDENCE, CONFIDENCE_BIAS):
                weights[name].zero_()
        return weights

    def confidence(self, weights: Tensors, hidden: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """Logits [...] that the drafts after the tokens `previous` [...] are accepted; hidden [..., D]."""
        read = torch.cat((hidden, F.embedding(previous, weights[W1])), dim=-1)
        return F.linear(read, weights[CONFIDENCE], weights[CONFIDENCE_BIAS])[..., 0]


def markov_bias(weights: Tensors, previous: torch.Tensor) -> torch.Tensor:
    """What the tokens `previous` [...] add to the logits after them: [..., V]."""
    return F.linear(F.embedding(previous, weights[W1]), weights[W2])


class DSparkObjective(BlockObjective):
    net: DSparkNet

    def masks_loss(
        self,
        parameters: Tensors,
        hidden: torch.Tensor,
        previous: torch.Tensor,
        target_logits: torch.Tensor,
        counts: torch.Tensor,
    ) -> torch.Tensor:
        """As DFlash's with the Markov head's bias, and the confidence head's loss."""
        logits = F.linear(hidden, self.target.head) + markov_bias(parameters, previous)
        with torch.no_grad():
            accepted = torch.minimum(logits.softmax(-1), target_logits.softmax(-1)).sum(-1)
        confidence = self.net.confidence({**parameters, W1: parameters[W1].detach()}, hidden.detach(), previous)
        losses = F.binary_cross_entropy_with_logits(confidence, accepted, reduction="none")
        return soft_cross_entropy(logits, target_logits, counts) + (losses * counts).sum() / counts.sum()


class DSparkDrafter(BlockDrafter):
    net: DSparkNet

    def propose(self, token_ids: Sequence[int], states: Output, num_drafts: int) -> list[int]:
        """See `Drafter.propose`; not more than the block has masks."""
        return [draft for draft, _ in self.rated(token_ids, states, num_drafts)]

    @torch.no_grad()
    def rated(self, token_ids: Sequence[int], states: Output, num_drafts: int) -> list[tuple[int, float]]:
        """Each draft, the most likely after the one before it, and the probability that it is accepted if those are."""
        hidden = self.block_hidden(token_ids, states, num_drafts)
        base = F.linear(hidden, self.target.head)
        drafts: list[tuple[int, float]] = []
        previous = torch.tensor(token_ids[-1])
        for place in range(len(hidden)):
            confidence = self.net.confidence(self.weights, hidden[place], previous).sigmoid()
            previous = (base[place] + markov_bias(self.weights, previous)).argmax()
            drafts.append((int(previous), float(confidence)))
        return drafts


def _net(target: FrozenTarget, arguments: dict[str, Any], markov_rank: int) -> DSparkNet:
    net = DSparkNet(target.config, **arguments)
    net.markov_rank = markov_rank
    return net


def objective(recipe: DrafterRecipe, target: FrozenTarget, *, compile_layers: bool = True) -> DSparkObjective:
    """For `loop.train`."""
    net = _net(target, net_arguments(recipe, target), recipe.option("markov_rank"))
    return DSparkObjective(recipe, target, net, compile_layers=compile_layers)


def export(objective: DSparkObjective, directory: Path) -> Path:
    """Write config.json and model.safetensors (bfloat16); `directory` comes back. `ZooError` if the disk does not take it."""
    config = {
        **block_config(objective, "dspark", "DSparkDraftModel"),
        "markov_rank": objective.net.markov_rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }
    return export_block(objective, config, directory)


def load(directory: Path, target: FrozenTarget) -> DSparkDrafter:
    """The drafter that `export` wrote, widened to float32."""
    config, arguments = read_config(directory)
    net = _net(target, arguments, config["markov_rank"])
    return DSparkDrafter(net, load_weights(directory, net.shapes), target, config["block_size"])
