"""The processes of one host: what they find in their environment, how they are asked to end, how they did."""

from __future__ import annotations

import ctypes
import io
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from konvoi.cluster.faults import last_step
from konvoi.cluster.job_spec import JobSpec, Kind, rank_log
from konvoi.exit_codes import DONE, INTERRUPTED, OUR_FAULT, USER
from konvoi.world import COMMAND_BEGAN, LAST_STEP_AT, SEAT, began_at

# After Ctrl-C: for the step, or the evaluation, that goes on, and for the checkpoint.
SHUTDOWN_SECONDS = 900.0
# After a failure: nobody can finish a step any more.
GRACE_SECONDS = 1.0
# A worker that lost its connections did so because another one ended: its host tells within this time.
CAUSE_SECONDS = 20.0
# How often they are looked at.
TICK_SECONDS = 0.1

# The exit code of a worker that lost its connections; EX_TEMPFAIL of sysexits.h, used by nothing else here.
LOST_OTHERS = 75
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# How a worker may end once it was asked to stop: before it listens for signals, or when it was too slow.
STOPPED = {DONE, INTERRUPTED, LOST_OTHERS, -signal.SIGKILL, *(-number for number in STOPS)}
# Of a failing worker's last words.
MAX_LINES = 8

# More words for a worker that starts again; the second where its host was away, and may hold what others gave up.
FROM_NEWEST = ("--resume", "--checkpoint", "newest")
FROM_OTHERS = ("--resume", "--checkpoint", "spare")

# So that what is left of a job can be found.
JOB_VARIABLE = "KONVOI_JOB"
# No stack traces of C++ for a connection that is closed: we say it ourselves. To be set before torch is imported.
PLAIN_WORDS = {"TORCH_CPP_LOG_LEVEL": "ERROR"}

Worker = Callable[[Sequence[str]], int]


def variables(spec: JobSpec) -> dict[str, str]:
    """What the agent and its workers find in their environment; best before torch is imported."""
    member = spec.member
    return {
        COMMAND_BEGAN: os.environ.get(COMMAND_BEGAN) or str(began_at()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // member.workers)),
        # Otherwise both bind to whatever the host name resolves to.
        "GLOO_SOCKET_IFNAME": member.interface,
        "NCCL_SOCKET_IFNAME": f"={member.interface}",
        **PLAIN_WORDS,
        JOB_VARIABLE: spec.id,
        **spec.environment,
    }


class Workers:
    """The processes of one host."""

    def __init__(self, worker: Worker, arguments: Sequence[str], spec: JobSpec, run: Path | None = None) -> None:
        """With a run, what a worker prints goes to its log there."""
        context: Any = multiprocessing.get_context(start_method())
        is_restart = tuple(arguments[-len(FROM_NEWEST) :]) in (FROM_NEWEST, FROM_OTHERS)
        last_step_at = last_step(Path(arguments[0]), spec.seats)[1] if is_restart else None
        self._processes: dict[int, Any] = {}
        self._stopped_at: float | None = None
        self._over_since: float | None = None
        for local_rank, seat in enumerate(spec.seats):
            log = rank_log(run, seat) if run else None
            ranks = {**_ranks(spec, local_rank), SEAT: str(seat), LAST_STEP_AT: str(last_step_at or "")}
            self._processes[seat] = context.Process(
                target=_work, args=(worker, arguments, ranks, log, os.getpid()), name=f"worker {seat}"
            )
            # A signal between the fork and the worker's own handlers would be taken by ours, and lost.
            with _signals_held_back():
                self._processes[seat].start()

    def exit_codes(self) -> dict[int, int]:
        """Of those that have ended, by seat; -9 after SIGKILL."""
        codes = {seat: process.exitcode for seat, process in self._processes.items()}
        return {seat: code for seat, code in codes.items() if code is not None}

    def stop(self, is_over_elsewhere: bool = False) -> None:
        """Asks them once to end in good order; kills who has not after a very long time, or waits in vain."""
        now = time.monotonic()
        if self._stopped_at is None:
            self._stopped_at = now
            self._signal(signal.SIGTERM)
            return
        if is_over_elsewhere:
            # All save together, so those who are left have not much to do.
            self._over_since = self._over_since or now
        is_too_late = now - self._stopped_at > SHUTDOWN_SECONDS or now - (self._over_since or now) > CAUSE_SECONDS
        # Ended before it listened for signals: without it, the others would wait for ever to begin.
        has_gap = any(-code in STOPS for code in self.exit_codes().values())
        if is_too_late or has_gap:
            if is_too_late and len(self.exit_codes()) < len(self._processes):
                print(
                    "workers that did not end in time are killed: what came after the last checkpoint is lost",
                    flush=True,
                )
            self._signal(signal.SIGKILL)

    def end(self) -> None:
        """All of them, now."""
        self._signal(signal.SIGTERM)
        give_up_at = time.monotonic() + GRACE_SECONDS
        for process in self._processes.values():
            process.join(max(0.0, give_up_at - time.monotonic()))
        self._signal(signal.SIGKILL)
        for process in self._processes.values():
            process.join()

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            if process.exitcode is None:
                os.kill(process.pid, number)


def failed(codes: Mapping[int, int], is_stopping: bool) -> list[tuple[int, int]]:
    """Ranks and exit codes of workers that failed, the likeliest cause first: who only lost the others comes last."""
    fine = STOPPED if is_stopping else {DONE, INTERRUPTED}
    failures = [(rank, code) for rank, code in codes.items() if code not in fine]
    return sorted(failures, key=lambda failure: (failure[1] == LOST_OTHERS, failure[1] > 0))


def kind_of(code: int) -> Kind:
    if code == USER:
        return "refused"
    return "lost" if code < 0 or code == LOST_OTHERS else "crashed"


def how(code: int) -> str:
    if code == LOST_OTHERS:
        return "lost the others"
    return _killed(-code) if code < 0 else f"ended with exit code {code}"


def _killed(number: int) -> str:
    by_whom = "; the system does that when memory runs out" if number == signal.SIGKILL else ""
    return f"was ended by {signal.Signals(number).name}{by_whom}"


def last_words(log: Path) -> str:
    """A failing worker's own: what it said is wrong, or the end of its traceback."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    starts = [number for number, line in enumerate(lines) if line.startswith(("error: ", "Traceback "))]
    return last_lines("\n".join(lines[starts[-1] if starts else 0 :]))


def last_lines(text: str) -> str:
    return "\n".join([line for line in text.splitlines() if line.strip()][-MAX_LINES:])


class Stop:
    """What a signal leaves behind: a note; or an exception, where nothing would look at the note for long."""

    def __init__(self) -> None:
        self.is_asked, self.raises = False, False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.is_asked = True
        if self.raises:
            self.raises = False
            raise KeyboardInterrupt


@contextmanager
def listening() -> Iterator[Stop]:
    stop = Stop()
    # nohup has one ignored on purpose.
    before = {number: signal.getsignal(number) for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, stop)
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def start_method() -> str:
    """A fork has torch imported already, which saves seconds; a GPU's driver and macOS do not survive one."""
    import torch

    if sys.platform != "linux" or torch.cuda.is_available():
        return "spawn"
    # Optimisers import it, and it takes seconds.
    import torch._dynamo

    return "fork"


def _work(worker: Worker, arguments: Sequence[str], ranks: Mapping[str, str], log: Path | None, agent: int) -> None:
    """In the worker's process: its exit code is how the agent learns what happened, its traceback how a person does."""
    _end_with(agent)
    for number in STOPS:
        # Until the loop listens for them.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    os.environ.update(ranks)
    if log:
        _print_to(log)
    try:
        code = worker(arguments)
    except Exception as error:
        if _has_lost_others(error):
            # No news where another one says why; a whole traceback would hide it.
            print(f"lost the others: {str(error).splitlines()[0]}", file=sys.stderr)
            code = LOST_OTHERS
        else:
            traceback.print_exc()
            code = OUR_FAULT
    sys.exit(code)


@contextmanager
def _signals_held_back() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with(agent: int) -> None:
    """An agent that is killed takes its workers along."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
        # It may have ended before it could be told.
        if os.getppid() != agent:
            os._exit(OUR_FAULT)


def _print_to(log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(descriptor, stream.fileno())
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(line_buffering=True)
    os.close(descriptor)


def _ranks(spec: JobSpec, local_rank: int) -> dict[str, str]:
    """As torchrun tells them, and where to meet: in the store that the first agent serves."""
    return {
        "RANK": str(spec.first_rank + local_rank),
        "WORLD_SIZE": str(spec.num_workers),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(spec.member.workers),
        "GROUP_RANK": str(spec.node),
        "GROUP_WORLD_SIZE": str(len(spec.members)),
        "MASTER_ADDR": spec.members[0].address,
        "MASTER_PORT": str(spec.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def _has_lost_others(error: Exception) -> bool:
    """Whether a collective broke off because another worker had ended."""
    from torch.distributed import DistError

    return isinstance(error, DistError) or ("gloo" in str(error) and "onnection" in str(error))
