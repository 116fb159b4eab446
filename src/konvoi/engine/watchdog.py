"""Sees when a run hangs: says which worker the others wait for, and what it was doing, and ends it.

Every worker tells the others once a second, from a thread of its own, how many phases it has begun and where it is.
Whoever hangs for too long compares: the worker that has begun the fewest is the one that all others wait for. Every
worker then writes its Python stacks to RUN/stacks/ and ends itself: whatever started it sees that.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import distributed
from torch._C._distributed_c10d import PrefixStore, TCPStore

from konvoi.exit_codes import OUR_FAULT
from konvoi.telemetry.timeline import BETWEEN_STEPS, Timeline

BEAT_SECONDS = 1.0
# A worker of which nothing was heard for so long does not run any more, or cannot be reached.
SILENT_SECONDS = 5.0
STORE_TIMEOUT = timedelta(seconds=5)
# Evaluations and checkpoints are between two steps, and may take longer; so may the beginning.
LONGER, NUM_FIRST_STEPS = 10, 3
STACKS_FOLDER = "stacks"


@dataclass(frozen=True)
class Beat:
    """What a worker tells of itself."""

    host: str
    num_phases: int
    """Begun so far; all workers go through the same."""
    phase: str
    call: str
    """Where its Python is: file and function."""
    count: int
    """Of its beats."""


class Watchdog:
    """Looks once a second, on a thread of its own."""

    def __init__(self, rank: int, size: int, timeline: Timeline, folder: Path, hang_seconds: float) -> None:
        self.rank, self.size, self.timeline, self.folder = rank, size, timeline, folder / STACKS_FOLDER
        self.hang_seconds = hang_seconds
        self._main = threading.main_thread().ident
        self._store = _store()
        self._heard: dict[int, tuple[int, float]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=2 * BEAT_SECONDS)

    def _watch(self) -> None:
        count = 0
        while not self._stop.wait(BEAT_SECONDS):
            count += 1
            try:
                self._tell(count)
                beats = self._beats()
                asked = self._store.check(["hang"])
            except (RuntimeError, distributed.DistError):
                if self._is_hanging():
                    self._end("the run hangs, and the first worker's host, through which all meet, does not answer")
                continue
            if asked:
                self._end(self._store.get("hang").decode())
            elif self._is_hanging():
                message = explain(beats, self._silent())
                self._store.set("hang", message)
                self._end(message)

    def _tell(self, count: int) -> None:
        beat = Beat(socket.gethostname(), self.timeline.num_begun, self.timeline.phase, self._call(), count)
        self._store.set(f"beat/{self.rank}", json.dumps(asdict(beat)))

    def _beats(self) -> dict[int, Beat]:
        keys = [f"beat/{rank}" for rank in range(self.size)]
        beats = {
            rank: Beat(**json.loads(self._store.get(key))) for rank, key in enumerate(keys) if self._store.check([key])
        }
        for rank, beat in beats.items():
            if self._heard.get(rank, (-1, 0.0))[0] != beat.count:
                self._heard[rank] = (beat.count, time.monotonic())
        return beats

    def _silent(self) -> set[int]:
        now = time.monotonic()
        return {rank for rank, (_, heard_at) in self._heard.items() if now - heard_at > SILENT_SECONDS}

    def _is_hanging(self) -> bool:
        timeline = self.timeline
        is_long = timeline.phase in BETWEEN_STEPS or timeline.num_steps < NUM_FIRST_STEPS
        return time.monotonic() - timeline.begun_at > self.hang_seconds * (LONGER if is_long else 1)

    def _call(self) -> str:
        frame = sys._current_frames().get(self._main or 0)
        ours = [entry for entry in traceback.extract_stack(frame) if f"{os.sep}konvoi{os.sep}" in entry.filename]
        return f"{Path(ours[-1].filename).name}:{ours[-1].lineno} {ours[-1].name}" if ours else ""

    def _end(self, message: str) -> None:
        # On a full disk the message alone must do.
        with contextlib.suppress(OSError):
            self.folder.mkdir(exist_ok=True)
            with (self.folder / f"rank{self.rank}.txt").open("w") as file:
                faulthandler.dump_traceback(file, all_threads=True)
        print(f"error: {message}\nhint: the workers' stacks are in {self.folder}", file=sys.stderr, flush=True)
        # Others still have to hear of it. No fault of the user's: whoever started the workers may start them again.
        time.sleep(2 * BEAT_SECONDS)
        os._exit(OUR_FAULT)


def explain(beats: dict[int, Beat], silent: set[int]) -> str:
    """Who is missing: those that are silent, else those that have come the least far."""
    fewest = min(beat.num_phases for beat in beats.values())
    behind = {rank for rank, beat in beats.items() if beat.num_phases == fewest}
    missing = silent or behind
    if not silent and len(behind) == len(beats):
        places = sorted({f"{beat.phase} ({beat.call})" for beat in beats.values()})
        return f"all workers wait in {' and '.join(places)}: the network between them does not carry it"
    words = [_where(rank, beats[rank], rank in silent) for rank in sorted(missing)]
    waiting = ", ".join(str(rank) for rank in sorted(set(beats) - missing))
    return f"the run hangs: {'; '.join(words)}" + (f". Waiting for it: rank {waiting}" if waiting else "")


def _where(rank: int, beat: Beat, is_silent: bool) -> str:
    state = "does not answer, and was last" if is_silent else "is"
    call = beat.call or "outside of our code"
    return f"rank {rank} on {beat.host} {state} in {beat.phase or 'its beginning'} ({call})"


def _store() -> Any:
    """A connection of its own: the one of the process group may be in use by whoever hangs."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=STORE_TIMEOUT)
    return PrefixStore("watchdog", store)


def start(rank: int, size: int, timeline: Timeline, folder: Path, hang_seconds: float) -> Callable[[], None]:
    """Returns what ends it; a worker alone waits for nobody."""
    if size == 1 or "MASTER_PORT" not in os.environ:
        return lambda: None
    return Watchdog(rank, size, timeline, folder, hang_seconds).close
