"""konvoi report: a page in three forms, or live."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from urllib.request import urlopen

import pytest


def test_by_default_it_writes_report_html(konvoi, trained_run, in_folder):
    result = konvoi("report", trained_run)
    assert result.exit_code == 0, result.stderr
    assert "wrote report.html" in result.stderr
    assert [path.name for path in in_folder.iterdir()] == ["report.html"]
    assert (in_folder / "report.html").read_text().startswith("<!doctype html>")


def test_the_report_of_a_real_run_has_its_numbers_and_its_samples(konvoi, trained_run):
    page = json.loads(konvoi("report", trained_run, "--format", "json").stdout)
    assert page["facts"]["status"] == "finished"
    sections = {section["name"]: section["blocks"] for section in page["sections"]}
    names = ("time", "network", "checkpoints", "samples", "configuration", "environment")
    assert all(name in sections for name in names)
    (samples,) = [block for block in sections["samples"] if block["kind"] == "samples"]
    # evaluate.samples = 2
    assert len(samples["items"]) == 2
    (files,) = [block for block in sections["checkpoints"] if block["kind"] == "table"]
    assert "model.safetensors" in [row[0] for row in files["rows"]]


@pytest.mark.parametrize(("name", "start"), [("r.md", "# Training"), ("r.json", "{"), ("r.HTML", "<!doctype")])
def test_the_ending_decides_on_the_form(konvoi, trained_run, tmp_path, name, start):
    assert konvoi("report", trained_run, "-o", tmp_path / name).exit_code == 0
    assert (tmp_path / name).read_text().startswith(start)


def test_a_named_form_wins_over_the_ending(konvoi, trained_run, tmp_path):
    konvoi("report", trained_run, "-o", tmp_path / "report.txt", "--format", "markdown")
    assert (tmp_path / "report.txt").read_text().startswith("# Training")


def test_an_unknown_ending_has_a_remedy(konvoi, trained_run, tmp_path):
    result = konvoi("report", trained_run, "-o", tmp_path / "report.pdf")
    assert result.exit_code == 2
    assert "--format" in result.stderr


def test_a_file_that_cannot_be_written(konvoi, trained_run, tmp_path):
    result = konvoi("report", trained_run, "-o", tmp_path / "missing" / "report.html")
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr


def test_a_folder_that_is_no_run(konvoi, tmp_path):
    result = konvoi("report", tmp_path)
    assert result.exit_code == 2
    assert "is not a run directory" in result.stderr


def test_the_run_is_only_read(konvoi, trained_run, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in trained_run.rglob("*")}
    konvoi("report", trained_run, "-o", tmp_path / "report.html")
    assert {path: path.stat().st_mtime_ns for path in trained_run.rglob("*")} == before


@pytest.mark.parametrize("option", [("-o", "x.html"), ("--format", "json")], ids=" ".join)
def test_a_live_page_is_no_file(konvoi, trained_run, option):
    assert konvoi("report", trained_run, "--serve", *option).exit_code == 2


def test_served_until_interrupted(trained_run):
    command = [sys.executable, "-m", "konvoi", "report", str(trained_run), "--serve", "--port", "0"]
    # What is said must not wait in a buffer: a person wants to open it.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().split()[0]
        with urlopen(address, timeout=30) as response:
            assert b"Training report" in response.read()
        os.kill(process.pid, signal.SIGINT)
        assert process.communicate(timeout=30) == ("\n", "")
        assert process.returncode == 0
