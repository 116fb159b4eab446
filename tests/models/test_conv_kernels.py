"""What a CPU computes in its own way, against torch's plain operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from konvoi.models import _conv_kernels
from konvoi.models._conv_kernels import (
    FEWEST_TILES,
    Convolution,
    convolution_3x3,
    halving_convolution_3x3,
    norm_add_relu,
    norm_relu,
)

CHANNELS_LAST = torch.channels_last


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """The own way also for the few tiles that a test can afford."""
    monkeypatch.setattr(_conv_kernels, "FEWEST_TILES", 1)


def numbers(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


def pictures(count: int, channels: int, height: int, width: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return numbers(count, channels, height, width, dtype=dtype).contiguous(memory_format=CHANNELS_LAST)


def relative_error(found: Tensor, expected: Tensor) -> float:
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


# One tile, whole tiles, tiles over the edge of one side and of both, a picture smaller than a tile.
SIDES = [(4, 4), (8, 12), (8, 7), (5, 9), (2, 3), (1, 1)]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("height", "width"), SIDES)
def test_a_3x3_convolution_and_its_gradients_are_the_plain_ones(height: int, width: int) -> None:
    x, weight = pictures(3, 5, height, width).requires_grad_(), numbers(4, 5, 3, 3).requires_grad_()
    slopes = numbers(3, 4, height, width)
    found, expected = convolution_3x3(x, weight), functional.conv2d(x, weight, padding=1)
    assert type(found.grad_fn).__name__ == "_Convolution3x3Backward"
    torch.testing.assert_close(found, expected)
    for own, plain in zip(
        torch.autograd.grad(found, (x, weight), slopes), torch.autograd.grad(expected, (x, weight), slopes), strict=True
    ):
        torch.testing.assert_close(own, plain)


@pytest.mark.usefixtures("always")
def test_the_gradients_are_those_of_small_differences() -> None:
    x, weight = pictures(2, 3, 5, 6).requires_grad_(), numbers(2, 3, 3, 3).requires_grad_()
    assert torch.autograd.gradcheck(convolution_3x3, (x, weight))


@pytest.mark.usefixtures("always")
def test_all_stays_channels_last_and_weights_contiguous() -> None:
    for height, width in SIDES:
        x, weight = pictures(3, 5, height, width).requires_grad_(), numbers(4, 5, 3, 3).requires_grad_()
        out = convolution_3x3(x, weight)
        grad_x, grad_weight = torch.autograd.grad(out.square().sum(), (x, weight))
        assert out.is_contiguous(memory_format=CHANNELS_LAST) and grad_x.is_contiguous(memory_format=CHANNELS_LAST)
        assert grad_weight.is_contiguous()


@pytest.mark.usefixtures("always")
def test_pictures_that_come_in_several_chunks_are_all_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    # 5 x 7 px are 2 x 2 tiles; 8 tiles a chunk are 2 pictures: chunks of 2, 2 and 1
    monkeypatch.setattr(_conv_kernels, "NUMBERS_PER_CHUNK", 1)
    monkeypatch.setattr(_conv_kernels, "FEWEST_TILES_PER_CHUNK", 8)
    assert _conv_kernels._images_per_chunk(tiles_per_image=4, channels=3) == 2
    x, weight = pictures(5, 3, 5, 7).requires_grad_(), numbers(2, 3, 3, 3).requires_grad_()
    assert torch.autograd.gradcheck(convolution_3x3, (x, weight))
    torch.testing.assert_close(convolution_3x3(x, weight), functional.conv2d(x, weight, padding=1))


def test_in_fp32_it_rounds_to_a_few_millionths() -> None:
    x, weight = pictures(8, 64, 16, 16, dtype=torch.float32), numbers(64, 64, 3, 3, dtype=torch.float32)
    assert x.shape[0] * 4 * 4 >= FEWEST_TILES
    x, weight = x.requires_grad_(), weight.requires_grad_()
    found = convolution_3x3(x, weight)
    exact_x, exact_weight = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    exact = functional.conv2d(exact_x, exact_weight, padding=1)
    assert 0 < relative_error(found, exact) < 5e-6
    slopes = numbers(*found.shape)
    grads = torch.autograd.grad(found, (x, weight), slopes.float())
    exact_grads = torch.autograd.grad(exact, (exact_x, exact_weight), slopes)
    assert all(relative_error(own, true) < 5e-6 for own, true in zip(grads, exact_grads, strict=True))


def test_a_few_tiles_are_convolved_the_plain_way() -> None:
    few, many = pictures(FEWEST_TILES - 1, 16, 4, 4), pictures(FEWEST_TILES, 16, 4, 4)
    weight = numbers(2, 16, 3, 3).requires_grad_()
    assert type(convolution_3x3(few, weight).grad_fn).__name__ == "ConvolutionBackward0"
    assert type(convolution_3x3(many, weight).grad_fn).__name__ == "_Convolution3x3Backward"


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("height", "width"), SIDES)
def test_a_halving_convolution_and_its_gradients_are_the_plain_ones(height: int, width: int) -> None:
    x, weight = pictures(3, 5, height, width).requires_grad_(), numbers(4, 5, 3, 3).requires_grad_()
    found, expected = halving_convolution_3x3(x, weight), functional.conv2d(x, weight, stride=2, padding=1)
    assert type(found.grad_fn).__name__ == "_HalvingConvolution3x3Backward"
    torch.testing.assert_close(found, expected)
    slopes = numbers(*found.shape)
    grad_x, grad_weight = torch.autograd.grad(found, (x, weight), slopes)
    plain_x, plain_weight = torch.autograd.grad(expected, (x, weight), slopes)
    torch.testing.assert_close(grad_x, plain_x)
    torch.testing.assert_close(grad_weight, plain_weight)
    assert grad_x.is_contiguous(memory_format=CHANNELS_LAST) and grad_weight.is_contiguous()


@pytest.mark.usefixtures("always")
def test_a_halving_convolution_counts_the_pictures_of_all_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    # 5 x 7 px become 3 x 4, each of which meets 9 x 2 numbers: 216 a picture; chunks of 2, 2 and 1
    monkeypatch.setattr(_conv_kernels, "MET_NUMBERS_PER_CHUNK", 2 * 216)
    x, weight = pictures(5, 2, 5, 7).requires_grad_(), numbers(3, 2, 3, 3).requires_grad_()
    assert torch.autograd.gradcheck(halving_convolution_3x3, (x, weight))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("convolve", [convolution_3x3, halving_convolution_3x3])
def test_pictures_that_need_no_gradient_get_none(convolve: Callable[[Tensor, Tensor], Tensor]) -> None:
    x, weight = pictures(2, 3, 8, 8), numbers(4, 3, 3, 3).requires_grad_()
    convolve(x, weight).sum().backward()  # type: ignore[no-untyped-call]
    stride = 1 if convolve is convolution_3x3 else 2
    expected = functional.conv2d(x, torch.ones_like(weight), stride=stride, padding=1)[:, :1]
    # The slope of a sum of products with a weight is the sum of what it meets; over all nine, what all ones would find.
    torch.testing.assert_close(weight.grad.sum(), 4 * expected.sum())  # type: ignore[union-attr]
    assert x.grad is None


OWN_WAYS = [
    (16, 3, 1, "_Convolution3x3Backward"),
    (128, 3, 2, "_HalvingConvolution3x3Backward"),
    (8, 3, 1, "ConvolutionBackward0"),
    (64, 3, 2, "ConvolutionBackward0"),
    (16, 1, 1, "ConvolutionBackward0"),
    (16, 7, 2, "ConvolutionBackward0"),
]


@pytest.mark.parametrize(("inputs", "kernel", "stride", "way"), OWN_WAYS)
def test_only_3x3_with_enough_channels_has_a_way_of_its_own(inputs: int, kernel: int, stride: int, way: str) -> None:
    layer, x = Convolution(inputs, 4, kernel, stride).double(), pictures(FEWEST_TILES, inputs, 4, 4)
    out = layer(x)
    assert type(out.grad_fn).__name__ == way
    torch.testing.assert_close(out, functional.conv2d(x, layer.weight, stride=stride, padding=kernel // 2))


def test_a_norm_with_what_follows_is_the_plain_chain_and_leaves_its_inputs() -> None:
    norm, x, residual = nn.BatchNorm2d(3).double(), pictures(4, 3, 5, 5).requires_grad_(), pictures(4, 3, 5, 5) + 1
    residual.requires_grad_()
    x_before, residual_before = x.detach().clone(), residual.detach().clone()
    for found, expected in [
        (norm_relu(norm, x), functional.relu(norm(x))),
        (norm_add_relu(norm, x, residual), functional.relu(norm(x) + residual)),
    ]:
        torch.testing.assert_close(found, expected)
        own = torch.autograd.grad(found.square().sum(), (x, residual), allow_unused=True)
        plain = torch.autograd.grad(expected.square().sum(), (x, residual), allow_unused=True)
        torch.testing.assert_close(own, plain)
    assert torch.equal(x, x_before) and torch.equal(residual, residual_before)


@pytest.mark.parametrize("stride", [1, 2])
def test_under_autocast_it_is_torchs(stride: int) -> None:
    layer = Convolution(128, 4, 3, stride)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(pictures(FEWEST_TILES, 128, 4, 4, dtype=torch.float32))
    assert out.dtype == torch.bfloat16
