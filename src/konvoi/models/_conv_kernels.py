"""The few operations of a convolutional network where a CPU loses its time, written so that it does not.

On a GPU, and under autocast, each is torch's own operation. Measurements: benchmarks/images/train_speed.py.

A 3 x 3 convolution is computed as in "Fast Algorithms for Convolutional Neural Networks" (Lavin and Gray, 2015),
F(4 x 4, 3 x 3): a tile of 4 x 4 outputs needs 6 x 6 inputs; in another basis of these 36 numbers the convolution is
one product for each, 36 where the plain way takes 16 x 9 = 144. Exact but for rounding, which in fp32 is four times
that of the plain way (1.8e-6 against 4e-7 of the result's norm, 64 channels).

Shapes: N pictures, H height, W width, C channels in, K channels out, T tiles in all pictures, V and U tiles down and
across a picture.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# With fewer tiles to multiply, transforming the weights costs more than it saves.
FEWEST_TILES = 32
# Tiles in flight: they stay in a cache between two products. From 600,000 to 2,400,000 there is no difference; all of a
# batch of 32 at once takes 8 % longer in the first stage (2026-11-16).
NUMBERS_PER_CHUNK = 1_200_000
FEWEST_TILES_PER_CHUNK = 128
# Nine copies of a picture in flight, where all that a weight has met is laid out.
MET_NUMBERS_PER_CHUNK = 2_400_000

# For one dimension, at the points 0, 1, -1, 2, -2 and infinity: 6 inputs, 3 weights, 4 outputs.
INPUT_BASIS = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
WEIGHT_BASIS = (
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)
OUTPUT_BASIS = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))


@cache
def _bases(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """For one dimension: inputs [6,6] and outputs [4,6]; for both at once: weights [36,9]."""
    of_inputs, of_weights, of_outputs = (
        torch.tensor(basis, dtype=torch.float64, device="cpu") for basis in (INPUT_BASIS, WEIGHT_BASIS, OUTPUT_BASIS)
    )
    # There is so little to do to the weights that a second pass over them costs more than the multiplications it saves.
    return of_inputs.to(dtype), torch.kron(of_weights, of_weights).to(dtype), of_outputs.to(dtype)


def _in_basis(basis: Tensor, numbers: Tensor) -> Tensor:
    """[a*a, ...] -> [b*b, n] by a basis [b,a], down and then across: 2 x 6 multiplications for a number, not 36."""
    after, before = basis.shape
    down = torch.mm(basis, numbers.reshape(before, -1)).view(after, before, -1)
    return torch.bmm(basis.expand(after, after, before), down).view(after * after, -1)


def _num_tiles(side: int) -> int:
    """Down or across a picture; the last one may reach over its edge."""
    return -(-side // 4)


def _tiles(x_NHWC: Tensor) -> Tensor:
    """The picture in squares of 4 x 4, with zeros beyond its edges: a view [4,4,N,V,U,C], where it can be one."""
    num_images, height, width, channels = x_NHWC.shape
    down, across = _num_tiles(height), _num_tiles(width)
    if (height, width) != (4 * down, 4 * across):
        x_NHWC = functional.pad(x_NHWC, (0, 0, 0, 4 * across - width, 0, 4 * down - height))
    return x_NHWC.view(num_images, down, 4, across, 4, channels).permute(2, 4, 0, 1, 3, 5)


def _join_tiles(tiles_44NVUC: Tensor, out_NHWC: Tensor) -> None:
    """The reverse of _tiles."""
    _, _, num_images, down, across, channels = tiles_44NVUC.shape
    _, height, width, _ = out_NHWC.shape
    if (height, width) == (4 * down, 4 * across):
        _tiles(out_NHWC).copy_(tiles_44NVUC)
    else:
        joined = tiles_44NVUC.permute(2, 3, 0, 4, 1, 5).reshape(num_images, 4 * down, 4 * across, channels)
        out_NHWC.copy_(joined[:, :height, :width])


def _shared_rims(tiles_66NVUC: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """A tile of 6 x 6 is a square of 4 x 4 and what it sees of its neighbours: (what it sees, where that belongs)."""
    rows, columns = tiles_66NVUC[:, 1:5], tiles_66NVUC.transpose(0, 1)
    yield rows[0, :, :, 1:], rows[4, :, :, :-1]
    yield rows[5, :, :, :-1], rows[1, :, :, 1:]
    yield columns[0, :, :, :, 1:], columns[4, :, :, :, :-1]
    yield columns[5, :, :, :, :-1], columns[1, :, :, :, 1:]


def _input_tiles(x_NHWC: Tensor, tiles_66NVUC: Tensor) -> Tensor:
    """Every 6 x 6 that a 4 x 4 of outputs sees; tiles has zeros where a tile sees nothing, and keeps them."""
    tiles = tiles_66NVUC[:, :, : x_NHWC.shape[0]]
    tiles[1:5, 1:5] = _tiles(x_NHWC)
    for seen, own in _shared_rims(tiles):
        seen.copy_(own)
    return tiles


def _add_input_tiles(tiles_66NVUC: Tensor, out_NHWC: Tensor) -> None:
    """The reverse of _input_tiles: what each tile has seen is added where it was taken from. Changes tiles."""
    for seen, own in reversed(list(_shared_rims(tiles_66NVUC))):
        own.add_(seen)
    _join_tiles(tiles_66NVUC[1:5, 1:5], out_NHWC)


def _images_per_chunk(tiles_per_image: int, channels: int) -> int:
    # With many channels the weights fill the cache anyhow: then a chunk should make much of them.
    num_tiles = max(NUMBERS_PER_CHUNK // (36 * channels), FEWEST_TILES_PER_CHUNK)
    return max(1, num_tiles // tiles_per_image)


def _chunks(num_images: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The first so many pictures of each tensor, then the next."""
    return zip(*(torch.split(tensor, num_images) for tensor in tensors), strict=True)


class _Convolution3x3(torch.autograd.Function):
    """Goes through the pictures in chunks; keeps inputs and weights in the basis where a convolution is a product."""

    @staticmethod
    def forward(ctx: Any, x_NCHW: Tensor, weight_KC33: Tensor) -> Tensor:
        of_inputs, of_weights, of_outputs = _bases(x_NCHW.dtype)
        num_images, inputs, height, width = x_NCHW.shape
        outputs, down, across = weight_KC33.shape[0], _num_tiles(height), _num_tiles(width)
        weight = torch.mm(of_weights, weight_KC33.reshape(-1, 9).t()).view(36, outputs, inputs)
        out_NHWK = x_NCHW.new_empty(num_images, height, width, outputs)
        chunk = _images_per_chunk(down * across, max(inputs, outputs))
        tiles_seen = x_NCHW.new_zeros(6, 6, min(chunk, num_images), down, across, inputs)
        inputs_by_chunk = []
        for x, out in _chunks(chunk, x_NCHW.permute(0, 2, 3, 1), out_NHWK):
            inputs_by_chunk.append(_in_basis(of_inputs, _input_tiles(x, tiles_seen)).view(36, -1, inputs))
            products = torch.bmm(inputs_by_chunk[-1], weight.transpose(1, 2))
            tiles = _in_basis(of_outputs, products).view(4, 4, -1, down, across, outputs)
            _join_tiles(tiles, out)
        ctx.save_for_backward(weight, *inputs_by_chunk)
        ctx.chunk, ctx.input_shape = chunk, x_NCHW.shape
        return out_NHWK.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor]:
        weight, *inputs_by_chunk = ctx.saved_tensors
        of_inputs, of_weights, of_outputs = _bases(weight.dtype)
        num_images, inputs, height, width = ctx.input_shape
        outputs, down, across = weight.shape[1], _num_tiles(height), _num_tiles(width)
        grad_weight, grad_x_NHWC = torch.empty_like(weight), weight.new_empty(num_images, height, width, inputs)
        for number, (x, (grad_y, grad_x)) in enumerate(
            zip(inputs_by_chunk, _chunks(ctx.chunk, grads[0].permute(0, 2, 3, 1), grad_x_NHWC), strict=True)
        ):
            grad = _in_basis(of_outputs.t(), _tiles(grad_y)).view(36, -1, outputs)
            # The first product is written, not added to zeros: 36 times 512 x 512 of them are 38 MB.
            grad_weight.baddbmm_(grad.transpose(1, 2), x, beta=min(number, 1))
            if ctx.needs_input_grad[0]:
                tiles = _in_basis(of_inputs.t(), torch.bmm(grad, weight))
                _add_input_tiles(tiles.view(6, 6, -1, down, across, inputs), grad_x)
        grad_weight_9 = torch.mm(of_weights.t(), grad_weight.view(36, -1))
        grad_weight_KC33 = grad_weight_9.t().contiguous().view(outputs, inputs, 3, 3)
        return grad_x_NHWC.permute(0, 3, 1, 2) if ctx.needs_input_grad[0] else None, grad_weight_KC33


class _HalvingConvolution3x3(torch.autograd.Function):
    """torch's, but for the gradient of the weights: that is one product of all that each weight has met.

    256 to 512 channels, 64 pictures of 8 x 8: 39 ms instead of 75; 128 to 256, 16 x 16: 39 instead of 43 (2026-11-16).
    """

    @staticmethod
    def forward(ctx: Any, x_NCHW: Tensor, weight_KC33: Tensor) -> Tensor:
        ctx.save_for_backward(x_NCHW, weight_KC33)
        return functional.conv2d(x_NCHW, weight_KC33, stride=2, padding=1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor]:
        x_NCHW, weight_KC33 = ctx.saved_tensors
        (outputs, inputs, _, _), grad_NHWK = weight_KC33.shape, grads[0].permute(0, 2, 3, 1)
        chunk = max(1, MET_NUMBERS_PER_CHUNK // (9 * inputs * grad_NHWK.shape[1] * grad_NHWK.shape[2]))
        grad_weight = weight_KC33.new_zeros(outputs, 9 * inputs)
        for x, grad in _chunks(chunk, x_NCHW.permute(0, 2, 3, 1), grad_NHWK):
            met = functional.pad(x, (0, 0, 1, 1, 1, 1)).unfold(1, 3, 2).unfold(2, 3, 2).permute(0, 1, 2, 4, 5, 3)
            grad_weight.addmm_(grad.reshape(-1, outputs).t(), met.reshape(-1, 9 * inputs))
        of_x = (grads[0], x_NCHW, weight_KC33, None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1)
        grad_x = torch.ops.aten.convolution_backward(*of_x, [ctx.needs_input_grad[0], False, False])[0]
        return grad_x, grad_weight.view(outputs, 3, 3, inputs).permute(0, 3, 1, 2).contiguous()


def _is_worth_it(x_NCHW: Tensor, weight: Tensor) -> bool:
    """Whether to leave torch's way: on a CPU, in one precision, with enough to do; never in what others will run."""
    if torch.compiler.is_exporting():
        return False
    num_tiles = x_NCHW.shape[0] * _num_tiles(x_NCHW.shape[2]) * _num_tiles(x_NCHW.shape[3])
    is_plain = x_NCHW.device.type != "cpu" or torch.is_autocast_enabled("cpu") or x_NCHW.dtype != weight.dtype
    return not is_plain and num_tiles >= FEWEST_TILES


def convolution_3x3(x_NCHW: Tensor, weight_KC33: Tensor) -> Tensor:
    """Stride 1, a rim of zeros, no bias."""
    if not _is_worth_it(x_NCHW, weight_KC33):
        return functional.conv2d(x_NCHW, weight_KC33, padding=1)
    result: Tensor = _Convolution3x3.apply(x_NCHW, weight_KC33)  # type: ignore[no-untyped-call]
    return result


def halving_convolution_3x3(x_NCHW: Tensor, weight_KC33: Tensor) -> Tensor:
    """Stride 2, a rim of zeros, no bias."""
    if not _is_worth_it(x_NCHW, weight_KC33):
        return functional.conv2d(x_NCHW, weight_KC33, stride=2, padding=1)
    result: Tensor = _HalvingConvolution3x3.apply(x_NCHW, weight_KC33)  # type: ignore[no-untyped-call]
    return result


class Convolution(nn.Conv2d):
    """Without bias; keeps height and width, or halves them with stride 2."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        # Channels-last inputs give gradients their layout, which DDP would have to copy (and warns of).
        self.weight.register_hook(lambda grad: grad.contiguous().view(-1).view(grad.shape))  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor) -> Tensor:
        if self.kernel_size == (3, 3) and self.stride == (1, 1) and self.in_channels >= 16:
            return convolution_3x3(x, self.weight)
        if self.kernel_size == (3, 3) and self.stride == (2, 2) and self.in_channels >= 128:
            return halving_convolution_3x3(x, self.weight)
        return super().forward(x)


def norm_relu(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """relu(norm(x))"""
    return functional.relu(norm(x), inplace=True)


def norm_add_relu(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor) -> Tensor:
    """relu(norm(x) + residual)"""
    return functional.relu(norm(x).add_(residual), inplace=True)
