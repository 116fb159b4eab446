"""Three hosts with one worker each."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hosts import Hosts

from konvoi.run_directory import RunDirectory


def losses(run: Path) -> list[float]:
    return [event["loss"] for event in RunDirectory(run).events_of() if event["kind"] == "step"]


@pytest.mark.long
def test_three_hosts_train_as_three_workers_of_one(tmp_path: Path, tiny_recipe: Path) -> None:
    words = ["--set", 'train.duration="6 steps"', "--quiet"]
    with Hosts(3, tmp_path) as hosts:
        alone, together = hosts.laptop.home / "alone", hosts.laptop.home / "together"
        hosts.konvoi("train", tiny_recipe, "--run", alone, "--workers", "3", *words)
        hosts.konvoi("train", tiny_recipe, "--run", together, "--cluster", hosts.file, *words)
        assert len(losses(alone)) == 6
        assert losses(together) == losses(alone)
        assert RunDirectory(together).summary()["hosts"] == 3
