"""Several workers: they compute what one would, stop together, and leave nobody behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from tests.processes import (
    Trainings,
    assert_went_on_exactly,
    checkpoint_steps,
    ended,
    events,
    free_port,
    is_alive,
    losses,
    same_bits,
    state,
    steps,
    tensors,
    torchrun_variables,
    wait_until,
    workers_of,
)

from konvoi import registry
from konvoi.engine.loop import scores_of
from konvoi.exit_codes import OUR_FAULT
from konvoi.run_directory import RunDirectory

SETTINGS = ("train.duration=10 steps", "evaluate.every=5 steps", "evaluate.max_sentences=10", "evaluate.beam=2")
# Rounding may differ in every step, and Adam makes it no smaller; a wrong denominator would be off by far more.
ROUNDING = 1e-5


@dataclass(frozen=True)
class Together:
    num_workers: int
    run: RunDirectory


@pytest.fixture(scope="module", params=[2, 3], ids=["two", "three"])
def whole(request: pytest.FixtureRequest, trainings: Trainings) -> Together:
    """Never interrupted: 10 steps, checkpoints and evaluations at 5 and 10."""
    run = trainings.new(*SETTINGS)
    assert trainings.train_together(run, request.param) == [0] * request.param
    return Together(request.param, run)


def test_a_resumed_run_is_exact(trainings: Trainings, whole: Together) -> None:
    resumed = trainings.killed_after(whole.run, 5)
    assert trainings.train_together(resumed, whole.num_workers, resume=True) == [0] * whole.num_workers
    assert len(losses(whole.run, after=5)) == 5
    assert losses(resumed) == losses(whole.run)
    for file in ("model", "optimizer"):
        assert same_bits(tensors(resumed, file, 10), tensors(whole.run, file, 10))
    assert [event["loss"] for event in events(resumed, "evaluation")][-1] == events(whole.run, "evaluation")[-1]["loss"]


def test_workers_compute_what_one_does_with_as_many_micro_batches(trainings: Trainings, whole: Together) -> None:
    # Dropout depends on the position alone, and the loss is divided by the tokens of all: the sums are the same.
    alone = trainings.trained(*SETTINGS, f"train.accumulate={whole.num_workers}")
    assert len(losses(alone)) == 10
    assert losses(whole.run) == pytest.approx(losses(alone), rel=ROUNDING)
    for key in ("gradient_norm", "objective"):
        expected = [event[key] for event in steps(alone).values()]
        assert [event[key] for event in steps(whole.run).values()] == pytest.approx(expected, rel=1e-4)
    for key in ("target_tokens", "source_tokens", "learning_rate"):
        assert [event[key] for event in steps(whole.run).values()] == [event[key] for event in steps(alone).values()]
    for name, weight in tensors(alone, step=5).items():
        torch.testing.assert_close(tensors(whole.run, step=5)[name], weight, rtol=1e-3, atol=1e-4)


def test_micro_batches_differ_in_size_so_that_the_denominator_matters(whole: Together) -> None:
    own = [
        [event["own_target_tokens"] for event in steps(whole.run, rank).values()] for rank in range(whole.num_workers)
    ]
    assert any(len(set(shares)) > 1 for shares in zip(*own, strict=True))
    # Together they are all tokens of the step.
    assert [sum(shares) for shares in zip(*own, strict=True)] == [e["target_tokens"] for e in steps(whole.run).values()]


def test_every_rank_tells_the_same_of_a_step(whole: Together) -> None:
    of_first = [(event["step"], event["loss"], event["gradient_norm"]) for event in steps(whole.run).values()]
    for rank in range(1, whole.num_workers):
        of_rank = steps(whole.run, rank).values()
        assert [(event["step"], event["loss"], event["gradient_norm"]) for event in of_rank] == of_first
    assert whole.run.summary()["workers"] == whole.num_workers


def test_another_number_of_workers_goes_on_with_the_same_data(trainings: Trainings, whole: Together) -> None:
    assert state(whole.run)["position"] == 10 * whole.num_workers
    # One worker with as many micro-batches takes the same positions; what it meets and computes is the same.
    resumed = trainings.killed_after(whole.run, 5, f"train.accumulate={whole.num_workers}")
    assert trainings.train(resumed, resume=True) == "finished"
    assert state(resumed)["position"] == state(whole.run)["position"]
    assert losses(resumed, after=5) == pytest.approx(losses(whole.run, after=5), rel=ROUNDING)


def test_one_worker_goes_on_where_several_stopped(trainings: Trainings, whole: Together) -> None:
    # With one micro-batch a step it takes the next one: 5 steps of all workers, then one each.
    resumed = trainings.killed_after(whole.run, 5, "train.duration=6 steps", "train.mode=train")
    assert trainings.train(resumed, resume=True) == "finished"
    assert state(resumed)["position"] == 5 * whole.num_workers + 1
    with trainings.built(resumed) as built:
        assert steps(resumed)[6]["target_tokens"] == built.task.num_targets(5 * whole.num_workers)


def test_scores_do_not_depend_on_how_the_evaluation_is_split(trainings: Trainings, whole: Together) -> None:
    together = [
        [event for event in whole.run.events_of(rank) if event["kind"] == "evaluation"]
        for rank in range(whole.num_workers)
    ]
    for number, step in enumerate((5, 10)):
        with trainings.built(trainings.killed_after(whole.run, step), resume=True) as built:
            alone = scores_of(built)
        assert len(alone["samples"]) == 4 and alone["sentences"] == 10
        for evaluations in together:
            assert evaluations[number]["step"] == step
            assert evaluations[number]["loss"] == pytest.approx(alone["loss"], rel=1e-6)
            assert all(evaluations[number][key] == alone[key] for key in ("bleu", "chrf", "samples", "sentences"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_real_process_that_is_stopped_in_the_middle_goes_on_exactly(
    trainings: Trainings, number: signal.Signals
) -> None:
    run = trainings.new("train.duration=100000 steps", "checkpoint.every=3 steps", "train.mode=train")
    process = trainings.start(run)
    wait_until(lambda: len(losses(run)) >= 8, process)
    assert process.pid is not None
    os.kill(process.pid, number)
    code = ended(process)
    last = checkpoint_steps(run)[-1]
    if number == signal.SIGKILL:
        assert code == -signal.SIGKILL
        assert run.summary()["status"] == "running"
        assert last % 3 == 0
    else:
        assert code == 130
        assert (run.summary()["status"], run.summary()["ending"]) == ("interrupted", "interrupted")
        assert run.summary()["steps"] == last == max(losses(run))
        assert [event["step"] for event in events(run, "interrupted")] == [last]
    # Beyond what was made and not saved: the steps are made again.
    duration = f"train.duration={max(losses(run)) + 4} steps"
    trainings.change(run, duration)
    assert trainings.train(run, resume=True) == "finished"
    whole = trainings.trained(duration, "train.mode=train", "checkpoint.every=1000 steps")
    assert_went_on_exactly(whole, run, after=0)


@pytest.fixture(scope="module")
def never_evaluated(trainings: Trainings) -> RunDirectory:
    """Two workers, 40 steps, to compare others with."""
    run = trainings.new("train.duration=40 steps", "train.mode=train")
    assert trainings.train_together(run, 2) == [0, 0]
    return run


def test_a_signal_to_the_launcher_makes_all_save_and_leave(trainings: Trainings, never_evaluated: RunDirectory) -> None:
    run = trainings.new("train.duration=100000 steps", "train.mode=train", "checkpoint.every=100000 steps")
    launcher = trainings.launch(run, num_workers=2)
    wait_until(lambda: len(losses(run)) >= 3, launcher)
    workers = workers_of(launcher)
    assert launcher.pid is not None
    os.kill(launcher.pid, signal.SIGTERM)
    assert ended(launcher) == 130
    assert len(workers) == 2 and not any(map(is_alive, workers))
    last = run.summary()["steps"]
    assert run.summary()["status"] == "interrupted"
    assert checkpoint_steps(run) == [last]
    for rank in (0, 1):
        assert max(steps(run, rank)) == last
        assert [event["step"] for event in run.events_of(rank) if event["kind"] == "interrupted"] == [last]
    assert_same_as_far_as_both_go(run, never_evaluated)


def test_a_worker_that_dies_ends_the_run_for_all(trainings: Trainings, never_evaluated: RunDirectory) -> None:
    run = trainings.new("train.duration=100000 steps", "train.mode=train", "checkpoint.every=3 steps")
    launcher = trainings.launch(run, num_workers=2)
    wait_until(lambda: len(losses(run)) >= 4, launcher)
    workers = workers_of(launcher)
    os.kill(workers[1], signal.SIGKILL)
    assert ended(launcher) not in (0, 130)
    assert len(workers) == 2 and not any(map(is_alive, workers))
    assert_same_as_far_as_both_go(run, never_evaluated)
    # Its checkpoints are whole: one worker can go on from the last.
    last = checkpoint_steps(run)[-1]
    trainings.change(run, f"train.duration={last + 1} steps")
    assert trainings.train(run, resume=True) == "finished"


def assert_same_as_far_as_both_go(one: RunDirectory, other: RunDirectory) -> None:
    common = losses(one).keys() & losses(other).keys()
    assert len(common) >= 3
    assert all(losses(one)[step] == losses(other)[step] for step in common)


# A thread of gloo that lets go of a tensor while the interpreter ends aborts the process.
ENDS_WITH_ITS_THREADS = """
import sys
from pathlib import Path
from konvoi.engine.worker import main

code = main([{path!r}, "--quiet"])
sys.exit(code or any("gloo" in file.read_text() for file in Path("/proc/self/task").glob("*/comm")))
"""
SHORTEST = ("train.duration=2 steps", "train.mode=train")


@pytest.mark.parametrize("name", registry.names("sync"))
def test_no_thread_of_the_group_is_left_when_a_training_is_over(trainings: Trainings, name: str) -> None:
    run = trainings.new(*SHORTEST, f"sync.name={name}")
    assert trainings.run_together(ENDS_WITH_ITS_THREADS.format(path=str(run.path)), 2) == [0, 0]
    assert len(losses(run)) == 2


def test_nor_where_torch_is_imported_anew(trainings: Trainings) -> None:
    # What DDP imports when it is first made, the other workers here have imported long ago.
    run, port = trainings.new(*SHORTEST), free_port()
    words = [sys.executable, "-c", ENDS_WITH_ITS_THREADS.format(path=str(run.path))]
    environments = [{**os.environ, **trainings.environment(), **torchrun_variables(rank, 2, port)} for rank in (0, 1)]
    workers = [subprocess.Popen(words, env=environment) for environment in environments]
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0]


def test_the_traceback_of_a_worker_is_seen() -> None:
    program = (
        "import os, sys; from konvoi.cluster.local import launch_local\n"
        "def fails(words):\n"
        "    if os.environ['RANK'] == '1': raise ValueError(words[0])\n"
        "    return 0\n"
        "sys.exit(launch_local(fails, ['nobody expected this'], 2))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == OUR_FAULT
    assert "ValueError: nobody expected this" in result.stderr
