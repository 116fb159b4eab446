"""What this process got of the processor."""

from __future__ import annotations

import sys
import threading
import time
from types import SimpleNamespace

import pytest

from konvoi.telemetry import processor
from konvoi.telemetry.processor import OtherPrograms, ProcessorTime


def spin(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def test_work_counts_and_sleep_does_not() -> None:
    processor = ProcessorTime()
    spin(0.05)
    assert processor.take()["cpu_seconds"] >= 0.05
    time.sleep(0.05)
    # Nothing of the work before is left, and sleeping is no work.
    assert processor.take()["cpu_seconds"] < 0.05
    processor.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells it")
def test_waiting_for_a_core_is_seen_where_another_thread_holds_it() -> None:
    import os

    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    processor = ProcessorTime()
    stop = threading.Event()
    # numpy's sort lets go of the interpreter: the two threads really want the one core at once.
    import numpy as np

    values = np.random.default_rng(1).random(500_000)

    def sort_until_stopped() -> None:
        while not stop.is_set():
            np.sort(values)

    other = threading.Thread(target=sort_until_stopped)
    other.start()
    try:
        for _ in range(10):
            np.sort(values)
        assert processor.take()["run_delay_seconds"] > 0
    finally:
        stop.set()
        other.join()
        os.sched_setaffinity(0, cores)
        processor.close()


def test_what_others_had_of_the_cores_is_what_was_not_for_this_process_and_its_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two cores for 10 s: 13 s of work, of which this process did 5, a child that lives 2 and one that ended 1."""
    clock = {"now": 100.0, "core": 0.0, "own": 0.0, "ended": 0.0, "child": 0.0}

    def process() -> SimpleNamespace:
        own = SimpleNamespace(user=clock["own"], system=0.0, children_user=clock["ended"], children_system=0.0)
        child = SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=0.0, system=clock["child"]))
        return SimpleNamespace(cpu_times=lambda: own, children=lambda recursive: [child])

    def cores(percpu: bool) -> list[SimpleNamespace]:
        # Idle and interrupts are nobody's; the third core is not ours.
        ours = SimpleNamespace(user=clock["core"], system=0.5, nice=0.0, idle=7.0, softirq=clock["now"], steal=0.0)
        return [ours, ours, SimpleNamespace(user=clock["now"], system=0.0, nice=0.0)]

    # Numbers may be higher than there are cores listed.
    monkeypatch.setattr(processor, "_own_cores", lambda: {0, 1, 9})
    monkeypatch.setattr(processor, "usable_cores", lambda: 2)
    monkeypatch.setattr(processor.psutil, "Process", process)
    monkeypatch.setattr(processor.psutil, "cpu_times", cores)
    monkeypatch.setattr(processor.time, "monotonic", lambda: clock["now"])
    others = OtherPrograms()
    assert others.share() == 0
    clock.update(now=110.0, core=6.5, own=5.0, ended=1.0, child=2.0)
    # 13 - 8 = 5 s of 20
    assert others.share() == pytest.approx(0.25)


def test_what_others_had_is_a_share_on_a_real_machine() -> None:
    others = OtherPrograms()
    spin(0.2)
    assert 0 <= others.share() <= 1
