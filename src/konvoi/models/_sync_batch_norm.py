"""Batch norm over the pictures of all workers. torch's own refuses CPUs, and DDP refuses it there.

With the sums of all workers, one step of two workers with 32 pictures each is a step of one worker with 64.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed, nn


def _over_channels(values_C: Tensor) -> Tensor:
    """[C] -> [1,C,1,1]"""
    return values_C[None, :, None, None]


def _sums(x: Tensor) -> Tensor:
    """[N,C,H,W] -> [C]"""
    return x.sum(dim=(0, 2, 3))


class _SyncedNorm(torch.autograd.Function):
    """Returns what is normalised, mean [C] and variance [C] of all workers together, and the count they are of."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> tuple[Tensor, ...]:
        own_count = x.numel() // x.shape[1]
        own_variance, own_mean = torch.var_mean(x.to(weight.dtype), dim=(0, 2, 3), correction=0)
        # In double: the difference of two large sums would leave little of a small variance.
        own_variance, own_mean = own_variance.double(), own_mean.double()
        own_sums = own_count * torch.stack((own_mean, own_variance + own_mean**2))
        packed = torch.cat((own_sums.flatten(), own_sums.new_tensor([own_count])))
        distributed.all_reduce(packed)
        count = packed[-1]
        mean, mean_square = (packed[:-1] / count).view(2, -1).unbind(0)
        variance = (mean_square - mean**2).clamp_(min=0)
        mean, scale = mean.to(weight.dtype), (variance + epsilon).rsqrt().to(weight.dtype)
        variance = variance.to(weight.dtype)
        ctx.save_for_backward(x, weight, mean, scale, count)
        ctx.mark_non_differentiable(mean, variance, count)
        factor = scale * weight
        out = torch.addcmul(_over_channels(bias - mean * factor), x, _over_channels(factor))
        return out.to(x.dtype), mean, variance, count

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight, mean, scale, count = ctx.saved_tensors
        grad = grads[0].to(weight.dtype)
        normed = (x - _over_channels(mean)) * _over_channels(scale)
        own_sums = torch.stack((_sums(grad), _sums(grad * normed)))
        # The weight's own gradient stays this worker's: the sync averages it with all others.
        sums = own_sums.to(torch.float64, copy=True)
        distributed.all_reduce(sums)
        grad_mean, grad_slope = (sums / count).to(weight.dtype).unbind(0)
        centred = grad - _over_channels(grad_mean) - normed * _over_channels(grad_slope)
        grad_x = centred * _over_channels(scale * weight)
        return grad_x.to(x.dtype), own_sums[1], own_sums[0], None


class SyncBatchNorm(nn.BatchNorm2d):
    """A plain one where there is one worker, and at an evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not _has_colleagues():
            return super().forward(x)
        out, mean, variance, count = _SyncedNorm.apply(x, self.weight, self.bias, self.eps)  # type: ignore[no-untyped-call]
        self._remember(mean, variance * (count / (count - 1)).to(variance.dtype))
        result: Tensor = out
        return result

    @torch.no_grad()
    def _remember(self, mean: Tensor, unbiased_variance: Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None and self.momentum is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(unbiased_variance, self.momentum)


def _has_colleagues() -> bool:
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
