"""A run that was stopped anywhere goes on as if it had not been: every later loss and weight, bit for bit."""

from __future__ import annotations

import json
import signal

import pytest

from konvoi.engine import checkpoint as checkpoints
from konvoi.run_directory import RunDirectory
from tests.processes import (
    Trainings,
    checkpoint_steps,
    events,
    losses,
    same_bits,
    state,
    steps,
    tensors,
    wait_until,
)

VARIANTS = {
    "adam": [],
    "adamw": ["optim.name=adamw", "optim.weight_decay=0.1"],
    "sgd": ["optim.name=sgd", "schedule.learning_rate=0.1"],
    "nesterov": ["optim.name=sgd", "optim.nesterov=true", "schedule.learning_rate=0.1"],
    "moving average": ["train.ema_decay=0.9"],
    "accumulated": ["train.accumulate=2"],
    "warm-up": ["schedule.warmup=8 steps"],
    "falling": ["schedule.name=cosine", "schedule.learning_rate=0.003"],
    "bf16": ["train.precision=bf16"],
    "fp16": ["train.precision=fp16"],
    # 1,460 pairs in micro-batches of 2,048 tokens are about 12 an epoch: 12 steps of 2 cross two boundaries.
    "over epochs": ["batching.max_tokens=2048", "train.accumulate=2"],
}


def assert_went_on_exactly(whole: RunDirectory, resumed: RunDirectory, after: int) -> None:
    expected = losses(whole, after)
    assert len(expected) > 0
    assert losses(resumed, after) == expected
    for key in ("gradient_norm", "learning_rate", "target_tokens"):
        assert [event[key] for event in steps(resumed).values()] == [event[key] for event in steps(whole).values()]
    files = {path.stem for path in whole.checkpoints.glob("*/*.safetensors")}
    assert {"model", "optimizer"} <= files
    last = checkpoint_steps(whole)[-1]
    assert all(same_bits(tensors(whole, file, last), tensors(resumed, file, last)) for file in files)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_killed_run_goes_on_exactly(trainings: Trainings, variant: str) -> None:
    whole = trainings.trained(*VARIANTS[variant])
    resumed = trainings.killed_after(whole, 5)
    assert trainings.train(resumed, resume=True) == "finished"
    assert_went_on_exactly(whole, resumed, after=5)


def test_the_variant_over_epochs_does_cross_a_boundary(trainings: Trainings) -> None:
    whole = trainings.trained(*VARIANTS["over epochs"])
    # 12 steps x 2 micro-batches reach into the third epoch, and the first boundary lies after the checkpoint at 5.
    assert 2 * 5 < whole.summary()["micro_batches_per_epoch"] < 2 * 12
    assert state(whole)["position"] == 24


def test_it_matters_where_a_run_goes_on(trainings: Trainings) -> None:
    """Or the tests above would pass if nothing were restored at all."""
    whole = trainings.trained("train.duration=6 steps", "checkpoint.every=1 step")
    later = trainings.killed_after(whole, 4)
    weights = later.checkpoints / "step-00000004"
    earlier = whole.checkpoints / "step-00000003"
    (weights / "optimizer.safetensors").write_bytes((earlier / "optimizer.safetensors").read_bytes())
    (weights / "checksums.json").write_text(
        json.dumps({file.name: checkpoints._sha256(file) for file in weights.glob("*") if file.stem != "checksums"})
    )
    trainings.train(later, resume=True)
    assert losses(later)[5] == losses(whole)[5]
    assert losses(later)[6] != losses(whole)[6]


def test_a_run_that_was_made_longer_goes_on_exactly(trainings: Trainings) -> None:
    whole = trainings.trained("train.duration=9 steps")
    short = trainings.trained("train.duration=4 steps")
    trainings.change(short, "train.duration=9 steps")
    assert trainings.train(short, resume=True) == "finished"
    assert_went_on_exactly(whole, short, after=0)


def test_a_run_that_goes_on_twice_is_still_exact(trainings: Trainings) -> None:
    whole = trainings.trained("checkpoint.every=3 steps")
    resumed = trainings.killed_after(whole, 3, "train.duration=7 steps")
    trainings.train(resumed, resume=True)
    trainings.change(resumed, "train.duration=12 steps")
    trainings.train(resumed, resume=True)
    assert_went_on_exactly(whole, resumed, after=3)
    assert [event["step"] for event in events(resumed, "restart")] == [3, 7]


def test_a_run_may_go_back_to_an_earlier_checkpoint(trainings: Trainings) -> None:
    run = trainings.trained()
    whole = losses(run)
    assert trainings.train(run, resume=True, checkpoint="step-00000005") == "finished"
    assert losses(run) == whole
    assert checkpoint_steps(run) == [5, 10, 12]
    assert [event["step"] for event in events(run, "restart")] == [5]


def test_a_run_that_is_at_its_end_takes_no_further_step(trainings: Trainings) -> None:
    run = trainings.trained("train.duration=3 steps")
    before = tensors(run)
    assert trainings.train(run, resume=True) == "finished"
    assert max(steps(run)) == 3
    assert same_bits(before, tensors(run))


def test_evaluations_do_not_change_the_training(trainings: Trainings) -> None:
    without = trainings.trained("train.mode=train")
    with_them = trainings.trained("evaluate.every=4 steps")
    assert losses(with_them) == losses(without)


def test_the_best_score_survives_a_resume(trainings: Trainings) -> None:
    # The last step has a checkpoint of its own and only then an evaluation: both must be known afterwards.
    run = trainings.trained("train.duration=5 steps")
    best = run.summary()["best"]
    assert best["step"] == 5
    assert (state(run)["scored_step"], state(run)["best"]["value"]) == (5, best["value"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_real_process_that_is_stopped_in_the_middle_goes_on_exactly(
    trainings: Trainings, number: signal.Signals
) -> None:
    run = trainings.new("train.duration=100000 steps", "checkpoint.every=3 steps", "train.mode=train")
    with trainings.start(run) as process:
        wait_until(lambda: len(losses(run)) >= 8, process)
        process.send_signal(number)
        error = process.communicate()[1]
    last = checkpoint_steps(run)[-1]
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
        assert run.summary()["status"] == "running"
        assert last % 3 == 0
    else:
        assert (process.returncode, error) == (130, "")
        assert (run.summary()["status"], run.summary()["ending"]) == ("interrupted", "interrupted")
        assert run.summary()["steps"] == last == max(losses(run))
        assert [event["step"] for event in events(run, "interrupted")] == [last]
    trainings.change(run, f"train.duration={last + 4} steps")
    assert trainings.train(run, resume=True) == "finished"
    whole = trainings.trained(f"train.duration={last + 4} steps", "train.mode=train", "checkpoint.every=1000 steps")
    assert_went_on_exactly(whole, run, after=0)
