"""Optimisers, and their state as plain tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from konvoi.config.sections import Optim
from konvoi.engine.muon import Muon
from konvoi.sync import HiddenShape


def build(config: Optim, model: nn.Module) -> torch.optim.Optimizer:
    """Weight decay spares biases and norms; fused kernels update everything in one pass."""
    if config.name == "muon":
        return _muon(config, model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=0.0, momentum=config.momentum, nesterov=config.nesterov, fused=True)
    kind = torch.optim.AdamW if config.name == "adamw" else torch.optim.Adam
    return kind(groups, lr=0.0, betas=(config.beta1, config.beta2), eps=config.epsilon, fused=True)


def _muon(config: Optim, model: nn.Module) -> torch.optim.Optimizer:
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    hidden = [p for name, p in named if _is_hidden(model, name, p)]
    edge = [p for name, p in named if p.dim() > 1 and not _is_hidden(model, name, p)]
    vectors = [p for name, p in named if p.dim() <= 1]
    adam = {"is_hidden": False, "rate_share": config.edge_rate}
    groups: list[dict[str, Any]] = [
        {"params": hidden, "weight_decay": config.weight_decay, "is_hidden": True},
        {"params": edge, "weight_decay": config.weight_decay, **adam},
        {"params": vectors, "weight_decay": 0.0, **adam},
    ]
    groups = [group for group in groups if group["params"]]
    return Muon(groups, config.momentum, (config.beta1, config.beta2), config.epsilon)


def _is_hidden(model: nn.Module, name: str, parameter: Tensor) -> bool:
    """A model names its EDGES: what reads the input or makes the output is no map between hidden features."""
    return parameter.dim() > 1 and name not in getattr(model, "EDGES", ())


def shapes(config: Optim, model: nn.Module) -> tuple[tuple[int, ...], ...]:
    """Of all trainable parameters, with those told apart that Muon turns orthogonal."""
    return tuple(
        HiddenShape(p.shape) if config.name == "muon" and _is_hidden(model, name, p) else tuple(p.shape)
        for name, p in model.named_parameters()
        if p.requires_grad
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float, factor: float = 1.0) -> None:
    """Adam's steps are longer by the factor, also inside Muon; decay that multiplies weights goes by the rate alone."""
    for group in optimizer.param_groups:
        own_factor = 1.0 if group.get("is_hidden") else factor
        group["lr"] = rate * own_factor
        if isinstance(optimizer, torch.optim.AdamW | Muon):
            group["weight_decay"] = group.setdefault("decay", group["weight_decay"]) / own_factor


def set_momentum(optimizer: torch.optim.Optimizer, span: float) -> None:
    """Muon's looks back over so many times as many steps as the recipe's."""
    for group in optimizer.param_groups:
        if group.get("is_hidden"):
            group["momentum"] = group.setdefault("usual_momentum", group["momentum"]) ** (1 / span)


def state_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """{"3.exp_avg": ...}: the number of the parameter and the name of the moment."""
    state = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": value
        for number, moments in state.items()
        for name, value in moments.items()
        if isinstance(value, Tensor)
    }


def load_state_tensors(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
