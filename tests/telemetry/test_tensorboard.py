"""TensorBoard shows what the events say."""

from __future__ import annotations

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.processes import Trainings, events, steps

from konvoi.run_directory import RunDirectory

TRAIN_TAGS = {"train/loss", "train/objective", "train/learning_rate", "train/gradient_norm"}
SPEED_TAGS = {"speed/tokens_per_second", "speed/target_tokens_per_second", "speed/step_seconds"}
EVALUATION_TAGS = {"eval/loss", "eval/perplexity", "eval/bleu", "eval/chrf"}


def read(run: RunDirectory) -> EventAccumulator:
    accumulator = EventAccumulator(str(run.tensorboard), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def test_every_promised_tag_is_there_with_the_values_of_the_events(trainings: Trainings) -> None:
    run = trainings.trained("train.log_every=4 steps", "evaluate.every=6 steps")
    accumulator = read(run)
    tags = set(accumulator.Tags()["scalars"])
    assert tags >= TRAIN_TAGS | SPEED_TAGS | EVALUATION_TAGS
    shown = {scalar.step: scalar.value for scalar in accumulator.Scalars("train/loss")}
    assert shown == pytest.approx({step: steps(run)[step]["loss"] for step in (1, 4, 8, 12)}, rel=1e-6)
    evaluated = {scalar.step: scalar.value for scalar in accumulator.Scalars("eval/loss")}
    assert evaluated == pytest.approx({e["step"]: e["loss"] for e in events(run, "evaluation")}, rel=1e-6)
    assert set(evaluated) == {6, 12}


def test_fp16_shows_its_loss_scale(trainings: Trainings) -> None:
    run = trainings.trained("train.precision=fp16", "train.duration=1 step", "train.mode=train")
    assert [scalar.value for scalar in read(run).Scalars("train/loss_scale")] == [65_536]


def test_a_resumed_run_shows_all_its_steps(trainings: Trainings) -> None:
    run = trainings.trained("train.log_every=1 step", "train.duration=3 steps", "train.mode=train")
    trainings.change(run, "train.duration=5 steps")
    trainings.train(run, resume=True)
    assert [scalar.step for scalar in read(run).Scalars("train/loss")] == [1, 2, 3, 4, 5]
