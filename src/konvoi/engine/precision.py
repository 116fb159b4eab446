"""fp32, bf16 and fp16: how the forward pass computes, how the loss is scaled, which steps are skipped."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def fastest(device: torch.device) -> str:
    """What "auto" means here: a precision that the device computes in hardware."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    return "bf16" if cpu_has_bf16() else "fp32"


def cpu_has_bf16() -> bool:
    """Without these instructions a bf16 product is emulated: 5 to 100 times slower than fp32 (docs/lab-notes.md)."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


@dataclass(frozen=True)
class Outcome:
    gradient_norm: float
    skipped: bool


class Precision:
    """The name is fp32, bf16 or fp16."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name, self.device = name, device
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def autocast(self) -> AbstractContextManager[Any]:
        dtype = DTYPES.get(self.name)
        return torch.autocast(self.device.type, dtype=dtype) if dtype else nullcontext()

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: torch.optim.Optimizer, model: nn.Module, clip_norm: float) -> Outcome:
        """Clips and updates; a step whose gradients overflowed changes nothing and is counted."""
        self.scaler.unscale_(optimizer)
        parameters = [p for p in model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        gradient_norm = float(norm)
        skipped = not (gradient_norm < float("inf"))
        if not skipped and clip_norm and gradient_norm > clip_norm:
            torch.nn.utils.clip_grads_with_norm_(parameters, clip_norm, norm)
        # The scaler could skip by itself, but a fused SGD would then keep a momentum that it never wrote.
        if not skipped:
            self.scaler.step(optimizer)
        self.scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return Outcome(gradient_norm, skipped)

    @property
    def is_searching(self) -> bool:
        """Half precision looks for a scale that its gradients bear: an overflow is no fault as long as there is one."""
        return self.name == "fp16" and self.loss_scale >= 1

    @property
    def loss_scale(self) -> float:
        return float(self.scaler.get_scale())

    def state(self) -> dict[str, Any]:
        return dict(self.scaler.state_dict())

    def load_state(self, state: dict[str, Any]) -> None:
        if state:
            self.scaler.load_state_dict(state)


class Buffers:
    """What a forward pass has written before anybody knows that the step is skipped: means of batch normalisation."""

    def __init__(self, model: nn.Module) -> None:
        self._buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        self._before = [buffer.clone() for buffer in self._buffers]

    @torch.no_grad()
    def restore(self) -> None:
        for buffer, before in zip(self._buffers, self._before, strict=True):
            buffer.copy_(before)
