"""Muon for the matrices, Adam for the embedding and the norms, and a schedule that depends on the step alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Optimizer", "Schedule", "orthogonalized"]

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


@dataclass(frozen=True)
class Schedule:
    """Warm-up, flat, then linear to 0; from each of `restarts` on once more, from its share of the rates and never flat.

    `muon_lr` is for updates whose singular values are about 1, `adam_lr` for the rest.
    """

    num_steps: int
    warmup_steps: int = 60
    flat_until: float = 0.35
    muon_lr: float = 0.02
    adam_lr: float = 3e-3
    restarts: tuple[tuple[int, float], ...] = ()  # (step, share of the rates), in order

    def factor(self, step: int) -> float:
        """What the learning rates are multiplied with at `step` (from 0)."""
        rounds = ((0, 1.0), *self.restarts)
        index = sum(step >= first for first, _ in self.restarts)
        first, height = rounds[index]
        end = rounds[index + 1][0] if index + 1 < len(rounds) else self.num_steps
        start = float(first) if index else self.flat_until * end
        warm = min(1.0, (step - first + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        falling = (end - step) / (end - start) if step > start else 1.0
        return height * min(warm, max(0.0, falling))


def orthogonalized(x: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """x [N, rows, columns] with every singular value moved to about 1, by Newton-Schulz steps on the smaller side (Muon)."""
    a, b, c = NEWTON_SCHULZ
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = torch.bmm(x, x.transpose(1, 2))
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.transpose(1, 2) if tall else x


class Optimizer:
    """Steps `parameters` (name -> leaf, float32) from their gradients, in place.

    Matrices other than embeddings and output layers go by Muon, equal shapes together. One parameter may be without a gradient
    in a step only if all are in every step of it, so a parameter that no loss reaches must not be passed.
    """

    def __init__(
        self, parameters: Mapping[str, torch.Tensor], schedule: Schedule, *, momentum: float = 0.95, eps: float = 1e-10
    ) -> None:
        self.schedule = schedule
        self._momentum, self._eps = momentum, eps
        self._groups: dict[tuple[int, ...], list[torch.Tensor]] = {}
        self._adam: list[torch.Tensor] = []
        for name, parameter in parameters.items():
            if parameter.ndim == 2 and "embed_tokens" not in name and "lm_head" not in name:
                self._groups.setdefault(tuple(parameter.shape), []).append(parameter)
            else:
                self._adam.append(parameter)
        self._velocity = [torch.zeros(len(group), *shape) for shape, group in self._groups.items()]
        self._mean = [torch.zeros_like(p, requires_grad=False) for p in self._adam]
        self._square = [torch.zeros_like(p, requires_grad=False) for p in self._adam]

    @torch.no_grad()
    def step(self, step: int) -> None:
        """Apply the gradients and forget them; `step` counts from 0."""
        factor = self.schedule.factor(step)
        for velocity, (shape, group) in zip(self._velocity, self._groups.items(), strict=True):
            gradient = torch.stack([_gradient(p) for p in group])
            velocity.lerp_(gradient, 1 - self._momentum)
            update = orthogonalized(gradient.lerp_(velocity, self._momentum))
            scale = max(1.0, shape[0] / shape[1]) ** 0.5
            for parameter, delta in zip(group, update, strict=True):
                parameter.add_(delta, alpha=-self.schedule.muon_lr * factor * scale)
        self._adam_step(step, self.schedule.adam_lr * factor)
        for group in (*self._groups.values(), self._adam):
            for parameter in group:
                parameter.grad = None

    def _adam_step(self, step: int, lr: float, betas: tuple[float, float] = (0.9, 0.95)) -> None:
        gradients = [_gradient(p) for p in self._adam]
        torch._foreach_lerp_(self._mean, gradients, 1 - betas[0])
        torch._foreach_mul_(self._square, betas[1])
        torch._foreach_addcmul_(self._square, gradients, gradients, 1 - betas[1])
        corrections = 1 - betas[0] ** (step + 1), 1 - betas[1] ** (step + 1)
        for parameter, mean, square in zip(self._adam, self._mean, self._square, strict=True):
            parameter.addcdiv_(mean, (square / corrections[1]).sqrt_().add_(self._eps), value=-lr / corrections[0])

    def state(self) -> dict[str, list[torch.Tensor]]:
        return {"velocity": self._velocity, "mean": self._mean, "square": self._square}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state()` gave. `ValueError` if it is of other parameters."""
        for name, mine in self.state().items():
            theirs: list[torch.Tensor] = state[name]
            if [t.shape for t in theirs] != [t.shape for t in mine]:
                raise ValueError(f"the optimizer's state ({name}) is of other parameters")
            for target, source in zip(mine, theirs, strict=True):
                target.copy_(source)


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None, "a parameter without a gradient: it takes no part in the loss"
    return parameter.grad
