"""A plan that lies in a run directory is shown in its report."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from konvoi.analysis.record import RunRecord
from konvoi.report.blocks import Note, Paragraph, Plot
from konvoi.report.sections import plan


def test_the_plan_of_a_run_is_drawn(konvoi: Any, trained_run: Path, tmp_path: Path) -> None:
    run = copytree(trained_run, tmp_path / "run")
    words = ("--nodes", "1,2,4", "--network", "100mbit,1gbit", "--sync", "ddp,diloco", "--json")
    (run / "plan.json").write_text(konvoi("plan", "transformer-base-en-de", *words).stdout)
    blocks = plan.render(RunRecord.read(run))
    plots = [block for block in blocks if isinstance(block, Plot)]
    assert [plot.title for plot in plots] == ["Planned speed on 100 Mbit/s", "Planned speed on 1 Gbit/s"]
    assert [list(series.x) for series in plots[0].series] == [[1, 2, 4], [1, 2, 4]]
    assert plots[0].series[0].y[0] == 1.0 > plots[0].series[0].y[2]
    assert any(isinstance(block, Paragraph) and "slower than one v100" in block.text for block in blocks)


@pytest.mark.parametrize("content", ["", "[]", '{"rows": [{}]}', '{"rows": 1}'])
def test_what_is_no_plan_is_said_to_be_none(trained_run: Path, tmp_path: Path, content: str) -> None:
    run = copytree(trained_run, tmp_path / "run")
    (run / "plan.json").write_text(content)
    (block,) = plan.render(RunRecord.read(run))
    assert isinstance(block, Note) and "konvoi plan --json" in block.text


def test_a_run_without_a_plan_has_no_such_section(trained_run: Path) -> None:
    assert plan.render(RunRecord.read(trained_run)) == []
