"""The same function over many items: in order, bounded, and no helper outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from konvoi.errors import DataError, MachineError
from konvoi.parallel import ITEMS_PER_PROCESS, ordered_map

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Helpers import the functions of this file by its name."""
    monkeypatch.syspath_prepend(ROOT)


def slow_square(number: int) -> int:
    # Later items are ready earlier.
    time.sleep(0.02 * (number % 3 == 0))
    return number * number


def fail_at_three(number: int) -> int:
    if number == 3:
        raise DataError("three is bad", hint="leave it out")
    return number


def die(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def process_id(_: int) -> int:
    return os.getpid()


@pytest.mark.parametrize("num_processes", [1, 2])
@pytest.mark.parametrize("count", [0, 1, 2, 10])
def test_results_come_in_the_order_of_the_items(num_processes: int, count: int) -> None:
    assert [*ordered_map(slow_square, range(count), num_processes)] == [number**2 for number in range(count)]


def test_small_work_needs_no_other_process() -> None:
    assert [*ordered_map(process_id, [0], 2)] == [os.getpid()]
    assert os.getpid() not in ordered_map(process_id, [0, 1], 2)


def test_items_are_taken_only_as_fast_as_they_are_worked_off() -> None:
    taken = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = ordered_map(slow_square, items(), 2)
    next(results)
    assert len(taken) <= 2 * ITEMS_PER_PROCESS + 1
    results.close()  # type: ignore[attr-defined]


def test_an_error_of_a_helper_is_the_error_of_the_parent() -> None:
    with pytest.raises(DataError, match="three is bad") as caught:
        [*ordered_map(fail_at_three, range(10), 2)]
    assert caught.value.hint == "leave it out"


def test_a_killed_helper_is_said_in_words() -> None:
    with pytest.raises(MachineError, match="killed, most likely because the memory ran out"):
        [*ordered_map(die, range(10), 2)]


PARENT = """
import os, sys, time
from konvoi.parallel import ordered_map
from tests.test_parallel import process_id
results = ordered_map(process_id, range(1000), 2)
print(next(results), flush=True)
time.sleep(60)
"""


def test_a_killed_parent_takes_its_helpers_with_it() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    helper = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait(60)
    parent.stdout.close()
    # Waits for as long as it takes; a helper that stays is caught by the test's own time-out in CI.
    while is_alive(helper):
        time.sleep(0.01)


def is_alive(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as stream:
            return stream.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
