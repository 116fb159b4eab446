"""Muon: momentum whose every direction counts alike, for the matrices inside a network; Adam for the rest.

Keller Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024). A convolution's weight is a
matrix with a row for each output channel. torch.optim.Muon takes two dimensions only and computes in bf16, which
processors without such instructions do slowly; here it is fp32, and on the small square matrix of inner products
(rows x rows), which takes 0.4 of the operations for ResNet-18.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# x -> a x + b x^3 + c x^5, five times, takes every singular value in (0, 1] to between 0.7 and 1.2.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NUM_ITERATIONS = 5
TINY = 1e-7


class Muon(torch.optim.Optimizer):
    """Groups with is_hidden are turned orthogonal; of the others the rate is group["rate_share"] of the given one."""

    def __init__(
        self, groups: list[dict[str, Any]], momentum: float, betas: tuple[float, float], epsilon: float
    ) -> None:
        super().__init__(groups, {"lr": 0.0, "momentum": momentum, "betas": betas, "epsilon": epsilon})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            update = self._orthogonal if group["is_hidden"] else self._adam
            for parameter in group["params"]:
                if parameter.grad is not None:
                    update(parameter, parameter.grad, group)

    def _orthogonal(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        share = group["momentum"]
        buffer = state["momentum_buffer"].lerp_(gradient, 1 - share)
        # Nesterov's: the gradient once more, as if the momentum had already been followed.
        direction = orthogonal(gradient.lerp(buffer, share).flatten(1)).view_as(parameter)
        rows, columns = parameter.shape[0], parameter[0].numel()
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(direction, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)

    def _adam(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        (beta1, beta2), rate = group["betas"], group["lr"] * group["rate_share"]
        state["step"] += 1
        count = float(state["step"])
        mean = state["exp_avg"].lerp_(gradient, 1 - beta1)
        square = state["exp_avg_sq"].lerp_(gradient.square(), 1 - beta2)
        size = square.sqrt().div_((1 - beta2**count) ** 0.5).add_(group["epsilon"])
        parameter.mul_(1 - rate * group["weight_decay"])
        parameter.addcdiv_(mean, size, value=-rate / (1 - beta1**count))


def orthogonal(matrix: Tensor) -> Tensor:
    """Nearly the closest matrix whose singular values are all one.

    Every iteration multiplies by a polynomial of X X^T. All of them commute, so they are multiplied with each other,
    on the side that has fewer rows, and X is touched twice only.
    """
    x = matrix.float()
    x = x if x.shape[0] <= x.shape[1] else x.T
    x = x / (x.norm() + TINY)
    a, b, c = COEFFICIENTS
    inner, identity = x @ x.T, torch.eye(x.shape[0], device=x.device)
    product = identity
    for number in range(NUM_ITERATIONS):
        polynomial = a * identity + b * inner + c * (inner @ inner)
        product = polynomial @ product if number else polynomial
        if number < NUM_ITERATIONS - 1:
            inner = polynomial @ inner @ polynomial
            # Rounding must not make it lopsided: the next power would double that.
            inner = (inner + inner.T) / 2
    x = product @ x
    result: Tensor = (x if matrix.shape[0] <= matrix.shape[1] else x.T).to(matrix.dtype)
    return result
