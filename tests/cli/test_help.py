"""The command line as a whole: help, start-up, exit codes."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer

from konvoi import __version__, cli

COMMANDS = [
    ("train",),
    *((name,) for name in ("attach", "stop", "worker", "node", "export", "serve")),
    ("eval",),
    ("translate",),
    ("info",),
    *((name,) for name in ("plan", "profile")),
    ("runs",),
    *((name,) for name in ("watch", "diagnose", "report", "compare", "tensorboard")),
    *(("recipes", name) for name in ("list", "show", "copy", "check")),
    ("classify",),
    *(("data", name) for name in ("list", "get", "prepare", "info")),
    *(("cluster", name) for name in ("import", "show", "check", "setup", "exec", "ssh", "pull")),
]


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_the_list_of_commands_is_complete():
    group = typer.main.get_command(cli.app)
    context = typer.Context(group)
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    found = {(name, *rest) for name, command in commands.items() for rest in _children(command)}
    assert found == set(COMMANDS)


def _children(command):
    return [(name,) for name in command.commands] if hasattr(command, "commands") else [()]


@pytest.mark.parametrize("command", [(), ("recipes",), ("data",), ("cluster",), *COMMANDS], ids=" ".join)
def test_every_command_has_help(konvoi, command):
    result = konvoi(*command, "--help")
    assert result.exit_code == 0
    assert "Usage: " in result.stdout


def test_version(konvoi):
    assert konvoi("--version").stdout == f"konvoi {__version__}\n"


def test_an_unknown_command_is_a_usage_error(konvoi):
    assert konvoi("trian").exit_code == 2


@pytest.mark.parametrize(
    "command", [["--help"], ["runs"], ["recipes", "list"], ["data", "list"], ["cluster", "--help"]], ids=" ".join
)
def test_quick_commands_do_not_import_torch(command, in_folder):
    result = python(
        "import sys\nfrom konvoi.cli import main\n"
        f"sys.argv = ['konvoi', *{command!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "assert 'torch' not in sys.modules"
    )
    assert result.returncode == 0, result.stderr


def test_our_own_fault_shows_its_traceback_and_says_so():
    result = python(
        "import sys\nfrom konvoi import cli\n"
        "import konvoi.commands.runs as runs\n"
        "def broken(*arguments): raise ValueError('a bug')\n"
        "runs.list_runs = broken\nsys.argv = ['konvoi', 'runs']\ncli.main()"
    )
    assert result.returncode == 1
    assert "ValueError: a bug" in result.stderr
    assert "fault of Konvoi" in result.stderr


def test_interrupted_outside_training():
    result = python(
        "import sys\nfrom konvoi import cli\n"
        "import konvoi.commands.runs as runs\n"
        "def interrupted(*arguments): raise KeyboardInterrupt\n"
        "runs.list_runs = interrupted\nsys.argv = ['konvoi', 'runs']\ncli.main()"
    )
    assert (result.returncode, result.stderr) == (130, "interrupted\n")


def test_a_closed_pipe_is_quiet():
    command = f"set -o pipefail; {sys.executable} -m konvoi recipes show demo | true"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
