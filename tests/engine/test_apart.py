"""Workers that keep something of their own: through the loop, into a checkpoint and out of it."""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.processes import Trainings, losses, steps

from konvoi.config.recipe import read
from konvoi.engine.loop import train_step
from konvoi.errors import UserError
from konvoi.run_directory import RunDirectory
from konvoi.sync import diloco

LOCAL = ("sync.name=diloco", "sync.local_steps=4")
POWER = ("sync.name=powersgd", "sync.start_step=1", "sync.rank=2")
NUM_STEPS, SAVED_AT = 12, 5
# Saved in the midst of the exact steps.
EXACT = (*LOCAL, "sync.exact_steps=7")


# Its momentum is under way as well.
MUON = (*LOCAL, "sync.overlap_steps=2", "optim.name=muon")
IDS = ["diloco", "diloco, exact at first", "diloco with Muon", "powersgd"]


@pytest.fixture(scope="module", params=[LOCAL, EXACT, MUON, POWER], ids=IDS)
def of_two(request: pytest.FixtureRequest, trainings: Trainings) -> RunDirectory:
    run = trainings.new(*request.param)
    assert trainings.train_together(run, 2) == [0, 0]
    return run


def test_it_goes_on_exactly(trainings: Trainings, of_two: RunDirectory) -> None:
    # Saved in the middle of a round, with fragments under way and what rounding cost.
    resumed = trainings.killed_after(of_two, SAVED_AT)
    assert trainings.train_together(resumed, 2, resume=True) == [0, 0]
    assert losses(resumed, after=SAVED_AT) == losses(of_two, after=SAVED_AT) != {}
    weights, expected = (
        load_file(run.checkpoints / f"step-{NUM_STEPS:08d}" / "model.safetensors") for run in (resumed, of_two)
    )
    assert all(weights[name].equal(expected[name]) for name in expected)
    assert bytes_sent(resumed) == bytes_sent(of_two)
    assert resumed.summary()["bytes_sent_per_step"] == of_two.summary()["bytes_sent_per_step"]


def bytes_sent(run: RunDirectory) -> list[float]:
    return [event["bytes_sent"] for event in steps(run).values()]


def test_a_step_sends_as_ddp_does_as_long_as_it_is_exact(of_two: RunDirectory) -> None:
    sync: Any = of_two.recipe().sync
    num_exact = getattr(sync, "exact_steps", 0) + getattr(sync, "start_step", 0)
    # Of two workers each sends 2 x 1/2 of the gradient, 4 bytes for each parameter.
    exact_bytes = 4.0 * of_two.summary()["parameters"]
    sent = bytes_sent(of_two)
    assert sent[:num_exact] == [exact_bytes] * num_exact
    assert len(set(sent[num_exact:])) == 1 and 0 < sent[-1] < exact_bytes / 2
    assert of_two.summary()["bytes_sent_per_step"] == pytest.approx(statistics.fmean(sent), abs=0.1)


def test_all_steps_of_both_workers_are_told(of_two: RunDirectory) -> None:
    assert list(losses(of_two)) == list(range(1, NUM_STEPS + 1))
    for rank in (0, 1):
        assert (of_two.checkpoints / "workers" / f"rank-{rank:03d}" / f"step-{NUM_STEPS:08d}" / "state.json").exists()


def test_where_a_part_is_gone_all_begin_from_what_is_shared_and_it_is_said(
    trainings: Trainings, of_two: RunDirectory
) -> None:
    resumed = trainings.killed_after(of_two, SAVED_AT)
    shutil.rmtree(resumed.checkpoints / "workers" / "rank-001")
    assert trainings.train_together(resumed, 2, resume=True) == [0, 0]
    assert "worker 1: nothing of its own to go on from" in resumed.log_file.read_text(encoding="utf-8")
    assert list(losses(resumed)) == list(range(1, NUM_STEPS + 1))


def test_other_workers_than_before_begin_from_what_is_shared(trainings: Trainings) -> None:
    run = trainings.new(*LOCAL)
    assert trainings.train_together(run, 3) == [0, 0, 0]
    resumed = trainings.killed_after(run, SAVED_AT)
    # Those who are left have parts of their own, of three workers.
    assert trainings.train_together(resumed, 2, resume=True) == [0, 0]
    assert "nothing of its own to go on from" in resumed.log_file.read_text(encoding="utf-8")
    assert list(losses(resumed)) == list(range(1, NUM_STEPS + 1))


def test_the_last_checkpoint_and_its_score_are_of_what_all_learnt(trainings: Trainings) -> None:
    """The last round has two steps, no fragment is under way, and the loop evaluates and saves after the last step."""
    changes = ("sync.local_steps=5", "sync.fragments=1", "sync.overlap_steps=0", "sync.wire=fp32")
    ends = ("evaluate.every=12 steps", "checkpoint.every=12 steps", "train.mode=train_evaluate")
    run = trainings.new("sync.name=diloco", *changes, *ends)
    assert trainings.train_together(run, 2) == [0, 0]
    last = f"step-{NUM_STEPS:08d}"
    shared = load_file(run.checkpoints / last / "sync.safetensors")["0.shared"]
    for rank in (0, 1):
        own = load_file(run.checkpoints / "workers" / f"rank-{rank:03d}" / last / "sync.safetensors")
        assert own["0.own"].equal(shared)
    weights = load_file(run.checkpoints / last / "model.safetensors")
    assert all(torch.isin(values, shared).all() for values in weights.values())
    assert sum(event["kind"] == "evaluation" for event in run.events_of(0)) == 1
    resumed = trainings.killed_after(run, NUM_STEPS)
    assert trainings.train_together(resumed, 2, resume=True) == [0, 0]
    assert load_file(resumed.checkpoints / last / "sync.safetensors")["0.shared"].equal(shared)


def test_replicas_that_train_apart_end_up_with_one_model(trainings: Trainings) -> None:
    run = trainings.new(*LOCAL, "sync.wire=fp32", "evaluate.every=6 steps", "train.mode=train_evaluate")
    assert trainings.train_together(run, 3) == [0, 0, 0]
    told = losses(run)
    assert told[NUM_STEPS] < told[1]
    # Each worker scores its share of the sentences: with the same weights, or the sums would not be of one model.
    events = [[e for e in run.events_of(rank) if e["kind"] == "evaluation"] for rank in range(3)]
    assert [event["loss"] for event in events[0]] == [event["loss"] for event in events[1]] != []


def test_a_moving_average_of_weights_that_part_is_refused(trainings: Trainings) -> None:
    run = trainings.new(*LOCAL, "train.ema_decay=0.9")
    with pytest.raises(UserError, match=r"train\.ema_decay does not go with diloco"):
        trainings.train(run)


@pytest.mark.parametrize("sync", ["diloco", "auto"])
def test_batch_norm_over_workers_that_part_is_refused(trainings: Trainings, tmp_path: Path, sync: str) -> None:
    recipe = read("demo-images", [f"sync.name={sync}", "model.sync_batch_norm=true"])
    run = RunDirectory.create(tmp_path / "run", recipe)
    with pytest.raises(UserError, match=rf"model\.sync_batch_norm does not go with {sync}"):
        trainings.train(run)


def test_the_choice_of_auto_is_told_and_kept(trainings: Trainings) -> None:
    run = trainings.new("sync.name=auto")
    assert trainings.train_together(run, 2) == [0, 0]
    first = next(event for event in run.events_of(0) if event["kind"] == "sync")
    assert "of linear expected" in first["message"]
    resumed = trainings.killed_after(run, SAVED_AT)
    assert trainings.train_together(resumed, 2, resume=True) == [0, 0]
    again = [event for event in resumed.events_of(0) if event["kind"] == "sync"][-1]
    assert again["chosen"] == first["chosen"]
    assert again["message"].endswith("as chosen before")
    assert losses(resumed, after=SAVED_AT) == losses(run, after=SAVED_AT)


def test_a_run_that_one_worker_began_is_measured_when_others_join(trainings: Trainings) -> None:
    run = trainings.trained("sync.name=auto")
    assert not [event for event in run.events_of(0) if event["kind"] == "sync"]
    joined = trainings.killed_after(run, SAVED_AT)
    assert trainings.train_together(joined, 2, resume=True) == [0, 0]
    told = [event for event in joined.events_of(0) if event["kind"] == "sync"]
    assert [("of linear expected" in event["message"]) for event in told] == [True]


@pytest.mark.parametrize("name", ["diloco", "auto"])
def test_muon_s_momentum_in_the_loop_is_what_local_steps_ask_for(
    name: str, trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diloco, "STEPS_PER_SPAN", 1)
    momenta = []
    with trainings.built(trainings.new("optim.name=muon", "optim.momentum=0.81", f"sync.name={name}")) as run:
        if name == "auto":
            run.sync._choose(diloco.Config())
            run.sync.wrap(run.bare_model)
        getattr(run.sync, "way", run.sync).num_replicas = 2
        for _ in range(3):
            train_step(run)
            momenta.append(run.optimizer.param_groups[0]["momentum"])
    # Of two workers, each with half of the tokens: 0.9 x 0.9 = 0.81
    assert momenta == pytest.approx([0.81, 0.9, 0.9])
