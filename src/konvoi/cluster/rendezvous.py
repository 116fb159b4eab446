"""Where the hosts of a training meet, and hear of each other: a store that the first serves, on its private address.

Every key but `job` and `failure` is written by one host alone, as konvoi/ready/2 by the third.
"""

from __future__ import annotations

import _thread
import json
import os
import queue
import signal
import socket
import threading
import time
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, get_args

from konvoi.cluster.job_spec import Failure, JobSpec
from konvoi.errors import ClusterError, HostError
from konvoi.exit_codes import OUR_FAULT

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

WAITING_CONNECTIONS = 1024
# Between two looks at the store; what this host has to say goes out at once.
LOOK_SECONDS = 0.2
# A host that is silent for so long is gone; where a worker has lost its connections, so much sooner. One that still
# prepares its data may not get to say anything for longer.
SILENCE_SECONDS = 4.0
SILENCE_AFTER_A_SIGN_SECONDS = 3.0
SILENCE_BEFORE_READY_SECONDS = 8.0
# Of one that is silent for so long it is worth asking whether it is still there.
DOUBT_SECONDS = 0.8
# The most that the time between two looks counts: a process that was not running heard nobody.
LONGEST_LOOK_SECONDS = 1.0
# For the others to read why it ended, before the first host takes the store away.
FAREWELL_SECONDS = 5.0

# joined: with these versions   ready: with this data   sign: a worker lost its connections   stop: it was asked to
# ended: with this exit code   read: it knows how all ended   alive: a number that grows
# door: where it answers whoever else is gone   regroup: hosts are back, or leave; all save, and start again
# leaving: why it does, after all have saved
Said = Literal["joined", "door", "ready", "sign", "stop", "leaving", "regroup", "ended", "read", "alive"]
SAID: tuple[Said, ...] = get_args(Said)
FAILURE = "konvoi/failure"
JOB = "konvoi/job"


class MeetingOverError(HostError):
    """Somebody of the meeting was lost, and it will soon be opened anew."""


def serve_store(address: str, port: int = 0, timeout: float = 300.0) -> TCPStore:
    """A store that listens on this address only; with port 0 on any port that is free (`store.port`)."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # Torch itself would listen on every address of the host.
    listener = socket.create_server((address, port), family=family, backlog=WAITING_CONNECTIONS)
    return TCPStore(
        address,
        listener.getsockname()[1],
        is_master=True,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def connect_store(address: str, port: int, timeout: float = 300.0) -> TCPStore:
    """The store that another process serves, or soon will; `timeout` seconds are also what its answers may take."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    _wait_for_listener(address, port, timeout)
    return TCPStore(address, port, is_master=False, timeout=timedelta(seconds=timeout), wait_for_workers=False)


def _wait_for_listener(address: str, port: int, timeout: float) -> None:
    """Torch would try again as well, but with a stack trace each time."""
    give_up_at = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((address, port), timeout=max(0.1, give_up_at - time.monotonic())).close()
            return
        except OSError as error:
            if time.monotonic() >= give_up_at:
                raise ClusterError(
                    f"nobody answers at {address}:{port} within {timeout:g} s ({error.strerror or error})",
                    hint="konvoi cluster check shows whether the hosts reach each other on their training ports",
                ) from None
            time.sleep(0.1)


class Stillness:
    """How long a sign of life has not changed; only the time counts in which this process itself ran."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._last_sign: object = None
        self._looked_at = time.monotonic()

    def of(self, sign: object) -> float:
        """To be called often."""
        now = time.monotonic()
        passed = min(now - self._looked_at, LONGEST_LOOK_SECONDS)
        self.seconds = self.seconds + passed if sign == self._last_sign else 0.0
        self._last_sign, self._looked_at = sign, now
        return self.seconds


class Board:
    """What the hosts of a training tell each other while it goes on.

    A thread alone talks to the store, so that a connection that hangs stops nobody from noticing that it does.
    """

    def __init__(self, spec: JobSpec, timeout: float) -> None:
        """Raises where there is no such meeting, or this host is in it already."""
        self.spec = spec
        self.stops_main = False
        """Whether news of a failure or a stop interrupt the main thread, as SIGTERM would."""
        self.has_interrupted = False
        self._store = _open(spec, timeout)
        self._said = {(what, node): "" for what in SAID for node in range(len(spec.members))}
        self._failure = ""
        self._gone = ""
        """How the first host, which serves the store, was lost."""
        self._last_words: dict[Said, str] = {}
        self._outbox: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._num_heard = 0
        self._still = [Stillness() for _ in spec.members]
        """For the first host, all hosts; for the others, the first alone: it serves the store."""
        self._is_cut = False
        self._lost = set[int]()
        self._closing, self._news = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._keep_up, name="board", daemon=True)
        self._thread.start()

    def say(self, what: Said, value: str = "yes") -> None:
        """To all, in this host's name; once is enough."""
        if self._last_words.get(what) != value:
            self._last_words[what] = value
            self._outbox.put((_key(what, self.spec.node), value))
            self._news.set()

    def said(self, what: Said) -> list[str]:
        """By all hosts in their order; nothing where one has not said it yet."""
        return [self._said[what, node] for node in range(len(self.spec.members))]

    def all_said(self, what: Said) -> bool:
        return all(self.said(what))

    def any_said(self, what: Said) -> bool:
        return any(self.said(what))

    def fail(self, failure: Failure, exit_code: int) -> None:
        """Ends the training for all, unless another failure came first."""
        self._outbox.put((FAILURE, json.dumps({"failure": asdict(failure), "exit_code": exit_code})))
        self._news.set()

    def failure(self) -> tuple[Failure, int] | None:
        """The first one of all hosts, and the exit code that it gives to all."""
        if self._failure:
            told = json.loads(self._failure)
            return Failure(**told["failure"]), told["exit_code"]
        silence = self._still[0].of(self._num_heard) if self.spec.node else 0.0
        if not self._gone and not self.all_said("ended") and (silence >= self._patience_seconds() or self._is_cut):
            self._gone = "its connection is closed" if self._is_cut else f"no answer for {silence:.0f} s"
        if not self._gone:
            return None
        # For good, should it answer again: whoever asked before has ended its workers.
        return Failure(self.spec.members[0].name, None, _gone(self._gone), "lost"), OUR_FAULT

    def doubtful(self) -> list[int]:
        """Hosts that may be dead, as the first host sees it: silent, or all where a worker has lost its connections."""
        is_sign = self.any_said("sign")
        return [
            node
            for node, still in enumerate(self._still)
            if node and (is_sign or still.seconds > DOUBT_SECONDS) and not self._said["read", node]
        ]

    def close(self) -> None:
        """The first host waits a little: without its store the others would not learn why all ends."""
        self.say("read")
        give_up_at = time.monotonic() + FAREWELL_SECONDS
        while self.spec.node == 0 and time.monotonic() < give_up_at and not self._all_have_read():
            time.sleep(0.05)
        self._closing.set()
        self._news.set()
        # Not for ever: it may hang in a connection that is dead, and does where it has heard nothing for long.
        self._thread.join(LOOK_SECONDS if self._gone else FAREWELL_SECONDS)

    def _all_have_read(self) -> bool:
        waited_for = [node for node, joined in enumerate(self.said("joined")) if joined and node not in self._lost]
        return all(self._said["read", node] for node in waited_for)

    def _keep_up(self) -> None:
        """The thread."""
        count = 0
        while True:
            count += 1
            is_last = self._closing.is_set()
            try:
                self._exchange(count)
            except RuntimeError:
                # A closed connection is no silence: torch never opens it again, and nobody else would close it.
                self._is_cut = True
            if self.stops_main and (self.failure() or self.any_said("stop")):
                self.stops_main, self.has_interrupted = False, True
                _thread.interrupt_main(signal.SIGTERM)
            if is_last or self._is_cut:
                return
            self._news.wait(LOOK_SECONDS)
            self._news.clear()

    def _exchange(self, count: int) -> None:
        self._store.set(_key("alive", self.spec.node), str(count))
        while not self._outbox.empty():
            key, value = self._outbox.get()
            if key == FAILURE:
                self._store.compare_set(key, "", value)
            else:
                self._store.set(key, value)
        values = self._store.multi_get([FAILURE, *(_key(*place) for place in self._said)])
        self._failure, *said = (value.decode() for value in values)
        self._said = dict(zip(self._said, said, strict=True))
        self._num_heard += 1
        if self._failure or self.all_said("ended"):
            self.say("read")
        if self.spec.node == 0 and not self._failure:
            self._look_for_lost_hosts()

    def _look_for_lost_hosts(self) -> None:
        for node, alive in enumerate(self.said("alive")):
            # Who has not come yet has its own time; who has read how it ended may leave.
            is_expected = alive and not self._said["read", node]
            silence = self._still[node].of(alive if is_expected else self._num_heard)
            if silence > self._patience_seconds():
                self.lose(node, f"no word for {silence:.0f} s")

    def _patience_seconds(self) -> float:
        if not self.all_said("ready"):
            return SILENCE_BEFORE_READY_SECONDS
        return SILENCE_AFTER_A_SIGN_SECONDS if self.any_said("sign") else SILENCE_SECONDS

    def lose(self, node: int, how: str) -> None:
        """Tells all that a host is gone."""
        self._lost.add(node)
        self.fail(Failure(self.spec.members[node].name, None, _gone(how), "lost"), OUR_FAULT)


def _open(spec: JobSpec, timeout: float) -> TCPStore:
    first = spec.members[0]
    try:
        store = _begin(spec, timeout) if spec.node == 0 else connect_store(first.address, spec.port, timeout)
        _join(store, spec)
    except HostError:
        raise
    except ClusterError as error:
        raise HostError(first.name, error.problem, error.hint) from None
    except OSError as error:
        problem = f"cannot listen on {first.address}:{spec.port}: {os.strerror(error.errno or 0)}"
        raise HostError(first.name, problem, hint="its address in cluster.toml must be its own") from None
    except RuntimeError as error:
        problem = f"no training meets at {first.address}:{spec.port} ({str(error).splitlines()[0]})"
        raise MeetingOverError(first.name, problem, hint="start again: another port will be chosen") from None
    return store


def _begin(spec: JobSpec, timeout: float) -> TCPStore:
    """All keys are there before the one that the others wait for: a look at a missing key would wait, too."""
    store = serve_store(spec.member.address, spec.port, timeout)
    for key in (FAILURE, *(_key(what, node) for what in SAID for node in range(len(spec.members)))):
        store.set(key, "")
    store.set(JOB, spec.id)
    return store


def _join(store: TCPStore, spec: JobSpec) -> None:
    if store.get(JOB).decode() != spec.id:
        problem = f"another training meets at {spec.members[0].address}:{spec.port}"
        raise HostError(spec.members[0].name, problem, hint="start again: another port will be chosen")
    if store.add(f"konvoi/times_joined/{spec.node}", 1) > 1:
        raise MeetingOverError(spec.member.name, "takes part in this training already", hint="konvoi stop RUN ends it")


def _key(what: Said, node: int) -> str:
    return f"konvoi/{what}/{node}"


def _gone(how: str) -> str:
    return f"is gone: {how}; it is down or cut off, or its konvoi process was killed"
