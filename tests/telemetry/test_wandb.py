"""Weights & Biases holds what the events say; without a network, in a file."""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from konvoi.errors import MachineError
from konvoi.telemetry.wandb import WeightsAndBiases

# The log format of LevelDB behind a header of 7 bytes: blocks of 32 KiB, each record in one piece or several.
HEADER_BYTES, BLOCK_BYTES, RECORD_HEADER = 7, 32_768, struct.Struct("<IHB")
WHOLE, LAST = 1, 4


@pytest.fixture(autouse=True)
def nobody_is_logged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caches and its login are looked for in the test's folder alone."""
    for variable in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "NETRC"):
        monkeypatch.setenv(variable, str(tmp_path / "home" / variable))
    for variable in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_PROJECT", "WANDB_RUN_ID"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


def records(file: Path) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    content, position, data = file.read_bytes(), HEADER_BYTES, b""
    while position < len(content):
        left_in_block = BLOCK_BYTES - position % BLOCK_BYTES
        if left_in_block < RECORD_HEADER.size:
            position += left_in_block
            continue
        _, length, piece = RECORD_HEADER.unpack_from(content, position)
        position += RECORD_HEADER.size + length
        data += content[position - length : position]
        if piece in (WHOLE, LAST):
            yield Record.FromString(data)
            data = b""


def files(folder: Path) -> list[Path]:
    return sorted((folder / "wandb").glob("offline-run-*/run-*.wandb"))


def rows(file: Path) -> dict[int, dict[str, float]]:
    """step -> tag -> value, without wandb's own clocks."""
    found = {}
    for record in records(file):
        if record.WhichOneof("record_type") == "history":
            row = {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            found[row["_step"]] = {tag: value for tag, value in row.items() if not tag.startswith("_")}
    return found


def step_event(step: int, loss: float) -> dict[str, Any]:
    return {"kind": "step", "time": 1.0, "step": step, "loss": loss, "learning_rate": 0.001, "phases": {"data": 0.1}}


def evaluation(step: int) -> dict[str, Any]:
    samples = [{"source": "a", "reference": "b", "hypothesis": "c"}]
    return {"kind": "evaluation", "time": 2.0, "step": step, "seconds": 0.5, "bleu": 31.25, "samples": samples}


def test_what_is_written_offline_is_read_back(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wandb = WeightsAndBiases(tmp_path / "run", "offline", "demo-1", {"train": {"seed": 3}})
    for event in (step_event(1, 4.5), step_event(10, 2.25), evaluation(10), step_event(20, math.nan)):
        wandb.write(event)
    wandb.close()
    (file,) = files(tmp_path / "run")
    written = rows(file)
    assert math.isnan(written.pop(20)["train/loss"])
    assert written == {
        1: {"train/loss": 4.5, "train/learning_rate": 0.001, "phases/data": 0.1},
        # The step and its evaluation in one row; a text is no curve.
        10: {
            "train/loss": 2.25,
            "train/learning_rate": 0.001,
            "phases/data": 0.1,
            "eval/bleu": 31.25,
            "eval/seconds": 0.5,
        },
    }
    (run,) = [record.run for record in records(file) if record.WhichOneof("record_type") == "run"]
    config = {update.key: json.loads(update.value_json) for update in run.config.update}
    assert (run.project, run.display_name, config["train"]) == ("konvoi", "demo-1", {"seed": 3})
    assert capfd.readouterr() == ("", "")


def test_a_resumed_run_keeps_its_id(tmp_path: Path) -> None:
    for step in (1, 2):
        wandb = WeightsAndBiases(tmp_path, "offline", "demo-1", {})
        wandb.write(step_event(step, 1.0))
        wandb.close()
    found = files(tmp_path)
    assert [set(rows(file)) for file in found] == [{1}, {2}]
    assert len({file.name for file in found}) == 1


def test_nothing_is_opened_before_the_first_event(tmp_path: Path) -> None:
    WeightsAndBiases(tmp_path / "run", "offline", "demo-1", {}).close()
    assert not (tmp_path / "run").exists()


def test_online_without_a_login_is_the_users_to_mend(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wandb = WeightsAndBiases(tmp_path, "online", "demo-1", {})
    with pytest.raises(MachineError, match="No API key configured") as caught:
        wandb.write(step_event(1, 1.0))
    assert caught.value.hint == "wandb login, or --set telemetry.wandb=offline"
    wandb.close()
    assert capfd.readouterr() == ("", "")


def test_a_missing_package_is_said_before_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MachineError, match="needs the package wandb") as caught:
        WeightsAndBiases(tmp_path, "offline", "demo-1", {})
    assert "pip install 'konvoi[wandb]'" in caught.value.hint


def test_a_folder_named_wandb_is_not_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(MachineError, match="needs the package wandb"):
        WeightsAndBiases(tmp_path, "offline", "demo-1", {})
