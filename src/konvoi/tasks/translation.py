"""Translation of sentences: token batches in, smoothed cross-entropy, BLEU and chrF out."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, field_validator
from torch import Tensor, nn

from konvoi import registry
from konvoi.config.recipe import Recipe
from konvoi.config.section import Section
from konvoi.config.sections import MAX_BEAM
from konvoi.config.sections import Evaluate as BaseEvaluate
from konvoi.data.batching import BatchPlan, Indices, gather, padded
from konvoi.data.bpe_dropout import BpeDropout
from konvoi.data.home import brought_set, konvoi_home
from konvoi.data.prepare import Data, find_prepared
from konvoi.data.prepare import prepare as prepare_set
from konvoi.data.prepared import PreparedSet
from konvoi.data.subwords import FILE_NAME as VOCABULARY_FILE
from konvoi.data.subwords import Subwords, padded_size
from konvoi.data.tokens import TokenFile
from konvoi.errors import DataError, RunError, did_you_mean
from konvoi.evaluate.beam import translate_lines
from konvoi.evaluate.scores import HIGHER_IS_BETTER, corpus_scores
from konvoi.folder import write_json
from konvoi.models._kernels import linear_cross_entropy
from konvoi.run_directory import RunDirectory
from konvoi.stages import Report, silent
from konvoi.sync import Team

__all__ = ["Batching", "Config", "Data", "Evaluate", "Task", "prepare"]


# Pieces of a sentence where the text is not prepared yet: about those of WMT en-de.
ASSUMED_LENGTH = 27.0


class Config(Section):
    """The recipe's [task] table."""

    name: Literal["translation"] = "translation"
    source: str
    """Language code of what is read, as in "en"."""
    target: str
    """Language code of what is written, as in "de"."""
    label_smoothing: float = Field(0.1, ge=0, lt=1)


class Batching(Section):
    """The recipe's [batching] table."""

    max_tokens: PositiveInt = 4096
    """Padded target tokens per worker and micro-batch."""
    max_length: PositiveInt = 256
    """Training pairs with more pieces than this on a side are left out."""
    bpe_dropout: float = Field(0.0, ge=0, le=1)
    """The chance that a merge of pieces is left out, so that training sees words in many segmentations."""


def check_has_text(split: str) -> None:
    if split == "train":
        raise DataError("the text of the training split is not kept", hint="score dev or test, or files of your own")


class Evaluate(BaseEvaluate):
    """The recipe's [evaluate] table."""

    metric: str = "bleu"
    """Decides which checkpoint is the best: bleu, chrf, loss or perplexity."""
    beam: PositiveInt = Field(5, le=MAX_BEAM)
    length_penalty: NonNegativeFloat = 0.6
    max_sentences: PositiveInt | None = None
    """Translate only the first so many sentences; the loss is always over all."""
    lowercase: bool = False
    """Score without regard to case."""
    pieces: bool = False
    """BLEU over pieces too, to compare with runs that report that."""
    samples: NonNegativeInt = 4
    """Translations kept with each evaluation, beside source and reference."""

    @field_validator("split")
    @classmethod
    def _has_text(cls, split: str) -> str:
        if split == "train":
            raise ValueError("must be dev or test: the text of the training split is not kept")
        return split

    @field_validator("metric")
    @classmethod
    def _is_known(cls, metric: str) -> str:
        known = [name for name in HIGHER_IS_BETTER if not name.startswith("accuracy")]
        if metric not in known:
            raise ValueError(f"must be one of {', '.join(known)}{did_you_mean(metric, known)}")
        return metric


@dataclass
class Batch:
    """A micro-batch on its device: source [B,S], target_in [B,T] from BOS on, target_out [B,T] up to EOS."""

    source: Tensor
    target_in: Tensor
    target_out: Tensor
    num_targets: int
    num_sources: int
    num_padded: int


def prepare(recipe: Recipe, report: Report = silent) -> PreparedSet:
    """The prepared set of a recipe; made where it does not exist yet."""
    if folder := brought_set():
        return PreparedSet.open(folder)
    task, data = recipe.task, recipe.data
    assert isinstance(task, Config) and isinstance(data, Data)
    return prepare_set(data, source=task.source, target=task.target, home=konvoi_home(), report=report)


def carry(prepared: PreparedSet, run: RunDirectory) -> None:
    """Puts into the run directory what the trained model needs: it is then used without the corpus."""
    shutil.copyfile(prepared.folder / VOCABULARY_FILE, run.vocabulary_file)
    write_json(run.data_file, prepared.info)


def check_same(prepared: PreparedSet, run: RunDirectory) -> None:
    """Other pieces under the same numbers would train or score nonsense without a word."""
    vocabulary = (prepared.folder / VOCABULARY_FILE).read_bytes()
    if run.vocabulary_file.is_file() and run.vocabulary_file.read_bytes() != vocabulary:
        raise DataError(
            f"the text in {prepared.folder} is not what {run.path} was trained on: its vocabulary differs",
            hint="bring the former files back, or begin a new run",
        )


def vocabulary_of(run: RunDirectory) -> Subwords:
    if not run.vocabulary_file.is_file():
        raise RunError(f"{run.vocabulary_file} is missing", hint="copy the whole run directory")
    return Subwords.load(run.vocabulary_file)


def open_model(recipe: Recipe, run: RunDirectory) -> nn.Module:
    """The model of a run, before its weights are loaded."""
    return _new_model(recipe, vocabulary_of(run))


def num_outputs(recipe: Recipe, prepared: PreparedSet | None) -> int:
    """What the size of the model depends on besides its table: rows of the embedding."""
    if prepared is not None:
        return int(prepared.info["vocabulary_padded"])
    data = recipe.data
    assert isinstance(data, Data)
    return Subwords.load(data.vocabulary).padded_size if data.vocabulary else padded_size(data.vocabulary_size)


def find(recipe: Recipe) -> PreparedSet | None:
    """The prepared set, where there is one; nothing is made."""
    if folder := brought_set():
        return PreparedSet.open(folder)
    task, data = recipe.task, recipe.data
    assert isinstance(task, Config) and isinstance(data, Data)
    return find_prepared(data, source=task.source, target=task.target, home=konvoi_home())


def work(recipe: Recipe, prepared: PreparedSet | None) -> dict[str, Any]:
    """Operations of forward and backward, for sentences of the set's mean length."""
    task = recipe.task
    assert isinstance(task, Config)
    means = prepared.info["length_mean"] if prepared else {}
    lengths = [means.get(side, ASSUMED_LENGTH) for side in (task.source, task.target)]
    module = registry.find("model", recipe.name_of("model"))
    flops = module.flops(recipe.model, num_outputs(recipe, prepared), *lengths)
    return {"flops_per_target_token": flops, "mean_lengths": lengths}


def _new_model(recipe: Recipe, subwords: Subwords) -> nn.Module:
    module = registry.find("model", recipe.name_of("model"))
    model: nn.Module = module.Model(recipe.model, subwords.padded_size, pad=Subwords.PAD)
    return model


class Task:
    """The recipe's corpus opened on one rank."""

    def __init__(self, recipe: Recipe, device: torch.device, team: Team) -> None:
        assert isinstance(recipe.task, Config) and isinstance(recipe.batching, Batching)
        assert isinstance(recipe.evaluate, Evaluate)
        self.recipe, self.device = recipe, device
        self.config, self.settings = recipe.task, recipe.evaluate
        self.set = prepare(recipe)
        self.subwords: Subwords = self.set.subwords
        self.source, self.target = self.set.split("train")
        self.plan = self._plan(recipe.batching)
        probability = recipe.batching.bpe_dropout
        self.bpe_dropout = BpeDropout(self.subwords, probability) if probability else None

    def _plan(self, batching: Batching) -> BatchPlan:
        limit = min(batching.max_length, batching.max_tokens)
        seed = self.recipe.train.seed
        plan = BatchPlan(self.source.lengths, self.target.lengths, batching.max_tokens, seed, max_length=limit)
        if len(plan.kept) == 0:
            raise DataError(
                f"every training pair is longer than {limit} pieces", hint="raise batching.max_length or max_tokens"
            )
        return plan

    @property
    def num_per_epoch(self) -> int:
        return self.plan.num_per_epoch

    def num_targets(self, position: int) -> int:
        return self.plan.num_targets(position)

    def build_model(self) -> nn.Module:
        return _new_model(self.recipe, self.subwords).to(self.device)

    def micro_batch(self, position: int) -> Batch:
        indices = self.plan[position]
        if self.bpe_dropout is None:
            source, target = (gather(file, indices, Subwords.PAD) for file in (self.source, self.target))
        else:
            source, target = (self._with_dropout(side, indices, position) for side in range(2))
        return _batch(source, target, self.device)

    def _with_dropout(self, side: int, indices: Indices, position: int) -> Any:
        """Another segmentation at every position; all ranks divide the loss by the tokens of the usual one."""
        assert self.bpe_dropout is not None
        file = (self.source, self.target)[side]
        sentences = np.split(file.read(indices), file.lengths[indices].cumsum()[:-1])
        segmented = self.bpe_dropout.apply(sentences, seed=(self.recipe.train.seed, position, side))
        lengths = np.array([len(sentence) for sentence in segmented], dtype=np.uint32)
        return padded(np.concatenate(segmented), lengths, Subwords.PAD)

    def amounts(
        self, targets: float, sources: float, padded: float, own_targets: int, seconds: float
    ) -> dict[str, float]:
        """A step's work, for its event."""
        return {
            "target_tokens": int(targets),
            "source_tokens": int(sources),
            "padding": padded / (padded + targets + sources),
            "own_target_tokens": own_targets,
            "target_tokens_per_second": targets / seconds,
            "tokens_per_second": (targets + sources) / seconds,
        }

    def loss_sums(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """The smoothed loss and the plain one, summed over the target tokens; padding costs no output layer."""
        return loss_sums(model, batch, self.config.label_smoothing)

    def evaluate(self, model: nn.Module, team: Team) -> dict[str, Any]:
        """Loss, BLEU and chrF on the split the recipe names; every rank does its share and knows the whole."""
        split = self.settings.split
        scores: dict[str, Any] = {**self._loss_scores(model, team, split)}
        sources, references = (lines[: self.settings.max_sentences] for lines in self.set.text(split))
        assert isinstance(self.recipe.data, Data)
        hypotheses = self.translate_together(model, team, [*map(self.recipe.data.normalised, sources)])
        pieces = self._pieces(hypotheses, references) if self.settings.pieces else None
        scores.update(corpus_scores(hypotheses, references, lowercase=self.settings.lowercase, pieces=pieces))
        samples = [
            {"source": sources[i], "reference": references[i], "translation": hypotheses[i]}
            for i in _spread(len(sources), self.settings.samples)
        ]
        return {**scores, "sentences": len(sources), "samples": samples}

    def _loss_scores(self, model: nn.Module, team: Team, split: str) -> dict[str, float]:
        limit: int = self.recipe.batching.max_tokens  # type: ignore[attr-defined]
        return loss_scores(model, *self.set.split(split), limit, self.device, team)

    def translate_together(self, model: nn.Module, team: Team, sources: list[str]) -> list[str]:
        """Each rank translates every size-th sentence by length, so that all finish at about the same time."""
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        mine = order[team.rank :: team.size]
        lines = translate_lines(
            unwrapped(model),
            self.subwords,
            [sources[i] for i in mine],
            beam=self.settings.beam,
            length_penalty=self.settings.length_penalty,
            device=self.device,
        )
        results = [""] * len(sources)
        for rank, part in enumerate(team.gather(lines)):
            for i, line in zip(order[rank :: team.size], part, strict=True):
                results[i] = line
        return results

    def _pieces(self, hypotheses: list[str], references: list[str]) -> tuple[list[str], list[str]]:
        def split(lines: list[str]) -> list[str]:
            return [" ".join(self.subwords.pieces(ids)) for ids in self.subwords.encode(lines)]

        return split(hypotheses), split(references)


def loss_sums(model: nn.Module, batch: Batch, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """The smoothed loss and the plain one, summed over the target tokens; padding costs no output layer."""
    hidden_BTW = model(batch.source, batch.target_in)
    is_target = batch.target_out != Subwords.PAD
    weight = unwrapped(model).embedding.weight
    return linear_cross_entropy(hidden_BTW[is_target], weight, batch.target_out[is_target], label_smoothing)


def loss_scores(
    model: nn.Module, source: TokenFile, target: TokenFile, max_tokens: int, device: torch.device, team: Team
) -> dict[str, float]:
    """Mean loss of a target token and its perplexity; every rank does its share and knows the whole."""
    plan = BatchPlan(source.lengths, target.lengths, max_tokens, seed=0)
    loss_sum = num_targets = 0.0
    for number in range(team.rank, plan.num_per_epoch, team.size):
        indices = plan[number]
        batch = _batch(gather(source, indices, Subwords.PAD), gather(target, indices, Subwords.PAD), device)
        loss_sum += float(loss_sums(model, batch, label_smoothing=0.0)[1])
        num_targets += batch.num_targets
    loss_sum, num_targets = team.sum([loss_sum, num_targets])
    loss = loss_sum / num_targets
    return {"loss": loss, "perplexity": math.exp(min(loss, 50.0))}


def unwrapped(model: nn.Module) -> Any:
    """The model itself, without what DDP or torch.compile put around it."""
    inner = getattr(model, "module", model)
    return getattr(inner, "_orig_mod", inner)


def _spread(total: int, count: int) -> list[int]:
    """So many numbers below total, evenly apart: neighbours in a corpus are often alike."""
    count = min(count, total)
    return [(2 * i + 1) * total // (2 * count) for i in range(count)]


def _batch(source: Any, target: Any, device: torch.device) -> Batch:
    source, target_out = torch.from_numpy(source), torch.from_numpy(target)
    target_in = torch.full_like(target_out, Subwords.BOS)
    target_in[:, 1:] = target_out[:, :-1]
    num_targets = int((target_out != Subwords.PAD).sum())
    num_sources = int((source != Subwords.PAD).sum())
    num_padded = source.numel() + target_out.numel() - num_targets - num_sources
    source, target_in, target_out = (part.to(device, non_blocking=True) for part in (source, target_in, target_out))
    return Batch(source, target_in, target_out, num_targets, num_sources, num_padded)
