"""The residual networks of "Deep Residual Learning for Image Recognition", with torchvision's names and shapes.

Version 1.5: a bottleneck halves the picture in its 3 x 3 convolution, not in its first 1 x 1.
Shapes: N pictures, C channels, H height, W width. Pictures are channels-last in memory from the first layer to the
last, which is how a convolution reads them fastest. Weights are not: a fused optimiser walks through a weight and its
moments byte by byte, and moments that a checkpoint brings are contiguous.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from konvoi.config.section import Section
from konvoi.models._conv_kernels import Convolution, norm_add_relu, norm_relu
from konvoi.models._sync_batch_norm import SyncBatchNorm

# Blocks in each of the four stages.
BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
# Channels of a stage, as multiples of the first one's.
STAGE_FACTORS = (1, 2, 4, 8)


class Config(Section):
    """The recipe's [model] table."""

    name: Literal["resnet"] = "resnet"
    depth: Literal[18, 34, 50, 101] = 50
    """Layers with weights; from 50 on a block is a bottleneck of three convolutions."""
    stem: Literal["imagenet", "deep", "small"] = "imagenet"
    """7 x 7 and a max-pool, which leave a quarter of each side; deep: three 3 x 3 in place of the 7 x 7; small: one
    3 x 3, which leaves all of the picture, for 28 to 64 px."""
    shortcut: Literal["strided", "average"] = "strided"
    """Around a block that halves the picture: every other pixel, or the mean of four."""
    width: PositiveInt = 64
    """Channels of the stem and the first stage; each further stage has twice those of the one before."""
    zero_init_residual: bool = False
    """Start the last batch norm of every block at zero, so that each block begins as the identity."""
    sync_batch_norm: bool = False
    """Batch norm over the pictures of all workers, not of each alone; costs two messages a layer."""

    @property
    def expansion(self) -> int:
        """How many times wider a block's output is than its inside."""
        return 1 if self.depth < 50 else 4

    @property
    def num_features(self) -> int:
        """What the linear layer sees of a picture."""
        return STAGE_FACTORS[-1] * self.width * self.expansion

    @property
    def stem_stride(self) -> int:
        """Of its first convolution, and of the max-pool behind it, if there is one."""
        return 1 if self.stem == "small" else 2

    @property
    def stem_convolutions(self) -> list[tuple[int, int, int]]:
        """Channels in and out, and the kernel's side; the first one has the stride."""
        if self.stem == "deep":
            return [(3, self.width // 2, 3), (self.width // 2, self.width // 2, 3), (self.width // 2, self.width, 3)]
        return [(3, self.width, 7 if self.stem == "imagenet" else 3)]


@dataclass(frozen=True)
class BlockShape:
    """Channels in, inside and out; stride 2 halves each side of the picture."""

    inputs: int
    width: int
    outputs: int
    stride: int

    @property
    def has_downsample(self) -> bool:
        return self.stride > 1 or self.inputs != self.outputs


def stage_shapes(config: Config) -> list[list[BlockShape]]:
    """The blocks of the four stages."""
    stages, inputs = [], config.width
    for number, (num_blocks, factor) in enumerate(zip(BLOCKS[config.depth], STAGE_FACTORS, strict=True)):
        width = factor * config.width
        outputs = width * config.expansion
        first = BlockShape(inputs, width, outputs, stride=1 if number == 0 else 2)
        stages.append([first, *[BlockShape(outputs, width, outputs, stride=1)] * (num_blocks - 1)])
        inputs = outputs
    return stages


class Shortcut(nn.Sequential):
    """The way around a block whose output has another shape than its input."""

    def __init__(self, shape: BlockShape, norm: type[nn.BatchNorm2d], config: Config) -> None:
        self.pool = shape.stride if config.shortcut == "average" else 1
        super().__init__(Convolution(shape.inputs, shape.outputs, 1, shape.stride // self.pool), norm(shape.outputs))

    def forward(self, x: Tensor) -> Tensor:
        if self.pool > 1:
            # An odd side leaves half a window at the edge: the mean of what is there.
            x = functional.avg_pool2d(x, self.pool, ceil_mode=True, count_include_pad=False)
        convolution, norm = self
        out: Tensor = norm(convolution(x))
        return out


def stem(config: Config, norm: type[nn.BatchNorm2d]) -> nn.Module:
    """One convolution, or a chain of them with a batch norm and a ReLU between two."""
    layers: list[nn.Module] = []
    for inputs, outputs, kernel in config.stem_convolutions:
        if layers:
            layers += [norm(inputs), nn.ReLU(inplace=True)]
        layers.append(Convolution(inputs, outputs, kernel, config.stem_stride if not layers else 1))
    return layers[0] if len(layers) == 1 else nn.Sequential(*layers)


class Block(nn.Module):
    """What both kinds share."""

    downsample: Shortcut | None

    def around(self, x: Tensor) -> Tensor:
        out: Tensor = self.downsample(x) if self.downsample is not None else x
        return out

    def last_norm(self) -> nn.BatchNorm2d:
        raise NotImplementedError


class BasicBlock(Block):
    """Two 3 x 3 convolutions."""

    def __init__(self, shape: BlockShape, norm: type[nn.BatchNorm2d], config: Config) -> None:
        super().__init__()
        self.conv1 = Convolution(shape.inputs, shape.width, 3, shape.stride)
        self.bn1 = norm(shape.width)
        self.conv2 = Convolution(shape.width, shape.outputs, 3)
        self.bn2 = norm(shape.outputs)
        self.downsample = Shortcut(shape, norm, config) if shape.has_downsample else None

    def forward(self, x: Tensor) -> Tensor:
        out = norm_relu(self.bn1, self.conv1(x))
        return norm_add_relu(self.bn2, self.conv2(out), self.around(x))

    def last_norm(self) -> nn.BatchNorm2d:
        return self.bn2


class Bottleneck(Block):
    """1 x 1 to fewer channels, 3 x 3, 1 x 1 to more."""

    def __init__(self, shape: BlockShape, norm: type[nn.BatchNorm2d], config: Config) -> None:
        super().__init__()
        self.conv1 = Convolution(shape.inputs, shape.width, 1)
        self.bn1 = norm(shape.width)
        self.conv2 = Convolution(shape.width, shape.width, 3, shape.stride)
        self.bn2 = norm(shape.width)
        self.conv3 = Convolution(shape.width, shape.outputs, 1)
        self.bn3 = norm(shape.outputs)
        self.downsample = Shortcut(shape, norm, config) if shape.has_downsample else None

    def forward(self, x: Tensor) -> Tensor:
        out = norm_relu(self.bn1, self.conv1(x))
        out = norm_relu(self.bn2, self.conv2(out))
        return norm_add_relu(self.bn3, self.conv3(out), self.around(x))

    def last_norm(self) -> nn.BatchNorm2d:
        return self.bn3


class Model(nn.Module):
    """Stem, four stages, the mean over the picture, one linear layer."""

    EDGES = ("conv1.weight", "conv1.0.weight", "fc.weight")
    """What reads the input and what makes the output; see engine/optim.py."""

    def __init__(self, config: Config, num_classes: int) -> None:
        super().__init__()
        self.config = config
        norm = SyncBatchNorm if config.sync_batch_norm else nn.BatchNorm2d
        block = BasicBlock if config.depth < 50 else Bottleneck
        stages = [nn.Sequential(*(block(shape, norm, config) for shape in shapes)) for shapes in stage_shapes(config)]
        self.conv1 = stem(config, norm)
        self.bn1 = norm(config.width)
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Linear(config.num_features, num_classes)
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, Block) and self.config.zero_init_residual:
                nn.init.zeros_(module.last_norm().weight)

    def forward(self, images: Tensor) -> Tensor:
        """[N,3,H,W] -> logits [N,classes]"""
        x = norm_relu(self.bn1, self.conv1(images.contiguous(memory_format=torch.channels_last)))
        if self.config.stem != "small":
            x = functional.max_pool2d(x, kernel_size=3, stride=2, padding=1)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        logits: Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits


@dataclass(frozen=True)
class ConvolutionShape:
    inputs: int
    outputs: int
    kernel: int
    shrinks_by: int
    """The side of the picture over the side of what comes out."""

    @property
    def num_weights(self) -> int:
        return self.inputs * self.outputs * self.kernel**2


def convolution_shapes(config: Config) -> Iterator[ConvolutionShape]:
    """Every convolution of the model, without building it; each has a batch norm behind it."""
    shrinks_by = config.stem_stride
    for inputs, outputs, kernel in config.stem_convolutions:
        yield ConvolutionShape(inputs, outputs, kernel, shrinks_by)
    shrinks_by *= config.stem_stride  # the max-pool
    for shape in (shape for stage in stage_shapes(config) for shape in stage):
        before, shrinks_by = shrinks_by, shrinks_by * shape.stride
        if shape.has_downsample:
            yield ConvolutionShape(shape.inputs, shape.outputs, 1, shrinks_by)
        if config.expansion == 1:
            yield ConvolutionShape(shape.inputs, shape.width, 3, shrinks_by)
            yield ConvolutionShape(shape.width, shape.outputs, 3, shrinks_by)
        else:
            yield ConvolutionShape(shape.inputs, shape.width, 1, before)
            yield ConvolutionShape(shape.width, shape.width, 3, shrinks_by)
            yield ConvolutionShape(shape.width, shape.outputs, 1, shrinks_by)


def num_parameters(config: Config, num_classes: int) -> int:
    """Without building the model, so that `konvoi info` answers at once."""
    # A batch norm has a weight and a bias for each channel.
    convolutions = sum(shape.num_weights + 2 * shape.outputs for shape in convolution_shapes(config))
    return convolutions + config.num_features * num_classes + num_classes


def flops(config: Config, height: int, width: int, num_classes: int) -> float:
    """Floating-point operations of one picture's forward pass: two for each weight and place where it is used.

    Counts convolutions and the linear layer, as the papers do; a training step costs three times as much.
    """
    total = config.num_features * num_classes
    for shape in convolution_shapes(config):
        # Half a pixel at the edge is a pixel: every layer rounds up.
        total += shape.num_weights * -(-height // shape.shrinks_by) * -(-width // shape.shrinks_by)
    return 2.0 * total
