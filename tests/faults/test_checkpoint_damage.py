"""A part of benchmarks/faults/checkpoints.py in every run of the tests: damage at random, and none loaded silently."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "faults" / "checkpoints.py"
NUM_TRIALS = 30


@pytest.fixture(scope="module")
def trials() -> ModuleType:
    spec = importlib.util.spec_from_file_location("checkpoint_trials", FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_damaged_checkpoint_is_loaded_silently(trials: ModuleType) -> None:
    result = trials.run(NUM_TRIALS, seed=2)
    assert result["wrong"] == []
    # Damage somewhere leaves others whole: both happen, or nothing was tried.
    assert result["total"]["refused"] > NUM_TRIALS and result["total"]["as saved"] > NUM_TRIALS


def test_what_is_loaded_wrong_would_be_seen(trials: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("konvoi.engine.checkpoint.damage", lambda path, needed="": "" if path.is_dir() else "missing")
    assert any(": silent" in line for line in trials.run(20, seed=2)["wrong"])
