"""What this process got of the processor."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from konvoi.telemetry.processor import ProcessorTime


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
