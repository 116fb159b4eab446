"""Classification of pictures: uint8 batches in, smoothed cross-entropy, Acc@1 and Acc@5 out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, NonNegativeInt, PositiveInt, field_validator, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from konvoi import registry
from konvoi.config.recipe import Recipe
from konvoi.config.section import Section
from konvoi.config.sections import Evaluate as BaseEvaluate
from konvoi.data.home import brought_set, konvoi_home
from konvoi.errors import DataError, RunError, did_you_mean
from konvoi.evaluate.accuracy import Confusion
from konvoi.evaluate.picture_samples import PictureSamples
from konvoi.folder import read_json, write_json
from konvoi.image_input.augment import View
from konvoi.image_input.pipeline import EvaluationInput, TrainInput
from konvoi.image_input.plan import TrainPlan
from konvoi.images.image_set import ImageSet
from konvoi.images.open import find_images_of, open_images
from konvoi.images.sets import IMAGE_FOLDER, IMAGE_SETS
from konvoi.run_directory import RunDirectory
from konvoi.stages import Report, silent
from konvoi.sync import Team

__all__ = ["Batching", "Config", "Data", "Evaluate", "Task", "prepare"]

# Of ImageNet, in the units of a byte; subtracted on the device, so that pictures travel as bytes.
MEAN = (123.675, 116.28, 103.53)
DEVIATION = (58.395, 57.12, 57.375)
# The evaluation sees the middle of a picture that is a little larger, as everybody does it: 224 of 256.
RESIZE_FACTOR = 256 / 224
SIZE_MULTIPLE = 16


class Config(Section):
    """The recipe's [task] table."""

    name: Literal["classification"] = "classification"
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    mixup: float = Field(0.0, ge=0)
    """Pictures are blended in pairs by a share drawn from Beta(mixup, mixup); 0 switches it off."""


class Data(Section):
    """The recipe's [data] table."""

    set: str
    """demo-images, imagenette, imagenet or image-folder: made ready by konvoi data prepare SET --from DIR."""
    folder: Path | None = None
    """A folder that konvoi data prepare made, or any folder of class folders; else the newest prepared set."""
    max_damaged_share: float = Field(0.01, ge=0, le=1)
    """Pictures that can't be decoded are skipped and listed; with more than this share of them the run stops."""

    @field_validator("set")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in IMAGE_SETS:
            raise ValueError(
                f'there is no set "{name}"{did_you_mean(name, IMAGE_SETS)} (known: {", ".join(IMAGE_SETS)})'
            )
        return name

    @field_validator("folder")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return path.expanduser().absolute() if path else None

    @model_validator(mode="after")
    def _has_a_folder(self) -> Data:
        if self.set == IMAGE_FOLDER and self.folder is None:
            raise ValueError("folder: missing; image-folder needs to know which")
        return self


class Batching(Section):
    """The recipe's [batching] table."""

    images: PositiveInt = 64
    """Pictures per worker and micro-batch."""
    size: PositiveInt = 224
    """Pixels of the square that the model sees."""
    min_area: float = Field(0.08, gt=0, le=1)
    """A random crop has at least this share of a picture's area."""
    flip: bool = True
    """Mirror every second picture, drawn at random."""
    grow_from: PositiveInt | None = None
    """Progressive resizing: begin with so many pixels and grow to `size`."""
    grow_until: float = Field(0.8, gt=0, le=1)
    """The share of the training at which it is reached."""
    processes: NonNegativeInt = 1
    """That decode pictures for a worker; 0 leaves it to the worker itself."""


class Evaluate(BaseEvaluate):
    """The recipe's [evaluate] table."""

    metric: Literal["accuracy_1", "accuracy_5", "loss"] = "accuracy_1"
    """Decides which checkpoint is the best."""
    split: str = "val"
    images: PositiveInt = 128
    """Pictures per batch."""
    resize: PositiveInt | None = None
    """The shorter side before the middle is cut out; size x 256 / 224 unless given."""
    samples: NonNegativeInt = 6
    """Pictures that an evaluation keeps for the report, with the model's guess."""


@dataclass
class Batch:
    """A micro-batch on its device: images uint8 [N,3,H,W] in channels-last memory, labels [N]."""

    images: Tensor
    labels: Tensor
    num_targets: int
    num_sources: int = 0
    num_padded: int = 0


def prepare(recipe: Recipe, report: Report = silent) -> ImageSet:
    """The prepared pictures of a recipe; the embedded ones, and a folder without an index, are made ready now."""
    if folder := brought_set():
        return ImageSet.open(folder)
    data = _data(recipe)
    return open_images(data.set, data.folder, konvoi_home(), report)


def find(recipe: Recipe) -> ImageSet | None:
    """The prepared pictures, where there are some; nothing is made."""
    if folder := brought_set():
        return ImageSet.open(folder)
    data = _data(recipe)
    return find_images_of(data.set, data.folder, konvoi_home())


def carry(prepared: ImageSet, run: RunDirectory) -> None:
    """Puts into the run directory what the trained model needs: it is then used without the pictures."""
    write_json(run.data_file, {**prepared.info, "class_names": prepared.classes, "class_words": prepared.words})


def check_same(prepared: ImageSet, run: RunDirectory) -> None:
    """Other classes under the same numbers would train or score nonsense without a word."""
    if prepared.classes != classes_of(run):
        raise DataError(
            f"the pictures in {prepared.folder} have other classes than {run.path} was trained on",
            hint="bring the former pictures back, or begin a new run",
        )


def classes_of(run: RunDirectory) -> list[str]:
    return _carried(run, "class_names")


def words_of(run: RunDirectory) -> list[str]:
    """What the classes are called."""
    return _carried(run, "class_words")


def _carried(run: RunDirectory, key: str) -> list[str]:
    if not (found := read_json(run.data_file).get(key)):
        raise RunError(f"{run.data_file} is missing or names no classes", hint="copy the whole run directory")
    return [str(name) for name in found]


def open_model(recipe: Recipe, run: RunDirectory) -> nn.Module:
    """The model of a run, before its weights are loaded."""
    return _new_model(recipe, len(classes_of(run)))


def num_outputs(recipe: Recipe, prepared: ImageSet | None) -> int:
    """What the size of the model depends on besides its table: classes."""
    return len(prepared.classes) if prepared else IMAGE_SETS[_data(recipe).set].num_classes


def work(recipe: Recipe, prepared: ImageSet | None) -> dict[str, float]:
    """Operations of forward and backward."""
    module, size = registry.find("model", recipe.name_of("model")), _batching(recipe).size
    return {"flops_per_image": 3 * module.flops(recipe.model, size, size, num_outputs(recipe, prepared))}


def _new_model(recipe: Recipe, num_classes: int) -> nn.Module:
    module = registry.find("model", recipe.name_of("model"))
    model: nn.Module = module.Model(recipe.model, num_classes)
    return model


def _data(recipe: Recipe) -> Data:
    assert isinstance(recipe.data, Data)
    return recipe.data


def _batching(recipe: Recipe) -> Batching:
    assert isinstance(recipe.batching, Batching)
    return recipe.batching


class Task:
    """The recipe's pictures opened on one rank."""

    def __init__(self, recipe: Recipe, device: torch.device, team: Team) -> None:
        assert isinstance(recipe.task, Config) and isinstance(recipe.evaluate, Evaluate)
        self.recipe, self.device, self.team = recipe, device, team
        self.config, self.settings, self.batching = recipe.task, recipe.evaluate, _batching(recipe)
        self.set = prepare(recipe)
        self.normalise = Normalise(device)
        self._num_damaged_told = 0
        self.plan = TrainPlan(len(self.set.entries("train")), self.batching.images, recipe.train.seed)

    @cached_property
    def input(self) -> TrainInput:
        """Starts its processes when the first micro-batch is asked for: an evaluation needs none."""
        return TrainInput(
            self.set,
            self.plan,
            self.view,
            self.recipe.train.seed,
            stride=self.team.size,
            num_processes=self.batching.processes,
        )

    def view(self, epoch: int) -> View:
        """Smaller pictures at first, where the recipe wants it: most of what there is to learn shows in them, too."""
        batching = self.batching
        size = batching.size
        if batching.grow_from is not None:
            growth = min(1.0, epoch / max(1.0, batching.grow_until * self._num_epochs()))
            between = batching.grow_from + growth * (batching.size - batching.grow_from)
            size = min(size, round(between / SIZE_MULTIPLE) * SIZE_MULTIPLE)
        return View(size=size, min_area=batching.min_area, flip=batching.flip)

    def _num_epochs(self) -> float:
        steps_per_epoch = self.num_per_epoch / (self.team.size * self.recipe.train.accumulate)
        return (self.recipe.train.duration.steps(steps_per_epoch) or 0) / steps_per_epoch

    @property
    def num_per_epoch(self) -> int:
        return self.plan.num_per_epoch

    def num_targets(self, position: int) -> int:
        return self.plan.num_images(position)

    def build_model(self) -> nn.Module:
        return _new_model(self.recipe, len(self.set.classes)).to(self.device)

    def micro_batch(self, position: int) -> Batch:
        pictures = self.input.get(position)
        self._check_damaged(self.input.damaged, "train")
        images, labels = (part.to(self.device, non_blocking=True) for part in (pictures.images, pictures.labels))
        return Batch(images, labels, len(labels))

    def _check_damaged(self, damaged: list[tuple[str, str]], split: str) -> None:
        share = len(damaged) / len(self.set.entries(split))
        if share > _data(self.recipe).max_damaged_share:
            path, why = damaged[0]
            raise DataError(
                f"{len(damaged):,} pictures can't be decoded ({share:.1%}); the first is {path}: {why}",
                hint="mend or remove them and prepare the set again, or raise data.max_damaged_share",
            )

    def amounts(
        self, targets: float, sources: float, padded: float, own_targets: int, seconds: float
    ) -> dict[str, Any]:
        """A step's work, for its event; pictures that could not be decoded are named once."""
        amounts: dict[str, Any] = {
            "images": int(targets),
            "own_images": own_targets,
            "images_per_second": targets / seconds,
        }
        if newly_damaged := self.input.damaged[self._num_damaged_told :]:
            self._num_damaged_told += len(newly_damaged)
            amounts["damaged"] = newly_damaged
        return amounts

    def loss_sums(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """The smoothed (and mixed) loss and the plain one, summed over the pictures."""
        images, labels = self.normalise(batch.images), batch.labels
        smoothing = self.config.label_smoothing
        if not self.config.mixup:
            logits = model(images).float()
            plain = F.cross_entropy(logits, labels, reduction="sum")
            objective = (
                F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing) if smoothing else plain
            )
            return objective, plain.detach()
        share, others = mixing(len(labels), self.config.mixup)
        logits = model(images.lerp(images[others], 1 - share)).float()
        losses = [
            F.cross_entropy(logits, to, reduction="sum", label_smoothing=smoothing) for to in (labels, labels[others])
        ]
        return share * losses[0] + (1 - share) * losses[1], F.cross_entropy(logits.detach(), labels, reduction="sum")

    def evaluate(self, model: nn.Module, team: Team) -> dict[str, Any]:
        """Loss and accuracies on the split that the recipe names; every rank does its share and knows the whole."""
        samples = PictureSamples(self.settings.samples, self._num_own(team), self.set.words)
        scores, confusion = self.score(model, team, samples)
        if samples.samples:
            scores["samples"] = samples.samples
        return {**scores, "accuracy_1": confusion.accuracy_1, "accuracy_5": confusion.accuracy_5}

    def _num_own(self, team: Team) -> int:
        """Pictures of this rank's share of an evaluation."""
        return len(self.set.entries(self.settings.split)) // team.size

    def score(
        self, model: nn.Module, team: Team, samples: PictureSamples | None = None
    ) -> tuple[dict[str, Any], Confusion]:
        size, settings = self.batching.size, self.settings
        pictures = EvaluationInput(
            self.set,
            settings.split,
            size=size,
            resize=settings.resize or round(size * RESIZE_FACTOR),
            rank=team.rank,
            num_ranks=team.size,
            batch=settings.images,
        )
        confusion, loss_sum = Confusion(len(self.set.classes)), 0.0
        for batch in pictures:
            logits = model(self.normalise(batch.images.to(self.device))).float()
            labels = batch.labels.to(self.device)
            loss_sum += float(F.cross_entropy(logits, labels, reduction="sum"))
            confusion.add(batch.labels.numpy(), logits.cpu().numpy())
            if samples:
                pixels = batch.images.permute(0, 2, 3, 1).numpy()
                samples.add(pixels, batch.labels.numpy(), logits.softmax(1).cpu().numpy())
        (loss_sum,) = team.sum([loss_sum])
        confusion = Confusion.merged(team.gather(confusion))
        scores: dict[str, Any] = {"loss": loss_sum / max(1, confusion.num_images), "images": confusion.num_images}
        if damaged := [item for rank in team.gather(pictures.damaged) for item in rank]:
            self._check_damaged(damaged, settings.split)
            scores["damaged"] = damaged
        return scores, confusion


class Normalise:
    """uint8 to what the model expects, on the device."""

    def __init__(self, device: torch.device) -> None:
        self.mean = torch.tensor(MEAN, device=device).view(1, 3, 1, 1)
        self.scale = 1 / torch.tensor(DEVIATION, device=device).view(1, 3, 1, 1)

    def __call__(self, images: Tensor) -> Tensor:
        return images.to(torch.float32, memory_format=torch.channels_last).sub_(self.mean).mul_(self.scale)


def mixing(count: int, strength: float) -> tuple[float, Tensor]:
    """The share of each picture itself, and whom it is blended with; from torch's generator, which the loop seeds."""
    seed = int(torch.randint(1 << 31, (1,)))
    return float(np.random.default_rng(seed).beta(strength, strength)), torch.randperm(count)
