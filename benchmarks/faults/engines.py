"""The same small training on three hosts under torchrun's elastic agent, torchft and our own agents; then a fault.

    pip install --no-deps torchft==0.2.0; pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http
    sudo .venv/bin/python benchmarks/faults/engines.py OUT [--engines konvoi torchft] [--faults worker] [--rounds 3]

Hosts are network namespaces at one switch. A fault is the kill -9 of a worker (of the second host); of whatever the
engine meets through: host 0's torchrun, torchft's lighthouse, the lowest host's agent, each back after 15 s; or the
second host's link, cut for 12 s. Looked at from the third host: every time without a step that is longer than 2 s
(`stalls_seconds`), the first one being the fault's. A row for each trial is appended to OUT/engines.jsonl.

All but torchrun's workers are forked from this process, which has imported torch: who is started again begins at once.
Under torchft, whatever ends is started again, as an agent of torchrun or a scheduler would. torchrun-quick has shorter
times for its rendezvous (QUICK) than the defaults.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

# Benchmarks are run as programs, which do not see the tests otherwise.
sys.path.append(str(Path(__file__).parents[2]))

import engine_worker
from kills import Training
from tests import hosts as network
from tests.processes import NUM_PAIRS, Trainings, same_bits, tensors
from torch import _dynamo  # noqa: F401 forked workers need not import it
from torch.distributed import run as torchrun

from konvoi.commands import node as commands
from konvoi.data.text import read_tsv_pairs
from konvoi.fetch.sets import KNOWN_SETS

NUM_HOSTS, NUM_STEPS, KONVOI_STEPS = 3, 200, 600
COORDINATOR, VICTIM, WITNESS = 0, 1, 2
BEFORE_SECONDS, COORDINATOR_SECONDS, CUT_SECONDS = 4.0, 15.0, 12.0
PATIENCE_SECONDS = 180.0
STALL_SECONDS = 2.0
ENGINES = ("torchrun", "torchrun-quick", "torchft", "torchft-diloco", "konvoi")
FAULTS = ("worker", "coordinator", "link")
QUICK = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3,heartbeat_timeout=1"
TORCHRUN_PORT, LIGHTHOUSE_PORT = 29400, 29510


class Programs:
    """Under torchrun or torchft: a process on each host, and the lighthouse."""

    def __init__(self, engine: str, prefix: str, out: Path) -> None:
        self.engine, self.prefix, self.out = engine, prefix, out
        self.lighthouse = self._light() if self._is_torchft else None
        self.hosts = [self._start(host) for host in range(NUM_HOSTS)]

    @property
    def _is_torchft(self) -> bool:
        return self.engine.startswith("torchft")

    def strike(self, fault: str) -> None:
        if fault == "worker":
            os.kill(self.events(VICTIM, "started")[-1]["process"], signal.SIGKILL)
        elif self.lighthouse:
            _end(self.lighthouse)
        else:
            _end(self.hosts[COORDINATOR])
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.events(COORDINATOR, "started")[-1]["process"], signal.SIGKILL)

    def bring_back(self) -> None:
        if self.lighthouse:
            self.lighthouse = self._light()
        else:
            self.hosts[COORDINATOR] = self._start(COORDINATOR)

    def look_after(self) -> None:
        for host, process in enumerate(self.hosts):
            if self._is_torchft and process.exitcode:
                self.hosts[host] = self._start(host)

    def is_over(self) -> bool:
        return not any(process.is_alive() for process in self.hosts)

    def events(self, host: int, kind: str = "step") -> list[dict[str, Any]]:
        file = self.out / f"h{host}.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def ends_alike(self) -> bool:
        digests = [file.read_text() for file in sorted(self.out.glob("h*.sha256"))]
        return len(digests) == NUM_HOSTS and len(set(digests)) == 1

    def close(self) -> None:
        for process in (*self.hosts, *([self.lighthouse] if self.lighthouse else [])):
            _end(process)
        for host in range(NUM_HOSTS):
            network.end_all(network.namespace_process_ids(f"{self.prefix}-h{host}"))

    def _light(self) -> BaseProcess:
        return self._on(COORDINATOR, "lighthouse", _light)

    def _start(self, host: int) -> BaseProcess:
        address = network.address_of(COORDINATOR + 1)
        if self._is_torchft:
            lighthouse = f"http://{address}:{LIGHTHOUSE_PORT}"
            return self._on(host, f"h{host}", engine_worker.train, self.engine, self.out, host, NUM_STEPS, lighthouse)
        words = ["--nnodes", f"2:{NUM_HOSTS}", "--nproc-per-node", "1", "--max-restarts", "100"]
        words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{address}:{TORCHRUN_PORT}"]
        words += ["--rdzv-conf", QUICK] if self.engine.endswith("-quick") else []
        words += [str(engine_worker.__file__), "torchrun", str(self.out), str(host), str(NUM_STEPS)]
        return self._on(host, f"h{host}", torchrun.main, words)

    def _on(self, host: int, log: str, work: Callable[..., object], *given: object) -> BaseProcess:
        return start_on(f"{self.prefix}-h{host}", network.address_of(host + 1), self.out / f"{log}.txt", work, *given)


def start_on(namespace: str, name: str, log: Path, work: Callable[..., object], *given: object) -> BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=_enter, args=(namespace, name, log, work, given))
    process.start()
    return process


def _enter(namespace: str, name: str, log: Path, work: Callable[..., object], given: tuple[object, ...]) -> None:
    """In the new process: it takes the host's network, and its address for a name, which engines tell each other."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    new_names, libc = 0x04000000, ctypes.CDLL(None)
    libc.unshare(new_names)
    socket.sethostname(name)
    os.environ.update({"GLOO_SOCKET_IFNAME": network.INTERFACE, "OMP_NUM_THREADS": "1"})
    with log.open("ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    with network.in_network_of(namespace):
        sys.exit(work(*given))  # type: ignore[arg-type]


def _light() -> None:
    from torchft.coordination import LighthouseServer

    # Its command's own defaults, but for the replicas.
    server = LighthouseServer(f"[::]:{LIGHTHOUSE_PORT}", 1, 60_000, 100, 5_000)
    print(server.address(), flush=True)
    signal.pause()


class Agents(Training):
    """As kills.py starts them, but forked."""

    def start(self, node: int) -> Any:
        path = self.runs[node].path
        return start_on(f"{self.prefix}-h{node}", f"h{node}", path / "agent.txt", commands.node, path)

    def is_over(self) -> bool:
        return not any(agent.is_alive() for agent in self.agents)  # type: ignore[attr-defined]


class Konvoi:
    """Our own agents, as kills.py starts them."""

    lighthouse = None

    def __init__(self, prefix: str, trainings: Trainings) -> None:
        self.training = Agents(trainings, prefix, f"train.duration={KONVOI_STEPS} steps", "evaluate.every=9999 steps")

    def strike(self, fault: str) -> None:
        if fault == "worker":
            os.kill(self.training.last(VICTIM, "started")["process_id"], signal.SIGKILL)
        else:
            _end(self.training.agents[COORDINATOR])

    def bring_back(self) -> None:
        self.training.agents[COORDINATOR] = self.training.start(COORDINATOR)

    def look_after(self) -> None:
        """Agents do."""

    def is_over(self) -> bool:
        return self.training.is_over()

    def events(self, host: int) -> list[dict[str, Any]]:
        return [event for event in self.training.runs[host].events_of(host) if event["kind"] == "step"]

    def ends_alike(self) -> bool:
        first, *others = (tensors(run) for run in self.training.runs)
        return all(same_bits(first, other) for other in others)

    def close(self) -> None:
        for agent in self.training.agents:
            _end(agent)


def try_once(training: Programs | Konvoi, fault: str, prefix: str) -> dict[str, Any]:
    """One fault, early in a training that then goes on to its end, if it does."""
    if not _wait(training, lambda: all(training.events(host) for host in range(NUM_HOSTS))):
        return {"began": False}
    time.sleep(BEFORE_SECONDS)
    struck_at = time.time()
    struck_host = COORDINATOR if fault == "coordinator" else VICTIM
    if fault == "link":
        _link(prefix, "down")
        time.sleep(CUT_SECONDS)
        _link(prefix, "up")
    else:
        training.strike(fault)
        _watch(training, COORDINATOR_SECONDS)
        if fault == "coordinator":
            training.bring_back()
    mended_at = time.time()
    is_done = _wait(training, training.is_over)
    return {
        **_stalls(training, struck_at),
        "finished": is_done,
        "joined_again": any(event["time"] > mended_at for event in training.events(struck_host)),
        "alike": is_done and training.ends_alike(),
    }


def _stalls(training: Programs | Konvoi, struck_at: float) -> dict[str, Any]:
    """What the witness saw; steps in the order in which they were made."""
    steps = training.events(WITNESS)
    gaps = [after["time"] - before["time"] for before, after in itertools.pairwise(steps) if after["time"] > struck_at]
    numbers = [step["step"] for step in steps]
    furthest = itertools.accumulate(numbers, max)
    repeated = [most - number + 1 for most, number in zip(furthest, numbers[1:], strict=False)]
    return {
        "went_on": steps[-1]["time"] > struck_at + STALL_SECONDS,
        "stalls_seconds": [round(gap, 1) for gap in gaps if gap > STALL_SECONDS],
        "steps_repeated": max(0, *repeated),
    }


def _wait(training: Programs | Konvoi, is_so: Callable[[], bool]) -> bool:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > give_up_at:
            return False
        _watch(training, 0.1)
    return True


def _watch(training: Programs | Konvoi, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        training.look_after()
        time.sleep(0.05)


def _link(prefix: str, state: str) -> None:
    subprocess.run(["ip", "-n", f"{prefix}-switch", "link", "set", f"port{VICTIM + 1}", state], check=True)


def _end(process: BaseProcess) -> None:
    process.kill()
    process.join()


@contextlib.contextmanager
def hosts() -> Iterator[str]:
    """Their networks; the prefix of their names."""
    prefix = f"ke{os.getpid()}"
    try:
        network.add_switch(f"{prefix}-switch")
        for host in range(NUM_HOSTS):
            network.add_namespace(f"{prefix}-h{host}", f"{prefix}-switch", host + 1)
        yield prefix
    finally:
        network.remove_namespaces(prefix)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--engines", nargs="+", default=ENGINES, choices=ENGINES)
    parser.add_argument("--faults", nargs="+", default=FAULTS, choices=FAULTS)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    # Whoever ends it wants the hosts gone, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began = time.strftime("%Y-%m-%d-%H%M%S")
    pairs = list(itertools.islice(read_tsv_pairs(KNOWN_SETS["demo-en-de"].embedded_path), NUM_PAIRS))
    trainings = Trainings(given.out / f"konvoi-{began}", pairs)
    for number, fault, engine in itertools.product(range(given.rounds), given.faults, given.engines):
        out = given.out / f"{engine}-{fault}-{began}-{number}"
        out.mkdir(parents=True)
        with hosts() as prefix:
            training = Konvoi(prefix, trainings) if engine == "konvoi" else Programs(engine, prefix, out)
            try:
                told = try_once(training, fault, prefix)
            finally:
                training.close()
        row = {"engine": engine, "fault": fault, **told, "at": time.strftime("%Y-%m-%d %H:%M")}
        print(json.dumps(row), flush=True)
        with (given.out / "engines.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
