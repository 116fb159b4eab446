"""The few operations of a convolutional network where a CPU loses its time, written so that it does not.

On a GPU, and under autocast, each is torch's own operation. Measurements: benchmarks/images/train_speed.py.

A 3 x 3 convolution is computed as in "Fast Algorithms for Convolutional Neural Networks" (Lavin and Gray, 2015),
F(4 x 4, 3 x 3): a tile of 4 x 4 outputs needs 6 x 6 inputs; in another basis of these 36 numbers the convolution is
one product for each, 36 where the plain way takes 16 x 9 = 144. Exact but for rounding, which in fp32 is five times
that of the plain way (1.5e-6 against 3e-7 of the result's norm).

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
# Tiles in flight: they stay in a cache between two products (first stage: transforms 1.6x faster, 2026-11-16).
NUMBERS_PER_CHUNK = 600_000
FEWEST_TILES_PER_CHUNK = 128

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
    """For both dimensions at once: inputs [36,36], weights [36,9], outputs [16,36]."""
    squares = []
    for basis in (INPUT_BASIS, WEIGHT_BASIS, OUTPUT_BASIS):
        matrix = torch.tensor(basis, dtype=torch.float64, device="cpu")
        squares.append(torch.kron(matrix, matrix).to(dtype))
    return squares[0], squares[1], squares[2]


def _num_tiles(side: int) -> int:
    """Down or across a picture; the last one may reach over its edge."""
    return -(-side // 4)


def _input_tiles(x_NHWC: Tensor, padded_NHWC: Tensor) -> Tensor:
    """Every 6 x 6 that a 4 x 4 of outputs sees, [36, T*C]; padded has zeros around the picture, and keeps them."""
    num_images, height, width, _ = x_NHWC.shape
    padded = padded_NHWC[:num_images]
    padded[:, 1 : height + 1, 1 : width + 1] = x_NHWC
    return padded.unfold(1, 6, 4).unfold(2, 6, 4).permute(4, 5, 0, 1, 2, 3).reshape(36, -1)


def _add_input_tiles(tiles_66NVUC: Tensor, out_NHWC: Tensor) -> None:
    """The reverse of _input_tiles: each tile is added where it was taken from."""
    _, _, num_images, down, across, channels = tiles_66NVUC.shape
    _, height, width, _ = out_NHWC.shape
    tiles = tiles_66NVUC.permute(2, 3, 0, 4, 1, 5)
    total = tiles.new_empty(num_images, down + 1, 4, across + 1, 4, channels)
    total[:, -1] = 0
    total[:, :, :, -1] = 0
    total[:, :-1, :, :-1] = tiles[:, :, :4, :, :4]
    # The last 2 of 6 lie in the next tile's first 4.
    total[:, 1:, :2, :-1] += tiles[:, :, 4:, :, :4]
    total[:, :-1, :, 1:, :2] += tiles[:, :, :4, :, 4:]
    total[:, 1:, :2, 1:, :2] += tiles[:, :, 4:, :, 4:]
    flat = total.view(num_images, 4 * (down + 1), 4 * (across + 1), channels)
    out_NHWC.copy_(flat[:, 1 : height + 1, 1 : width + 1])


def _output_tiles(y_NHWK: Tensor) -> Tensor:
    """[16, T*K]"""
    num_images, height, width, channels = y_NHWK.shape
    down, across = _num_tiles(height), _num_tiles(width)
    padded = functional.pad(y_NHWK, (0, 0, 0, 4 * across - width, 0, 4 * down - height))
    return padded.view(num_images, down, 4, across, 4, channels).permute(2, 4, 0, 1, 3, 5).reshape(16, -1)


def _join_output_tiles(tiles_44NVUK: Tensor, out_NHWK: Tensor) -> None:
    """The reverse of _output_tiles."""
    _, _, num_images, down, across, channels = tiles_44NVUK.shape
    _, height, width, _ = out_NHWK.shape
    joined = tiles_44NVUK.permute(2, 3, 0, 4, 1, 5)
    if (height, width) == (4 * down, 4 * across):
        out_NHWK.view(num_images, down, 4, across, 4, channels).copy_(joined)
    else:
        out_NHWK.copy_(joined.reshape(num_images, 4 * down, 4 * across, channels)[:, :height, :width])


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
        weight = torch.mm(of_weights, weight_KC33.reshape(-1, 9).t().contiguous()).view(36, outputs, inputs)
        out_NHWK = x_NCHW.new_empty(num_images, height, width, outputs)
        chunk = _images_per_chunk(down * across, max(inputs, outputs))
        padded = x_NCHW.new_zeros(chunk, 4 * down + 2, 4 * across + 2, inputs)
        inputs_by_chunk = []
        for x, out in _chunks(chunk, x_NCHW.permute(0, 2, 3, 1), out_NHWK):
            inputs_by_chunk.append(torch.mm(of_inputs, _input_tiles(x, padded)).view(36, -1, inputs))
            products = torch.bmm(inputs_by_chunk[-1], weight.transpose(1, 2))
            tiles = torch.mm(of_outputs, products.view(36, -1)).view(4, 4, -1, down, across, outputs)
            _join_output_tiles(tiles, out)
        ctx.save_for_backward(weight, *inputs_by_chunk)
        ctx.chunk, ctx.input_shape = chunk, x_NCHW.shape
        return out_NHWK.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor]:
        weight, *inputs_by_chunk = ctx.saved_tensors
        of_inputs, of_weights, of_outputs = _bases(weight.dtype)
        num_images, inputs, height, width = ctx.input_shape
        outputs, down, across = weight.shape[1], _num_tiles(height), _num_tiles(width)
        grad_weight, grad_x_NHWC = torch.zeros_like(weight), weight.new_empty(num_images, height, width, inputs)
        for x, (grad_y, grad_x) in zip(
            inputs_by_chunk, _chunks(ctx.chunk, grads[0].permute(0, 2, 3, 1), grad_x_NHWC), strict=True
        ):
            grad = torch.mm(of_outputs.t(), _output_tiles(grad_y)).view(36, -1, outputs)
            grad_weight.baddbmm_(grad.transpose(1, 2), x)
            if ctx.needs_input_grad[0]:
                tiles = torch.mm(of_inputs.t(), torch.bmm(grad, weight).view(36, -1))
                _add_input_tiles(tiles.view(6, 6, -1, down, across, inputs), grad_x)
        grad_weight_9 = torch.mm(of_weights.t(), grad_weight.view(36, -1))
        grad_weight_KC33 = grad_weight_9.t().contiguous().view(outputs, inputs, 3, 3)
        return grad_x_NHWC.permute(0, 3, 1, 2) if ctx.needs_input_grad[0] else None, grad_weight_KC33


def convolution_3x3(x_NCHW: Tensor, weight_KC33: Tensor) -> Tensor:
    """Stride 1, a rim of zeros, no bias."""
    num_tiles = x_NCHW.shape[0] * _num_tiles(x_NCHW.shape[2]) * _num_tiles(x_NCHW.shape[3])
    is_plain = x_NCHW.device.type != "cpu" or torch.is_autocast_enabled("cpu") or x_NCHW.dtype != weight_KC33.dtype
    if is_plain or num_tiles < FEWEST_TILES:
        return functional.conv2d(x_NCHW, weight_KC33, padding=1)
    result: Tensor = _Convolution3x3.apply(x_NCHW, weight_KC33)  # type: ignore[no-untyped-call]
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
        return super().forward(x)


def norm_relu(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """relu(norm(x))"""
    return functional.relu(norm(x), inplace=True)


def norm_add_relu(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor) -> Tensor:
    """relu(norm(x) + residual)"""
    return functional.relu(norm(x) + residual, inplace=True)
