"""The ResNet: torchvision's names and sizes, its start, its precision, its memory layout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional

from konvoi.models.resnet import BLOCKS, Block, Config, Model, flops, num_parameters

CHANNELS_LAST = torch.channels_last

# As torchvision publishes them, for 1,000 classes.
PARAMETERS = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032, 101: 44_549_160}
# Billions of multiply-adds for a picture of 224 px.
GIGA_MULTIPLY_ADDS = {18: 1.814, 34: 3.664, 50: 4.089, 101: 7.801}

STEM = {
    "conv1.weight": (64, 3, 7, 7),
    "bn1.weight": (64,),
    "bn1.bias": (64,),
    "bn1.running_mean": (64,),
    "bn1.running_var": (64,),
    "bn1.num_batches_tracked": (),
}
STATE_18 = STEM | {
    "layer1.0.conv1.weight": (64, 64, 3, 3),
    "layer1.0.bn1.weight": (64,),
    "layer1.1.conv2.weight": (64, 64, 3, 3),
    "layer2.0.conv1.weight": (128, 64, 3, 3),
    "layer2.0.downsample.0.weight": (128, 64, 1, 1),
    "layer2.0.downsample.1.running_var": (128,),
    "layer2.0.downsample.1.num_batches_tracked": (),
    "layer4.1.conv2.weight": (512, 512, 3, 3),
    "layer4.1.bn2.running_mean": (512,),
    "fc.weight": (1000, 512),
    "fc.bias": (1000,),
}
STATE_50 = STEM | {
    "layer1.0.conv1.weight": (64, 64, 1, 1),
    "layer1.0.conv2.weight": (64, 64, 3, 3),
    "layer1.0.conv3.weight": (256, 64, 1, 1),
    "layer1.0.downsample.0.weight": (256, 64, 1, 1),
    "layer1.2.conv1.weight": (64, 256, 1, 1),
    "layer2.0.conv1.weight": (128, 256, 1, 1),
    "layer2.0.conv2.weight": (128, 128, 3, 3),
    "layer3.5.bn3.bias": (1024,),
    "layer4.0.downsample.0.weight": (2048, 1024, 1, 1),
    "layer4.2.bn3.running_var": (2048,),
    "fc.weight": (1000, 2048),
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def built(num_classes: int = 10, **settings: Any) -> Model:
    torch.manual_seed(3)
    return Model(Config.model_validate({"depth": 18, **settings}), num_classes)


def on_meta(num_classes: int = 1000, **settings: Any) -> Model:
    """Weights have a shape and take no memory."""
    with torch.device("meta"):
        return built(num_classes, **settings)


def images(count: int, side: int) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(7))


def blocks(model: Model) -> list[Block]:
    return [module for module in model.modules() if isinstance(module, Block)]


@pytest.mark.parametrize("depth", PARAMETERS)
def test_it_has_as_many_parameters_as_torchvisions(depth: int) -> None:
    model = on_meta(depth=depth)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[depth]
    assert num_parameters(model.config, 1000) == PARAMETERS[depth]


@pytest.mark.parametrize("depth", PARAMETERS)
@pytest.mark.parametrize("stem", ["imagenet", "deep", "small"])
def test_the_formula_counts_the_parameters_of_every_kind(depth: int, stem: str) -> None:
    model = on_meta(num_classes=7, depth=depth, stem=stem)
    assert num_parameters(model.config, 7) == sum(parameter.numel() for parameter in model.parameters())


def test_a_deep_stem_sees_as_far_as_7_x_7_and_leaves_as_much() -> None:
    # 3 x 3 of stride 2, then twice 3 x 3 on every other pixel: 3 + 2 * 2 + 2 * 2 = 11 pixels wide, at half the size.
    deep, plain = on_meta(depth=18, stem="deep"), on_meta(depth=18)
    assert [conv.kernel_size for conv in deep.conv1.modules() if isinstance(conv, nn.Conv2d)] == [(3, 3)] * 3
    picture = torch.empty(1, 3, 64, 64, device="meta")
    assert deep.conv1(picture).shape == plain.conv1(picture).shape == (1, 64, 32, 32)


@pytest.mark.parametrize("side", [8, 7])
def test_an_average_shortcut_takes_the_mean_of_four_pixels(side: int) -> None:
    model = Model(Config(depth=18, shortcut="average"), num_classes=3)
    around = model.layer2[0].downsample.eval()
    x = torch.randn(2, 64, side, side)
    # An odd side has half a window at its edge.
    means = functional.interpolate(x, size=(4, 4), mode="area") if side == 8 else None
    out = around(x)
    assert out.shape == (2, 128, 4, 4)
    if means is not None:
        convolution, norm = around
        torch.testing.assert_close(out, norm(functional.conv2d(means, convolution.weight)))


@pytest.mark.parametrize("depth", [18, 50])
def test_half_the_width_makes_every_layer_half_as_wide(depth: int) -> None:
    model, full = on_meta(num_classes=7, depth=depth, width=32), on_meta(num_classes=7, depth=depth)
    assert num_parameters(model.config, 7) == sum(parameter.numel() for parameter in model.parameters())
    norms, full_norms = ([m for m in one.modules() if isinstance(m, nn.BatchNorm2d)] for one in (model, full))
    assert len(norms) > 0
    assert [2 * norm.num_features for norm in norms] == [norm.num_features for norm in full_norms]


@pytest.mark.parametrize(("depth", "expected"), [(18, STATE_18), (50, STATE_50)])
def test_its_state_has_torchvisions_names_and_shapes(depth: int, expected: dict[str, tuple[int, ...]]) -> None:
    state = on_meta(depth=depth).state_dict()
    assert {name: tuple(state[name].shape) for name in expected} == expected


@pytest.mark.parametrize(("depth", "convolutions"), [(18, 20), (34, 36), (50, 53), (101, 104)])
def test_its_state_has_as_many_tensors_as_torchvisions(depth: int, convolutions: int) -> None:
    # A convolution has a weight; its batch norm weight, bias, mean, variance, count; the linear layer two.
    assert len(on_meta(depth=depth).state_dict()) == convolutions * (1 + 5) + 2


def test_only_the_first_block_of_a_stage_goes_around_through_a_convolution() -> None:
    names = {name.partition("downsample")[0] for name in on_meta(depth=18).state_dict() if "downsample" in name}
    # In -18 the first stage changes neither width nor side.
    assert names == {"layer2.0.", "layer3.0.", "layer4.0."}
    names = {name.partition("downsample")[0] for name in on_meta(depth=50).state_dict() if "downsample" in name}
    assert names == {"layer1.0.", "layer2.0.", "layer3.0.", "layer4.0."}


def test_a_bottleneck_halves_the_picture_in_its_3_x_3() -> None:
    convs = {name: module for name, module in on_meta(depth=50).named_modules() if isinstance(module, nn.Conv2d)}
    halving = {name for name, conv in convs.items() if conv.stride == (2, 2)}
    stages = ("layer2.0", "layer3.0", "layer4.0")
    assert halving == {"conv1", *(f"{s}.conv2" for s in stages), *(f"{s}.downsample.0" for s in stages)}


@pytest.mark.parametrize("depth", GIGA_MULTIPLY_ADDS)
def test_its_cost_is_the_published_one(depth: int) -> None:
    giga_multiply_adds = flops(on_meta(depth=depth).config, 224, 224, 1000) / 2 / 1e9
    assert giga_multiply_adds == pytest.approx(GIGA_MULTIPLY_ADDS[depth], abs=0.001)


@pytest.mark.parametrize("settings", [{}, {"depth": 50}, {"stem": "small"}], ids=str)
def test_its_cost_counts_every_place_that_a_weight_visits(settings: dict[str, Any]) -> None:
    """37 x 50 px: sides that do not halve evenly."""
    model, visits = built(**settings), []

    def note(module: nn.Module, _: Any, out: Tensor) -> None:
        weight = module.weight
        assert isinstance(weight, Tensor)
        visits.append(weight.numel() * out[0, 0].numel())

    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(note)
    model.eval()(images(1, 50)[:, :, :37])
    assert flops(model.config, 37, 50, 10) == 2 * sum(visits)


@pytest.mark.parametrize("settings", [{"depth": depth} for depth in BLOCKS] + [{"stem": "small"}], ids=str)
def test_forward_and_backward_are_finite_and_reach_every_weight(settings: dict[str, Any]) -> None:
    model = built(**settings)
    logits = model(images(4, 33))
    assert logits.shape == (4, 10) and logits.isfinite().all()
    torch.autograd.backward(logits.square().sum())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name


def side_before_the_mean(stem: str, side: int) -> int:
    model, sides = built(stem=stem).eval(), []
    model.layer4.register_forward_hook(lambda module, inputs, out: sides.append(out.shape[-1]))
    model(images(1, side))
    return sides[0]


def test_the_stem_decides_how_much_of_the_picture_is_left() -> None:
    # 7 x 7 and max-pool halve twice, three stages halve once each: 64 / 32
    assert side_before_the_mean("imagenet", 64) == 2
    # 3 x 3 halves nothing: 64 / 8
    assert side_before_the_mean("small", 64) == 8


def test_convolutions_start_as_wide_as_what_they_feed() -> None:
    model = built(depth=34)
    # 3 x 3 to 512 channels: sqrt(2 / (9 x 512)) = 0.0208
    assert model.layer4[1].conv1.weight.std().item() == pytest.approx(0.0208, abs=1e-4)
    # 1 x 1 to 512 channels: sqrt(2 / 512) = 0.0625, though it reads 256
    assert model.layer4[0].downsample[0].weight.std().item() == pytest.approx(0.0625, abs=1e-3)


def test_batch_norms_start_as_ones_and_zeros() -> None:
    norms = [module for module in built().modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 20
    assert all((norm.weight == 1).all() and (norm.bias == 0).all() for norm in norms)


@pytest.mark.parametrize("depth", [18, 50])
def test_with_zero_init_every_block_begins_as_the_way_around_it(depth: int) -> None:
    model = built(depth=depth, zero_init_residual=True)
    tried = 0
    for block in blocks(model):
        if block.downsample is None:
            norm = block.last_norm()
            x = torch.rand(2, norm.num_features, 4, 4)
            assert torch.equal(block(x), x)
            tried += 1
    # All but the first of each stage; in -18 the first stage's first too.
    assert tried == {18: 5, 50: 12}[depth]


def test_without_zero_init_no_block_begins_so() -> None:
    model = built()
    x = torch.rand(2, 64, 4, 4)
    assert not torch.equal(model.layer1[0](x), x)


@pytest.mark.parametrize("depth", [18, 50])
def test_pictures_stay_channels_last_and_weights_contiguous(depth: int) -> None:
    model, seen = built(depth=depth), []

    def note(module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        seen.append(inputs[0].is_contiguous(memory_format=CHANNELS_LAST))
        seen.append(out.is_contiguous(memory_format=CHANNELS_LAST))

    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(note)
    torch.autograd.backward(model(images(2, 64)).sum())
    assert len(seen) > 0 and all(seen)
    # A fused optimiser adds them up byte by byte; DDP copies a gradient whose strides are not its weight's.
    for name, parameter in model.named_parameters():
        assert parameter.is_contiguous() and parameter.grad is not None, name
        assert parameter.grad.stride() == parameter.stride(), name


def test_layout_does_not_change_the_result() -> None:
    model = built().eval()
    assert torch.equal(model(images(2, 64)), model(images(2, 64).contiguous(memory_format=CHANNELS_LAST)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_under_autocast_batch_norms_and_weights_stay_fp32(dtype: torch.dtype) -> None:
    model, inner = built(), []
    model.layer1[0].conv2.register_forward_hook(lambda module, inputs, out: inner.append(out.dtype))
    with torch.autocast("cpu", dtype=dtype):
        logits = model(images(4, 32))
    torch.autograd.backward(logits.float().square().mean())
    assert inner == [dtype] and logits.dtype == dtype and logits.isfinite().all()
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == (torch.int64 if name.endswith("num_batches_tracked") else torch.float32), name
        assert tensor.isfinite().all(), name
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.dtype == torch.float32, name
        assert parameter.grad.isfinite().all(), name


def test_under_autocast_it_says_nearly_what_fp32_says() -> None:
    exact = built()(images(8, 64))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = built()(images(8, 64)).float()
    # bf16 holds 8 bits, about 0.4 %, and 18 layers add up.
    assert (rounded - exact).norm() / exact.norm() < 0.05


def test_training_moves_the_running_statistics_a_tenth_of_the_way() -> None:
    model = built()
    firsts: list[Tensor] = []
    model.conv1.register_forward_hook(lambda module, inputs, out: firsts.append(out))
    model(images(4, 64))
    assert model.bn1.running_mean is not None and model.bn1.running_var is not None
    variance, mean = torch.var_mean(firsts[0], dim=(0, 2, 3))
    # 0.9 x 0 + 0.1 x mean, and 0.9 x 1 + 0.1 x variance
    torch.testing.assert_close(model.bn1.running_mean, 0.1 * mean)
    torch.testing.assert_close(model.bn1.running_var, 0.9 + 0.1 * variance)
    assert model.bn1.num_batches_tracked == 1


def test_evaluation_does_not_depend_on_the_other_pictures_of_a_batch() -> None:
    model = built()
    model(images(8, 64))
    model.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.testing.assert_close(model(images(3, 64))[:1], model(images(3, 64)[:1]))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("settings", [{"depth": 152}, {"stem": "tiny"}, {"widht": 64}], ids=str)
def test_what_it_does_not_know_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Config.model_validate(settings)
