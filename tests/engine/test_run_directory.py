"""The run directory: what it refuses, who may write, what its files hold."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.processes import Trainings, events, steps

from konvoi.config.recipe import check
from konvoi.errors import RunError, UserError
from konvoi.folder import read_json, write_json
from konvoi.run_directory import (
    FORMAT_VERSION,
    RunDirectory,
    find_runs,
    new_path,
    newest_of,
)
from konvoi.telemetry.environment import environment

RECIPE = check(
    {"task": {"source": "en", "target": "de"}, "data": {"set": "demo-en-de"}, "train": {"duration": "5 steps"}}
)

# Names that a program may rely on: ARCHITECTURE.md
PROMISED = {
    "status",
    "steps",
    "seconds",
    "step_seconds",
    "target_tokens_per_second",
    "tokens_per_second",
    "parameters",
    "workers",
    "hosts",
    "scores",
    "best",
}
# What we say beyond that.
MORE = {
    "format",
    "ending",
    "skipped_steps",
    "precision",
    "device",
    "threads",
    "bytes_sent_per_step",
    "bytes_out_per_host_and_step",
    "micro_batches_per_epoch",
}


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for item in value.values() for number in numbers(item)]
    return [value] if isinstance(value, float) else []


def strict_json(text: str) -> Any:
    """NaN and Infinity are none of JSON's words, though Python reads them."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    return json.loads(text, parse_constant=refuse)


def test_a_new_run_keeps_its_recipe(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "runs" / "one", RECIPE)
    assert RunDirectory.open(tmp_path / "runs" / "one").recipe() == RECIPE


def test_a_run_is_not_written_over(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "one", RECIPE)
    with pytest.raises(RunError, match="one holds another run") as caught:
        RunDirectory.create(tmp_path / "one", RECIPE)
    assert "--resume" in caught.value.hint


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(RunError, match="exists and is no run directory"):
        RunDirectory.create(tmp_path, RECIPE)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_empty_folder_may_become_a_run(tmp_path: Path) -> None:
    assert RunDirectory.create(tmp_path, RECIPE).recipe() == RECIPE


def test_a_file_is_no_place_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RunError):
            RunDirectory.create(path, RECIPE)


def test_what_is_no_run_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run directory"):
        RunDirectory.open(tmp_path / "nowhere")


def hold(path: Path, held: Any, done: Any) -> None:
    with RunDirectory.open(path).locked():
        held.set()
        done.wait()


def test_two_trainings_cannot_share_a_run_and_the_lock_dies_with_its_holder(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "one", RECIPE)
    context = multiprocessing.get_context("fork")
    held, done = context.Event(), context.Event()
    holder = context.Process(target=hold, args=(run.path, held, done))
    holder.start()
    held.wait()
    with pytest.raises(RunError, match="is being trained right now"), run.locked():
        pass
    holder.kill()
    holder.join()
    with run.locked():
        pass


def test_a_new_path_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda form: "20261115-204512")
    paths = []
    for _ in range(3):
        paths.append(new_path("some/demo.toml", tmp_path))
        paths[-1].mkdir()
    assert [path.name for path in paths] == ["demo-20261115-204512", "demo-20261115-204512-2", "demo-20261115-204512-3"]


def test_the_newest_run_of_a_recipe_is_found(tmp_path: Path) -> None:
    names = ["demo-20261115-204512", "demo-20261115-204512-2", "demo-big-20261115-204513", "other-20261115-204514"]
    for number, name in enumerate(names):
        os.utime(RunDirectory.create(tmp_path / name, RECIPE).recipe_file, (number, number))
    assert [run.path.name for run in find_runs(tmp_path)] == names
    assert newest_of("demo", tmp_path).path.name == "demo-20261115-204512-2"
    with pytest.raises(RunError, match="there is no run of mine"):
        newest_of("mine", tmp_path)


def test_json_is_written_whole_and_read_back(tmp_path: Path) -> None:
    assert read_json(tmp_path / "nothing.json") == {}
    write_json(tmp_path / "one.json", {"word": "Größe"})
    assert read_json(tmp_path / "one.json") == {"word": "Größe"}
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"]
    (tmp_path / "one.json").write_text("{")
    with pytest.raises(UserError, match=r"one\.json cannot be read"):
        read_json(tmp_path / "one.json")


def test_the_summary_holds_exactly_what_is_promised_and_what_we_add(trainings: Trainings) -> None:
    run = trainings.trained("evaluate.every=6 steps")
    summary = strict_json(run.summary_file.read_text(encoding="utf-8"))
    assert summary.keys() == PROMISED | MORE
    assert (summary["format"], summary["status"], summary["steps"]) == (FORMAT_VERSION, "finished", 12)
    assert (summary["workers"], summary["hosts"], summary["bytes_sent_per_step"]) == (1, 1, 0)
    assert summary["step_seconds"].keys() == {"mean", "median", "p95"}
    assert summary["best"].keys() == {"metric", "value", "step", "checkpoint"}
    assert {"loss", "perplexity", "bleu", "chrf"} <= summary["scores"].keys()
    assert all(math.isfinite(number) for number in numbers(summary)) and len(numbers(summary)) > 5


def test_the_rates_in_the_summary_are_tokens_over_seconds(trainings: Trainings) -> None:
    run = trainings.trained("train.mode=train")
    events_by_step = steps(run).values()
    seconds = sum(event["step_seconds"] for event in events_by_step)
    target, source = (sum(event[f"{side}_tokens"] for event in events_by_step) for side in ("target", "source"))
    assert run.summary()["target_tokens_per_second"] == pytest.approx(target / seconds, rel=1e-3)
    assert run.summary()["tokens_per_second"] == pytest.approx((target + source) / seconds, rel=1e-3)


def test_a_step_says_what_is_promised(trainings: Trainings) -> None:
    run = trainings.trained("train.duration=2 steps", "train.mode=train")
    promised = {"kind", "step", "time", "loss", "learning_rate", "gradient_norm", "target_tokens", "source_tokens"}
    assert len(steps(run)) == 2
    for event in steps(run).values():
        assert event.keys() >= {*promised, "step_seconds", "phases"}
        assert event["phases"].keys() >= {"data", "forward", "backward", "optimiser"}
        assert sum(event["phases"].values()) == pytest.approx(event["step_seconds"], abs=1e-4)


def test_training_alone_writes_no_evaluation(trainings: Trainings) -> None:
    run = trainings.trained("train.mode=train", "evaluate.every=2 steps")
    assert events(run, "evaluation") == []
    assert (run.summary()["scores"], run.summary()["best"]) == ({}, {})


def test_a_summary_is_there_before_the_first_step(trainings: Trainings) -> None:
    run = trainings.new("batching.max_length=1")
    with pytest.raises(UserError, match="every training pair is longer than 1 pieces"):
        trainings.train(run)
    assert run.summary() == {}


def test_the_environment_says_with_what_a_run_was_made() -> None:
    found = environment(["cpu"], workers=2)
    assert {"torch", "numpy", "sentencepiece"} <= found["libraries"].keys()
    assert (found["workers"], found["devices"]) == (2, ["cpu"])
    assert found["cores"] >= 1 and found["memory_bytes"] > 0
    assert strict_json(json.dumps(found)) == found
