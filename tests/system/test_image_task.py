"""Details of the classification task: growing pictures, mixing, normalising, several workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from konvoi.config.recipe import Recipe, check
from konvoi.sync import Team
from konvoi.tasks.classification import DEVIATION, MEAN, Normalise, Task, mixing
from konvoi.world import World


@pytest.fixture(scope="module")
def grey(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dark and bright pictures: 40 + 4 of each."""
    folder, draw = tmp_path_factory.mktemp("grey"), np.random.default_rng(1)
    for split, count in (("train", 40), ("val", 4)):
        for name, brightness in (("bright", 200), ("dark", 50)):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = np.clip(draw.normal(brightness, 20, (20, 20)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")
    return folder


def recipe_of(folder: Path, *overrides: str) -> Recipe:
    tables = {
        "task": {"name": "classification"},
        "data": {"set": "image-folder", "folder": str(folder)},
        "model": {"name": "resnet", "depth": 18, "stem": "small", "width": 8},
        "batching": {"images": 16, "size": 32, "processes": 0},
        "schedule": {"name": "constant", "learning_rate": 0.01},
        "train": {"duration": "10 epochs"},
    }
    return check(tables, overrides)


def task_of(folder: Path, *overrides: str) -> Task:
    return Task(recipe_of(folder, *overrides), torch.device("cpu"), Team(World()))


def test_pictures_grow_until_the_share_of_the_training_that_the_recipe_names(grey: Path) -> None:
    task = task_of(grey, "batching.size=128", "batching.grow_from=64", "batching.grow_until=0.5")
    # from 64 to 128 in 5 of 10 epochs: 64 + 64 x epoch / 5, in steps of 16
    assert [task.view(epoch).size for epoch in range(7)] == [64, 80, 96, 96, 112, 128, 128]


def test_without_growth_all_epochs_are_alike(grey: Path) -> None:
    task = task_of(grey)
    assert {task.view(epoch).size for epoch in range(10)} == {32}
    assert task.micro_batch(0).images.shape == (16, 3, 32, 32)


def test_pictures_travel_as_bytes_and_are_normalised_on_the_device() -> None:
    images = torch.tensor(MEAN).round().to(torch.uint8).view(1, 3, 1, 1).expand(2, 3, 4, 4)
    out = Normalise(torch.device("cpu"))(images)
    expected = (torch.tensor(MEAN).round() - torch.tensor(MEAN)) / torch.tensor(DEVIATION)
    assert torch.allclose(out[1, :, 2, 3], expected)
    assert out.is_contiguous(memory_format=torch.channels_last)


def test_mixing_follows_from_the_seed() -> None:
    torch.manual_seed(5)
    share, others = mixing(8, 0.2)
    torch.manual_seed(5)
    again, others_again = mixing(8, 0.2)
    assert share == again and others.equal(others_again)
    assert 0 <= share <= 1 and sorted(others.tolist()) == list(range(8))


def test_mixed_pictures_have_the_mixed_loss(grey: Path) -> None:
    task = task_of(grey, "task.mixup=0.4", "task.label_smoothing=0.0")
    batch, model = task.micro_batch(0), torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 2))
    torch.manual_seed(7)
    objective, plain = task.loss_sums(model, batch)
    torch.manual_seed(7)
    share, others = mixing(16, 0.4)
    images = task.normalise(batch.images)
    logits = model(share * images + (1 - share) * images[others])
    by_hand = [
        torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        for labels in (batch.labels, batch.labels[others])
    ]
    assert objective.item() == pytest.approx((share * by_hand[0] + (1 - share) * by_hand[1]).item(), rel=1e-5)
    assert plain.item() == pytest.approx(by_hand[0].item(), rel=1e-5)


def test_label_smoothing_is_in_the_objective_and_not_in_the_loss(grey: Path) -> None:
    task = task_of(grey, "task.label_smoothing=0.1")
    batch, model = task.micro_batch(0), torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 2))
    objective, plain = task.loss_sums(model, batch)
    logits = model(task.normalise(batch.images))
    assert plain.item() == pytest.approx(
        torch.nn.functional.cross_entropy(logits, batch.labels, reduction="sum").item()
    )
    assert objective.item() != pytest.approx(plain.item(), rel=1e-3)


def test_two_workers_see_every_picture_of_an_epoch_once(grey: Path) -> None:
    # 80 pictures at 16 are 5 micro-batches: rank 0 takes 0, 2, 4, rank 1 takes 1, 3
    labels = []
    for rank in range(2):
        task = task_of(grey)
        for position in range(rank, task.num_per_epoch, 2):
            labels += task.micro_batch(position).labels.tolist()
    assert (labels.count(0), labels.count(1)) == (40, 40)
