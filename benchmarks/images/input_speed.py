"""Decoded and augmented pictures per second of one process: konvoi against the usual way, interleaved in one run.

    python benchmarks/images/input_speed.py --archive imagenette2-160.tar [--pictures 1000] [--rounds 3]

The usual way is Pillow (open, convert, random-resized crop, flip), a float tensor, normalised, in a torch DataLoader
with one worker; konvoi has one decoding process. Both on the pictures as they are and enlarged to 500 px, in batches of
64. Every measurement appends a row to input_speed.jsonl; the table shows the medians of this run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import statistics
import tarfile
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from konvoi.image_input.augment import View
from konvoi.image_input.pipeline import TrainInput
from konvoi.image_input.plan import TrainPlan
from konvoi.images.image_set import ImageSet
from konvoi.images.prepare import prepare_images

RESULTS = Path(__file__).with_name("input_speed.jsonl")
BATCH = 64
# As torch's DataLoader has it.
NUM_AHEAD = 2
WARM_UP_BATCHES = 4
LARGE_PIXELS = 500
LARGE_QUALITY = 90
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
DEVIATION = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archive", type=Path, required=True)
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--sizes", default="128,224")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sets = make_sets(Path(folder), arguments.archive, arguments.pictures)
        rows = list(measured(sets, [int(size) for size in arguments.sizes.split(",")], arguments))
    print_table(rows)


def make_sets(folder: Path, archive: Path, num_pictures: int) -> dict[str, ImageSet]:
    """The same pictures as they are, and enlarged."""
    plain, large = folder / "plain", folder / "large"
    with tarfile.open(archive) as stream:
        files = [member for member in stream if member.isfile() and "/train/" in member.name]
        for member in random.Random(1).sample(files, num_pictures):
            member.name = member.name.partition("/train/")[2]
            stream.extract(member, plain, filter="data")
    for path in sorted(plain.rglob("*.JPEG")):
        enlarge(path, large / path.relative_to(plain))
    return {
        name: prepare_images("image-folder", from_folder=tree, to=None, home=folder / "home", num_processes=1)
        for name, tree in (("160 px", plain), ("500 px", large))
    }


def enlarge(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(path) as picture:
        factor = LARGE_PIXELS / max(picture.size)
        size = (round(picture.width * factor), round(picture.height * factor))
        picture.convert("RGB").resize(size, Image.Resampling.BICUBIC).save(target, "JPEG", quality=LARGE_QUALITY)


def measured(sets: dict[str, ImageSet], sizes: list[int], arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    contenders = {"usual": usual_batches, "konvoi": konvoi_batches}
    for number, (name, image_set), size in itertools.product(range(arguments.rounds), sets.items(), sizes):
        # By turns: whoever comes first has no advantage over all rounds.
        for contender in sorted(contenders, reverse=number % 2 == 0):
            speeds = measure(contenders[contender](image_set, size), arguments.seconds)
            row = {"contender": contender, "set": name, "size": size, "round": number, **speeds}
            row["at"] = time.strftime("%Y-%m-%d %H:%M")
            with RESULTS.open("a") as file:
                file.write(json.dumps(row) + "\n")
            yield row


def measure(batches: Iterator[int], seconds: float) -> dict[str, float]:
    """Pictures per second of the clock, and per second of all processors that worked for it."""
    for _ in range(WARM_UP_BATCHES):
        next(batches)
    started_at, cpu_before = time.perf_counter(), cpu_seconds()
    num_pictures = 0
    while time.perf_counter() < started_at + seconds:
        num_pictures += next(batches)
    passed, cpu_passed = time.perf_counter() - started_at, cpu_seconds() - cpu_before
    del batches
    return {
        "pictures_per_second": round(num_pictures / passed, 1),
        "pictures_per_cpu_second": round(num_pictures / cpu_passed, 1),
    }


def cpu_seconds() -> float:
    """Of this process and those that it started."""
    total = time.process_time()
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def konvoi_batches(image_set: ImageSet, size: int) -> Iterator[int]:
    plan = TrainPlan(len(image_set.entries("train")), BATCH, seed=1)
    view = View(size)
    with TrainInput(image_set, plan, lambda _: view, 1, stride=1, num_processes=1, num_ahead=NUM_AHEAD) as given:
        for position in itertools.count():
            yield len(given.get(position).images)


def usual_batches(image_set: ImageSet, size: int) -> Iterator[int]:
    entries = image_set.entries("train")
    paths = [image_set.path(entries, number) for number in range(len(entries))]
    dataset = UsualDataset(paths, entries.class_numbers.tolist(), size)
    loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=1, prefetch_factor=NUM_AHEAD, persistent_workers=True)
    while True:
        for images, _ in loader:
            yield len(images)


class UsualDataset(Dataset[tuple[torch.Tensor, int]]):
    """What torchvision's ImageFolder, RandomResizedCrop, RandomHorizontalFlip, ToTensor and Normalize do."""

    def __init__(self, paths: list[Path], labels: list[int], size: int) -> None:
        self.paths, self.labels, self.size = paths, labels, size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[index]) as file:
            picture = file.convert("RGB")
        picture = picture.crop(crop_of(*picture.size)).resize((self.size, self.size), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        image = torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous().to(torch.float32).div(255)
        return image.sub_(MEAN).div_(DEVIATION), self.labels[index]


def crop_of(width: int, height: int) -> tuple[int, int, int, int]:
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            return left, top, left + w, top + h
    return 0, 0, width, height


def print_table(rows: list[dict[str, Any]]) -> None:
    found: dict[tuple[str, int, str], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        speeds = row["pictures_per_second"], row["pictures_per_cpu_second"]
        found[row["set"], row["size"], row["contender"]].append(speeds)
    print("pictures  shown    usual/s   konvoi/s  ratio   usual/CPU s  konvoi/CPU s  ratio")
    for name, size in sorted({key[:2] for key in found}):
        usual, konvoi = (
            [statistics.median(column) for column in zip(*found[name, size, one], strict=True)]
            for one in ("usual", "konvoi")
        )
        print(
            f"{name:8} {size:4} px {usual[0]:10,.0f} {konvoi[0]:10,.0f} {konvoi[0] / usual[0]:6.2f}"
            f" {usual[1]:13,.0f} {konvoi[1]:13,.0f} {konvoi[1] / usual[1]:6.2f}"
        )


if __name__ == "__main__":
    main()
