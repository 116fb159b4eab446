"""How big the training set and a checkpoint are."""

from __future__ import annotations

import json

import pytest
from tests.analysis.made_runs import make_run

from konvoi.analysis.answers import checkpoints, data_size
from konvoi.analysis.record import RunRecord

IMAGES = {
    "set": "demo-images",
    "classes": 10,
    "images": {"train": 6000, "val": 2000},
    "bytes": {"train": 5_280_000, "val": 1_760_000},
    "damaged": ["a.jpg"],
}


def write_checkpoint(run, step, under="", **sizes):
    folder = run / "checkpoints" / under / f"step-{step:08d}"
    folder.mkdir(parents=True)
    for name, num_bytes in sizes.items():
        (folder / name.replace("__", ".")).write_bytes(bytes(num_bytes))


def test_text_is_told_in_megabytes_lines_and_tokens(tmp_path):
    told = data_size.answer(RunRecord.read(make_run(tmp_path / "run")))
    # What is left after the last filter, 1.9 + 2.3 MB; not the raw files' 2.0 + 2.4.
    assert told.short == "4.2 MB, 69,000 lines"
    assert "650,000 tokens of en and 670,000 tokens of de in a vocabulary of 3,000 pieces" in told.words
    # 50 steps x 2 workers of 400 micro-batches an epoch
    assert told.facts["epochs"] == pytest.approx(50 * 2 / 400)
    assert "has seen 25 % of it" in told.words


def test_several_epochs_are_counted(tmp_path):
    told = data_size.answer(RunRecord.read(make_run(tmp_path / "run", summary={"micro_batches_per_epoch": 20})))
    assert "gone through it 5.0 times" in told.words


def test_accumulating_steps_go_through_the_data_faster(tmp_path):
    told = data_size.answer(RunRecord.read(make_run(tmp_path / "run", recipe={"train": {"accumulate": 4}})))
    assert told.facts["epochs"] == pytest.approx(50 * 2 * 4 / 400)


def test_pictures_are_told_in_megabytes_and_classes(tmp_path):
    path = make_run(tmp_path / "run")
    (path / "data.json").write_text(json.dumps(IMAGES))
    told = data_size.answer(RunRecord.read(path))
    assert told.short == "5.3 MB, 6,000 pictures"
    assert "in 10 classes; 1 damaged files were left out" in told.words


def test_no_description_is_no_guess(tmp_path):
    path = make_run(tmp_path / "run")
    (path / "data.json").unlink()
    assert data_size.answer(RunRecord.read(path)).short == "can't tell"


def test_the_files_of_the_latest_checkpoint_say_what_they_hold(tmp_path):
    path = make_run(tmp_path / "run", summary={"parameters": 1000})
    write_checkpoint(path, 10, model__safetensors=1)
    write_checkpoint(path, 20, model__safetensors=4000, optimizer__safetensors=8000, state__json=500)
    run = RunRecord.read(path)
    found = checkpoints.files(run)
    assert [(file.name, file.num_bytes) for file in found] == [
        ("optimizer.safetensors", 8000),
        ("model.safetensors", 4000),
        ("state.json", 500),
    ]
    assert "Adam's two moments" in found[0].holds
    assert "weights, fp32" in found[1].holds
    told = checkpoints.answer(run)
    assert told.short == "12.5 kB"
    # 12,500 bytes / 1,000 parameters
    assert "12.5 bytes for each of 1,000 parameters" in told.words
    assert "Two checkpoints are kept" in told.words
    assert told.facts["kept"] == ["step-00000010", "step-00000020"]


def test_what_the_workers_share_for_their_exchange_and_what_is_their_own(tmp_path):
    path = make_run(tmp_path / "run", recipe={"sync": {"name": "diloco"}})
    write_checkpoint(path, 20, model__safetensors=4000, sync__safetensors=2000)
    for rank in (0, 1):
        write_checkpoint(path, 20, f"workers/rank-{rank:03d}", sync__safetensors=3000)
    found = {file.name: file.holds for file in checkpoints.files(RunRecord.read(path))}
    assert "the common weights of diloco" in found["sync.safetensors"]
    told = checkpoints.answer(RunRecord.read(path))
    assert told.facts["own_bytes_of_workers"] == 6000
    assert "differs from worker to worker takes another 6.0 kB" in told.words


def test_sgd_has_a_momentum(tmp_path):
    path = make_run(tmp_path / "run", recipe={"optim": {"name": "sgd"}})
    write_checkpoint(path, 10, optimizer__safetensors=8)
    assert "momentum" in checkpoints.files(RunRecord.read(path))[0].holds


def test_the_best_is_named_by_the_index(tmp_path):
    path = make_run(tmp_path / "run")
    write_checkpoint(path, 10, model__safetensors=8)
    (path / "checkpoints" / "index.json").write_text(json.dumps({"best": [{"checkpoint": "step-00000010"}]}))
    assert checkpoints.answer(RunRecord.read(path)).facts["best"] == "step-00000010"


def test_checkpoints_that_were_not_copied_along(tmp_path):
    run = RunRecord.read(make_run(tmp_path / "run", checkpoints=[25, 50]))
    assert checkpoints.files(run) == []
    assert "the last one after step 50" in checkpoints.answer(run).words


def test_a_real_checkpoint_is_described_whole(trained_run):
    run = RunRecord.read(trained_run)
    found = {file.name: file for file in checkpoints.files(run)}
    assert found.keys() == {"model.safetensors", "optimizer.safetensors", "state.json", "checksums.json"}
    assert not [file for file in found.values() if "not known" in file.holds]
    # Adam: three numbers of 4 bytes for each parameter, and a little for names.
    assert checkpoints.answer(run).facts["bytes_per_parameter"] == pytest.approx(12, rel=0.1)
