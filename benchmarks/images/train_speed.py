"""Images per second of training a ResNet-18 at 128 px: a plain torch loop and konvoi's model, interleaved in one run.

    python benchmarks/images/train_speed.py [--rounds 3] [--seconds 20] [--only "plain;konvoi"]

Both train on the same synthetic uint8 pictures with SGD and cross-entropy, in fp32, with as many threads as there are
cores. The plain loop is what one writes first: torchvision's layers and names, torch's default memory layout and
default SGD. The others show what each part of konvoi brings. Every measurement is a process of its own and appends a
row to train_speed.jsonl; the ratio compares medians of this run alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from konvoi.config.sections import Optim
from konvoi.engine import optim
from konvoi.engine.setup import keep_memory, num_cores
from konvoi.models import _conv_kernels
from konvoi.models.resnet import Config, Model, flops

RESULTS = Path(__file__).with_suffix(".jsonl")
NUM_CLASSES, SIDE = 10, 128
MEAN, DEVIATION = (124.0, 116.0, 104.0), (58.0, 57.0, 57.0)
WARM_UP_STEPS = 2


class PlainBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        around = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += around
        return self.relu(out)


def plain_model() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    for inputs, outputs, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        layers += [PlainBlock(inputs, outputs, stride), PlainBlock(outputs, outputs, 1)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, NUM_CLASSES)]
    return nn.Sequential(*layers)


@dataclass
class Contender:
    """What takes one step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def step(self, images: Tensor, classes: Tensor) -> float:
        mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, DEVIATION))
        loss = functional.cross_entropy(self.model((images.float() - mean) / deviation), classes)
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()


def plain() -> Contender:
    model = plain_model()
    return Contender(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4))


def plain_channels_last() -> Contender:
    model = plain_model().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Contender(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4))


def konvoi() -> Contender:
    keep_memory()
    model = Model(Config(depth=18), NUM_CLASSES)
    optimizer = optim.build(Optim(name="sgd", momentum=0.9, weight_decay=1e-4), model)
    optim.set_rate(optimizer, 0.01)
    return Contender(model, optimizer)


def konvoi_with_torchs_convolutions() -> Contender:
    _conv_kernels.FEWEST_TILES = sys.maxsize
    return konvoi()


CONTENDERS: dict[str, Callable[[], Contender]] = {
    "plain": plain,
    "plain, channels-last": plain_channels_last,
    "konvoi with torch's convolutions": konvoi_with_torchs_convolutions,
    "konvoi": konvoi,
}


def measure(contender: Contender, batch: int, seconds: float) -> dict[str, float]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (batch, 3, SIDE, SIDE), dtype=torch.uint8, generator=generator)
    if not isinstance(contender.model, nn.Sequential):
        images = images.contiguous(memory_format=torch.channels_last)
    classes = torch.randint(0, NUM_CLASSES, (batch,), generator=generator)
    for _ in range(WARM_UP_STEPS):
        loss = contender.step(images, classes)
    step_seconds: list[float] = []
    while sum(step_seconds) < seconds:
        started_at = time.perf_counter()
        loss = contender.step(images, classes)
        step_seconds.append(time.perf_counter() - started_at)
    images_per_second = batch / statistics.median(step_seconds)
    giga_flops = 3 * flops(Config(depth=18), SIDE, SIDE, NUM_CLASSES) * images_per_second / 1e9
    return {
        "images_per_second": round(images_per_second, 2),
        "gigaflops_per_second": round(giga_flops, 1),
        "steps": len(step_seconds),
        "last_loss": round(loss, 4),
    }


def measure_in_a_process(name: str, arguments: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--work", name, "--seconds", str(arguments.seconds)]
    command += ["--batch", str(arguments.batch), "--threads", str(arguments.threads)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def compare(arguments: argparse.Namespace) -> None:
    speeds: dict[str, list[float]] = defaultdict(list)
    names = [name for name in CONTENDERS if not arguments.only or name in arguments.only.split(";")]
    for number in range(arguments.rounds):
        for name in names:
            result = measure_in_a_process(name, arguments)
            speeds[name].append(result["images_per_second"])
            setting = {"contender": name, "round": number, "batch": arguments.batch, "threads": arguments.threads}
            row = {**setting, "at": time.strftime("%Y-%m-%d %H:%M"), **result}
            with RESULTS.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(row, flush=True)
    first = statistics.median(speeds[names[0]])
    for name, values in speeds.items():
        middle = statistics.median(values)
        print(f"{name}: {middle:.1f} images/s ({', '.join(map(str, values))}), {middle / first:.2f} x {names[0]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=num_cores())
    parser.add_argument("--only", help="contenders, with ; between them")
    parser.add_argument("--work", choices=CONTENDERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.work:
        return compare(arguments)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    print(json.dumps(measure(CONTENDERS[arguments.work](), arguments.batch, arguments.seconds)))


if __name__ == "__main__":
    main()
