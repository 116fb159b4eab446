"""The table of docs/network.md is printed from what was measured, beside what the planner says to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCALING = Path(__file__).parents[2] / "benchmarks" / "network" / "scaling.py"


def test_every_row_has_what_the_planner_predicts_and_its_error() -> None:
    before = SCALING.with_suffix(".jsonl").read_bytes()
    command = [sys.executable, str(SCALING), "--table"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout
    header, _, *rows = (line.strip("| ").split(" | ") for line in printed.splitlines() if line.startswith("|"))
    assert rows and all(len(row) == len(header) for row in rows)
    for row in rows:
        found = dict(zip(header, row, strict=True))
        error = float(found["predicted s"]) / float(found["s per step"]) - 1
        assert float(found["error"].rstrip("%")) == pytest.approx(100 * error, abs=0.3)
    # Nothing was measured for it.
    assert SCALING.with_suffix(".jsonl").read_bytes() == before
