"""What a CPU computes in its own way, against torch's plain operations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from konvoi.models import _conv_kernels
from konvoi.models._conv_kernels import FEWEST_TILES, Convolution, convolution_3x3

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


@pytest.mark.parametrize(("kernel", "stride", "is_own"), [(3, 1, True), (3, 2, False), (1, 1, False), (7, 2, False)])
def test_only_3x3_with_stride_1_has_a_way_of_its_own(kernel: int, stride: int, is_own: bool) -> None:
    layer, x = Convolution(16, 4, kernel, stride).double(), pictures(FEWEST_TILES, 16, 4, 4)
    out = layer(x)
    assert (type(out.grad_fn).__name__ == "_Convolution3x3Backward") == is_own
    torch.testing.assert_close(out, functional.conv2d(x, layer.weight, stride=stride, padding=kernel // 2))


def test_under_autocast_it_is_torchs() -> None:
    layer = Convolution(16, 4, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(pictures(FEWEST_TILES, 16, 4, 4, dtype=torch.float32))
    assert out.dtype == torch.bfloat16
