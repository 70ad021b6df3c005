"""A module for multi-token prediction inside of the target's own checkpoint, in MiMo's layout (arXiv 2505.07608).

As vLLM runs it (`mimo_mtp.py`): `input_proj` of the target's last state (before its last norm) and the token's embedding, each
normed, then one Qwen2 layer and a norm, whose output is both what the target's LM head reads and the next state. The embedding
at position 0 counts as zero.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from engine.checkpoint import CheckpointError, DrafterFile, layer_tensors, resolve_model
from engine.drafters.base import AcceptedStep, Target
from engine.drafters.chain import ChainDrafter, layer_loader
from engine.layer import Batch, Layer

__all__ = ["MtpDrafter"]

PREFIX = "model.mtp_layers.0."


class MtpDrafter(ChainDrafter):
    method: ClassVar[str] = "mtp"
    option_names: ClassVar[tuple[str, ...]] = ("max_model_len", "draft_tensor_parallel_size")

    def load_weights(self, target: Target) -> None:
        self.config = config = target.model.config
        if not config.num_mtp_layers:
            raise CheckpointError(
                f"{target.model_name}: speculative method 'mtp' needs a target with a module for multi-token prediction "
                "(MiMo's layout, such as zoo:tiny-mtp); this checkpoint has none"
            )
        file = DrafterFile(resolve_model(target.model_name))
        size = config.hidden_size
        names = ("token_layernorm", "hidden_layernorm", "final_layernorm")
        file.require(
            {f"{PREFIX}{name}.weight": (size,) for name in names}
            | {f"{PREFIX}input_proj.weight": (size, 2 * size), **layer_tensors(config, PREFIX)}
        )
        loader = layer_loader(file, target)
        self.token_norm, self.hidden_norm, self.final_norm = (loader.vector(f"{PREFIX}{name}.weight") for name in names)
        self.input_norm = loader.vector(f"{PREFIX}input_layernorm.weight")
        self.input_proj = loader.packed(f"{PREFIX}input_proj.weight")
        self.layer = Layer(loader, PREFIX, config)
        self.layer_ids = (config.num_layers,)

    def first_states(self, step: AcceptedStep, places: torch.Tensor) -> torch.Tensor:
        return step.hidden.layers[0][places]

    def compute(self, embeds: torch.Tensor, carried: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        kernels, eps = self.kernels, self.config.rms_norm_eps
        embeds[batch.positions == 0] = 0
        both = (kernels.rms_norm(carried, self.hidden_norm, eps), kernels.rms_norm(embeds, self.token_norm, eps))
        residual = kernels.linear(torch.cat(both, dim=1), self.input_proj)
        x = kernels.rms_norm(residual, self.input_norm, eps)
        output = kernels.add_rms_norm(self.run_layer(x, residual, batch), residual, self.final_norm, eps)
        return output, output
