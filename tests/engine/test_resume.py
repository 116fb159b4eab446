"""A run that was stopped anywhere goes on as if it had not been: every later loss and weight, bit for bit."""

from __future__ import annotations

import json

import pytest
from tests.processes import (
    Trainings,
    assert_went_on_exactly,
    checkpoint_steps,
    ended,
    events,
    free_port,
    losses,
    same_bits,
    start_process,
    state,
    steps,
    tensors,
    torchrun_variables,
    worker_program,
)

from konvoi.engine import checkpoint as checkpoints
from konvoi.run_directory import RunDirectory

VARIANTS = {
    "adam": [],
    "adamw": ["optim.name=adamw", "optim.weight_decay=0.1"],
    "sgd": ["optim.name=sgd", "schedule.learning_rate=0.1"],
    "moving average": ["train.ema_decay=0.9"],
    "accumulated": ["train.accumulate=2"],
    "warm-up": ["schedule.warmup=8 steps"],
    "falling": ["schedule.name=cosine", "schedule.learning_rate=0.003"],
    "bf16": ["train.precision=bf16"],
    "fp16": ["train.precision=fp16"],
    "two threads": ["train.threads=2"],
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_killed_run_goes_on_exactly(trainings: Trainings, variant: str) -> None:
    whole = trainings.trained(*VARIANTS[variant])
    resumed = trainings.killed_after(whole, 5)
    assert trainings.train(resumed, resume=True) == "finished"
    assert_went_on_exactly(whole, resumed, after=5)


def test_a_killed_run_goes_on_exactly_over_the_end_of_an_epoch(trainings: Trainings) -> None:
    whole = trainings.trained("batching.max_tokens=1536", "train.accumulate=2", "train.mode=train")
    # The first epoch ends after the checkpoint at step 5, which is position 10, and before the last, position 24.
    assert 10 < whole.summary()["micro_batches_per_epoch"] < 24
    resumed = trainings.killed_after(whole, 5)
    assert trainings.train(resumed, resume=True) == "finished"
    assert_went_on_exactly(whole, resumed, after=5)


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


def go_on_apart(trainings: Trainings, runs: list[RunDirectory]) -> list[int]:
    """A worker in each directory, as on hosts that share no disk."""
    port = free_port()
    workers = [
        start_process(
            worker_program(run, resume=True), {**trainings.environment(), **torchrun_variables(rank, len(runs), port)}
        )
        for rank, run in enumerate(runs)
    ]
    return [ended(worker) for worker in workers]


@pytest.fixture(scope="module")
def of_three(trainings: Trainings) -> RunDirectory:
    """Trained by three workers, with every kind of file in its checkpoints."""
    run = trainings.new("train.ema_decay=0.9")
    assert trainings.train_together(run, 3) == [0, 0, 0]
    return run


def test_hosts_without_checkpoints_go_on_exactly_from_that_of_the_first(
    trainings: Trainings, of_three: RunDirectory
) -> None:
    first = trainings.killed_after(of_three, 5)
    others = [trainings.new("train.ema_decay=0.9") for _ in range(2)]
    assert go_on_apart(trainings, [first, *others]) == [0, 0, 0]
    assert_went_on_exactly(of_three, first, after=5)
    assert {file.stem for file in first.checkpoints.glob("step-00000012/*.safetensors")} == {
        "model",
        "ema",
        "optimizer",
    }
    for rank, other in enumerate(others, start=1):
        assert list(steps(other, rank)) == list(range(6, 13))
        assert checkpoint_steps(other) == []


def test_a_damaged_checkpoint_of_the_first_host_ends_all(trainings: Trainings, of_three: RunDirectory) -> None:
    first = trainings.killed_after(of_three, 5)
    with (first.checkpoints / "step-00000005" / "ema.safetensors").open("r+b") as file:
        file.seek(200)
        file.write(b"damaged")
    other = trainings.new("train.ema_decay=0.9")
    assert go_on_apart(trainings, [first, other]) == [2, 2]
    assert events(other, "step") == []


def test_hosts_begin_anew_where_the_first_has_no_checkpoint_yet(trainings: Trainings, of_three: RunDirectory) -> None:
    runs = [trainings.new("train.ema_decay=0.9") for _ in range(3)]
    assert go_on_apart(trainings, runs) == [0, 0, 0]
    assert losses(runs[0]) == losses(of_three)
