"""Images per second of training a ResNet-18 at 128 px: a plain torch loop and konvoi's model, interleaved in one run.

    python benchmarks/images/train_speed.py [--rounds 3] [--steps 8] [--only "plain;konvoi"]

Both train on the same synthetic uint8 pictures with SGD and cross-entropy, in fp32, with as many threads as there are
cores. The plain loop is what one writes first: torchvision's layers and names, torch's default memory layout and
default SGD. The others show what each part of konvoi brings. Every measurement is a process of its own (two, where
there are two workers) and appends a row to train_speed.jsonl; ratios compare medians and bests of this run alone, and
processor time per image, which suffers less from whatever else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
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
from konvoi.cores import usable_cores
from konvoi.engine import optim
from konvoi.memory import keep_memory
from konvoi.models import _conv_kernels
from konvoi.models.resnet import Config, Model, flops
from konvoi.sync import Team
from konvoi.sync.ddp import Config as DdpConfig
from konvoi.sync.ddp import Sync
from konvoi.telemetry.timeline import Timeline
from konvoi.world import from_environment

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
        result: Tensor = self.relu(out)
        return result


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
    optimizer = optim.build(Optim.model_validate({"name": "sgd", "momentum": 0.9, "weight_decay": 1e-4}), model)
    optim.set_rate(optimizer, 0.01)
    return Contender(model, optimizer)


def konvoi_with_torchs_convolutions() -> Contender:
    _conv_kernels.FEWEST_TILES = sys.maxsize
    return konvoi()


def konvoi_worker() -> Contender:
    """One of two that share the batch, each with one thread: no thread waits for another within a step."""
    contender = konvoi()
    contender.model = Sync(DdpConfig(), Team(from_environment()), Timeline()).wrap(contender.model)
    return contender


CONTENDERS: dict[str, Callable[[], Contender]] = {
    "plain": plain,
    "plain, channels-last": plain_channels_last,
    "konvoi with torch's convolutions": konvoi_with_torchs_convolutions,
    "konvoi": konvoi,
    "konvoi, 2 workers": konvoi_worker,
}


def measure(contender: Contender, batch: int, steps: int) -> dict[str, float]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (batch, 3, SIDE, SIDE), dtype=torch.uint8, generator=generator)
    # Konvoi's input pipeline hands pictures over as they were decoded.
    if not isinstance(contender.model, nn.Sequential):
        images = images.contiguous(memory_format=torch.channels_last)
    classes = torch.randint(0, NUM_CLASSES, (batch,), generator=generator)
    for _ in range(WARM_UP_STEPS):
        loss = contender.step(images, classes)
    step_seconds, processor_started_at = [], time.process_time()
    for _ in range(steps):
        started_at = time.perf_counter()
        loss = contender.step(images, classes)
        step_seconds.append(time.perf_counter() - started_at)
    processor_seconds = (time.process_time() - processor_started_at) / steps
    return {
        "step_seconds": statistics.median(step_seconds),
        "best_step_seconds": min(step_seconds),
        "processor_seconds": processor_seconds,
        "last_loss": loss,
    }


def start(name: str, arguments: argparse.Namespace, rank: int, size: int, port: int) -> subprocess.Popen[str]:
    threads = max(1, arguments.threads // size)
    command = [sys.executable, __file__, "--work", name, "--steps", str(arguments.steps)]
    command += ["--batch", str(arguments.batch // size), "--threads", str(threads)]
    ranks = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MASTER_ADDR": "127.0.0.1"}
    environment |= {key: str(value) for key, value in ranks.items()}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def measure_in_processes(name: str, arguments: argparse.Namespace) -> dict[str, float]:
    """The first worker's times; processor time of all workers."""
    size = 2 if name.endswith("2 workers") else 1
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    workers = [start(name, arguments, rank, size, port) for rank in range(size)]
    found = [json.loads(worker.communicate()[0]) for worker in workers]
    images_per_second = arguments.batch / found[0]["step_seconds"]
    giga_flops = 3 * flops(Config(depth=18), SIDE, SIDE, NUM_CLASSES) * images_per_second / 1e9
    return {
        "images_per_second": round(images_per_second, 2),
        "best_images_per_second": round(arguments.batch / found[0]["best_step_seconds"], 2),
        "processor_ms_per_image": round(1000 * sum(one["processor_seconds"] for one in found) / arguments.batch, 2),
        "gigaflops_per_second": round(giga_flops, 1),
        "last_loss": round(found[0]["last_loss"], 4),
    }


def compare(arguments: argparse.Namespace) -> None:
    rows: dict[str, list[dict[str, float]]] = defaultdict(list)
    names = [name for name in CONTENDERS if not arguments.only or name in arguments.only.split(";")]
    for number in range(arguments.rounds):
        for name in names:
            load_before = round(os.getloadavg()[0], 1)
            result = measure_in_processes(name, arguments)
            rows[name].append(result)
            setting = {"contender": name, "round": number, "batch": arguments.batch, "threads": arguments.threads}
            row = {**setting, "at": time.strftime("%Y-%m-%d %H:%M"), "load_before": load_before, **result}
            with RESULTS.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(row, flush=True)
    print_table(rows)


def print_table(rows: dict[str, list[dict[str, float]]]) -> None:
    """Each number with its ratio to the first contender's, above 1 where faster."""
    print("| contender | images/s, median | best | processor ms per image |\n| --- | --- | --- | --- |")
    first: tuple[float, ...] = ()
    for name, group in rows.items():
        middle = statistics.median(row["images_per_second"] for row in group)
        best = max(row["best_images_per_second"] for row in group)
        processor = min(row["processor_ms_per_image"] for row in group)
        first = first or (middle, best, processor)
        ratios = (middle / first[0], best / first[1], first[2] / processor)
        cells = [f"{v:.1f} ({r:.2f} x)" for v, r in zip((middle, best, processor), ratios, strict=True)]
        print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--only", help="contenders, with ; between them")
    parser.add_argument("--work", choices=CONTENDERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.work:
        return compare(arguments)
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    print(json.dumps(measure(CONTENDERS[arguments.work](), arguments.batch, arguments.steps)))


if __name__ == "__main__":
    main()
