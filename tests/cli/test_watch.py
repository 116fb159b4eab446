"""konvoi watch: lines in a pipe, a view on a terminal, an end by itself."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
from rich.console import Console
from tests.watch.growing import VERDICT, GrowingRun

from konvoi.commands import watch as commands_watch
from konvoi.watch.live import LiveRun

ALTERNATE_SCREEN, MAIN_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"


@pytest.fixture
def run(tmp_path):
    """Two ranks, three steps, going on."""
    run = GrowingRun(tmp_path / "my-run")
    run.summary()
    run.started(at=time.time())
    run.steps(1, 3, at=time.time())
    return run


def watch_command(run, *options):
    return [sys.executable, "-m", "konvoi", "watch", str(run.path), *options]


class Terminal:
    """konvoi watch on a terminal of 80 x 24."""

    def __init__(self, run, *options):
        self._own, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "PYTHONUTF8": "1"}
        for name in ("NO_COLOR", "COLUMNS", "LINES"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            watch_command(run, *options), stdin=other, stdout=other, stderr=other, env=environment
        )
        os.close(other)
        self.output = b""

    def read_until(self, text: bytes) -> None:
        while text not in self.output:
            self.output += os.read(self._own, 65536)

    def end(self) -> int:
        try:
            while more := os.read(self._own, 65536):
                self.output += more
        except OSError:
            # How Linux says that the other end is closed.
            pass
        os.close(self._own)
        return self.process.wait(timeout=60)


def test_lines_while_the_run_goes_on_and_an_end_with_it(run):
    with subprocess.Popen(watch_command(run, "--every", "0.1"), stdout=subprocess.PIPE, text=True) as process:
        assert "running  step 3 of 100 (3 %)" in process.stdout.readline()
        run.steps(4, 100, at=time.time())
        run.summary("finished", ending="finished", best={"metric": "bleu", "value": 31.25, "step": 90})
        *_, last = process.stdout.read().splitlines()
    assert process.returncode == 0
    assert "finished after 100 steps" in last
    assert last.endswith("best BLEU 31.25 at step 90")


def test_a_terminal_gets_a_view_and_keeps_the_last_one(run):
    terminal = Terminal(run, "--every", "0.1")
    terminal.read_until(b"step 3 of 100")
    run.steps(4, 100, at=time.time())
    run.summary("finished", ending="finished")
    assert terminal.end() == 0
    drawn, kept = terminal.output.split(MAIN_SCREEN)
    assert drawn.startswith(ALTERNATE_SCREEN)
    assert b"finished" in kept
    assert b"step 100 of 100" in kept


def test_ctrl_c_ends_the_watching_quietly(run):
    terminal = Terminal(run)
    terminal.read_until(b"step 3 of 100")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 0
    kept = terminal.output.split(MAIN_SCREEN)[1]
    assert b"running" in kept
    assert b"Traceback" not in kept


def test_ctrl_c_while_the_first_view_is_drawn_gives_the_terminal_back(run, monkeypatch):
    views = []

    def interrupted(view):
        """The first view cannot be drawn to its end."""
        views.append(view)
        return Interrupted() if len(views) == 1 else "the last view"

    monkeypatch.setattr(commands_watch, "Screen", interrupted)
    console = Console(file=io.StringIO(), force_terminal=True, legacy_windows=False)
    with pytest.raises(KeyboardInterrupt):
        commands_watch._on_terminal(console, LiveRun(run.path, lambda _: VERDICT), every_seconds=60.0)
    drawn, kept = console.file.getvalue().encode().split(MAIN_SCREEN)
    assert ALTERNATE_SCREEN in drawn
    assert b"the last view" in kept


class Interrupted:
    def __rich_console__(self, console, options):
        raise KeyboardInterrupt
        yield


def test_ctrl_c_in_a_pipe_is_as_quiet(run):
    command = watch_command(run, "--every", "60")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
        assert (process.returncode, process.stderr.read()) == (0, "")


def test_once_is_one_look(konvoi, run):
    result = konvoi("watch", run.path, "--once")
    assert result.exit_code == 0
    assert "running  step 3 of 100 (3 %)" in result.stdout


def test_once_on_a_terminal_leaves_its_screen_alone(run):
    terminal = Terminal(run, "--once")
    assert terminal.end() == 0
    assert b"step 3 of 100" in terminal.output
    assert ALTERNATE_SCREEN not in terminal.output


def test_a_run_that_really_trained(konvoi, trained_run):
    lines = konvoi("watch", trained_run).stdout.splitlines()
    assert "finished  step 20 of 20 (100 %)" in lines[1]
    assert "finished after 20 steps" in lines[-1]


def test_a_run_that_died_is_not_waited_for(konvoi, tmp_path):
    run = GrowingRun(tmp_path / "run")
    run.summary()
    run.step(1)
    assert "died after 1 steps" in konvoi("watch", run.path).stdout


def test_no_such_run(konvoi, tmp_path):
    result = konvoi("watch", tmp_path / "nowhere")
    assert result.exit_code == 2
    assert "is not a run directory" in result.stderr


def test_an_interval_of_nothing_is_refused(konvoi, run):
    assert konvoi("watch", run.path, "--every", "0").exit_code == 2
