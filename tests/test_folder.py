"""Folders that are made once: as a whole, by one process, resumable after a kill but not after wrong input."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from konvoi.errors import DataError, MachineError
from konvoi.folder import KeepsWorkError, make_once, work_folder

# Appends a line to the log, waits for the word "go", then finishes.
SLOW_MAKER = """
import pathlib, sys, time
from konvoi.folder import make_once
final, log, go = map(pathlib.Path, sys.argv[1:])
def make(folder):
    with log.open("a") as stream:
        stream.write("made\\n")
    (folder / "begun").write_text("")
    while not go.exists():
        time.sleep(0.01)
    (folder / "content").write_text("whole")
make_once(final, make, needed_bytes=0, report=lambda stage, *_: print(stage, flush=True))
print("done", flush=True)
"""


def start(tmp_path: Path) -> subprocess.Popen[str]:
    arguments = [str(tmp_path / name) for name in ("final", "log", "go")]
    return subprocess.Popen([sys.executable, "-c", SLOW_MAKER, *arguments], stdout=subprocess.PIPE, text=True)


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def test_it_is_there_as_a_whole_and_made_once(tmp_path: Path) -> None:
    made = []

    def make(folder: Path) -> None:
        assert not (tmp_path / "final").exists()
        (folder / "content").write_text("whole")
        made.append(folder)

    for _ in range(2):
        make_once(tmp_path / "final", make, needed_bytes=0)
    assert len(made) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["final"]
    assert (tmp_path / "final" / "content").read_text() == "whole"


def test_who_comes_second_waits_and_finds_the_work_done(tmp_path: Path) -> None:
    first = start(tmp_path)
    wait_for(work_folder(tmp_path / "final") / "begun")
    second = start(tmp_path)
    assert second.stdout is not None
    assert second.stdout.readline() == "waiting for another process that makes final\n"
    (tmp_path / "go").touch()
    assert first.wait(60) == second.wait(60) == 0
    assert (tmp_path / "log").read_text() == "made\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["final", "go", "log"]
    for process in (first, second):
        assert process.stdout is not None
        process.stdout.close()


def test_after_a_kill_the_next_one_gets_what_was_done(tmp_path: Path) -> None:
    killed = start(tmp_path)
    wait_for(work_folder(tmp_path / "final") / "begun")
    killed.send_signal(signal.SIGKILL)
    killed.wait(60)
    assert killed.stdout is not None
    killed.stdout.close()
    assert not (tmp_path / "final").exists()

    found: list[str] = []
    make_once(tmp_path / "final", lambda folder: found.extend(os.listdir(folder)), needed_bytes=0)
    assert found == ["begun"]
    assert not work_folder(tmp_path / "final").exists()


def test_wrong_input_leaves_nothing(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        (folder / "half").write_text("")
        raise DataError("bad line")

    with pytest.raises(DataError):
        make_once(tmp_path / "final", make, needed_bytes=0)
    assert [*tmp_path.iterdir()] == []


def test_wrong_input_leaves_the_work_where_the_error_asks_for_it(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        (folder / "list of what is wrong").write_text("")
        raise KeepsWorkError("bad lines")

    with pytest.raises(KeepsWorkError):
        make_once(tmp_path / "final", make, needed_bytes=0)
    assert [path.name for path in work_folder(tmp_path / "final").iterdir()] == ["list of what is wrong"]


@pytest.mark.parametrize(
    ("number", "problem"),
    [(errno.ENOSPC, r"no space left for .*final: about 3 MB are needed"), (errno.EACCES, "cannot write")],
)
def test_what_the_machine_lacks_is_said_in_words_and_the_work_stays(tmp_path: Path, number: int, problem: str) -> None:
    def make(folder: Path) -> None:
        (folder / "half").write_text("")
        raise OSError(number, os.strerror(number))

    with pytest.raises(MachineError, match=problem) as caught:
        make_once(tmp_path / "final", make, needed_bytes=3_000_000)
    assert "KONVOI_HOME" in caught.value.hint
    assert (work_folder(tmp_path / "final") / "half").exists()
