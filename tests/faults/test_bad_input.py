"""Every command and every kind of bad input, from the one list in cases.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.faults.cases import PASSED_OVER, REFUSED, Case, document
from tests.faults.place import Place, snapshot
from typer.testing import CliRunner

from konvoi.cli import app

DOCUMENT = Path(__file__).parents[2] / "docs" / "bad-input.md"
MIN_CASES = 100
MIN_CASES_PER_COMMAND = 3
# Through a process of its own: one for each way in which a command is refused.
REAL = ("train bad.toml", "translate run", "recipes copy demo here/mine.toml", "cluster show", "eval run --beam 0")


@pytest.fixture(scope="module")
def prepared_set(trained_run: Path, konvoi_home: Path) -> Path:
    return next(konvoi_home.glob("data/own-*"))


@pytest.fixture
def place(tmp_path: Path, trained_run: Path, prepared_set: Path, corpus: tuple[Path, Path]) -> Iterator[Place]:
    folder, before = tmp_path / "place", Path.cwd()
    folder.mkdir()
    os.chdir(folder)
    place = Place(folder, trained_run, prepared_set, corpus)
    yield place
    place.close()
    os.chdir(before)


@contextmanager
def disk(folder: Path, kind: str) -> Iterator[None]:
    """here/ on a disk of 4 MB that is full, or that may not be written."""
    if not kind:
        yield
        return
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if os.geteuid() or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("such a disk needs the right to mount a tmpfs")
    try:
        if kind == "full":
            (folder / "filler").write_bytes(bytes(4 << 20))
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def invoke(case: Case, words: list[str]) -> Any:
    """In this process; what escapes is raised, with its traceback."""
    result = CliRunner().invoke(app, words, input=case.standard_input or None, env=case.environment)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def is_left_as_before(place: Place, home: Path, call: Callable[[], Any]) -> Any:
    """What the call answers; neither the folder nor the home has changed."""
    before = snapshot(place.folder), files_of(home)
    answer = call()
    assert snapshot(place.folder) == before[0]
    assert files_of(home) == before[1]
    return answer


def files_of(home: Path) -> dict[str, str]:
    """Empty folders may stay, and the checksums of files that were read."""
    found = snapshot(home)
    return {name: content for name, content in found.items() if content != "folder" and name != "digests.json"}


def check_refusal(case: Case, place: Place, code: int, said: str) -> None:
    lines = said.splitlines()
    assert code == 2, said
    assert "Traceback" not in said
    assert sum(line.startswith("error: ") for line in lines) == 1, said
    assert sum(line.startswith("hint: ") for line in lines) == 1, said
    assert place.filled_in(case.says) in said


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_bad_input_is_refused_in_one_line_with_a_hint_and_nothing_is_written(
    case: Case, place: Place, konvoi_home: Path
) -> None:
    with disk(place.folder / "here", case.disk):
        case.put(place)
        words = place.words(case.command)
        result = is_left_as_before(place, konvoi_home, lambda: invoke(case, words))
        check_refusal(case, place, result.exit_code, result.stderr)


@pytest.mark.parametrize("case", PASSED_OVER, ids=str)
def test_who_only_looks_shows_what_there_is_of_a_damaged_run(case: Case, place: Place, konvoi_home: Path) -> None:
    case.put(place)
    words = place.words(case.command)
    result = is_left_as_before(place, konvoi_home, lambda: invoke(case, words))
    assert result.exit_code == 0, result.stderr
    assert result.stdout


@pytest.mark.parametrize("case", [next(case for case in REFUSED if case.command == one) for one in REAL], ids=str)
def test_it_is_the_same_in_a_process_of_its_own(case: Case, place: Place, konvoi_home: Path) -> None:
    with disk(place.folder / "here", case.disk):
        case.put(place)
        command = [sys.executable, "-m", "konvoi", *place.words(case.command)]
        environment = {**os.environ, **case.environment}

        def call() -> subprocess.CompletedProcess[bytes]:
            return subprocess.run(command, input=case.standard_input, capture_output=True, env=environment, timeout=240)

        result = is_left_as_before(place, konvoi_home, call)
        check_refusal(case, place, result.returncode, result.stderr.decode())


def test_every_command_is_in_the_list_with_enough_cases() -> None:
    counts = Counter(case.name for case in REFUSED)
    assert counts.keys() == set(all_commands())
    assert {name for name, count in counts.items() if count < MIN_CASES_PER_COMMAND} == set()
    assert len(REFUSED) >= MIN_CASES


def all_commands() -> Iterator[str]:
    """As the program itself knows them: "train", "data get"."""
    import typer

    group: Any = typer.main.get_command(app)
    context = typer.Context(group)
    for name in group.list_commands(context):
        inner = getattr(group.get_command(context, name), "commands", None)
        yield from (f"{name} {one}" for one in inner) if inner else (name,)


def test_no_case_is_there_twice() -> None:
    names = Counter((case.command, case.what) for case in [*REFUSED, *PASSED_OVER])
    assert [name for name, count in names.items() if count > 1] == []


def test_the_document_is_made_of_the_list() -> None:
    """python -m tests.faults.cases > docs/bad-input.md"""
    assert DOCUMENT.read_text(encoding="utf-8") == document()
