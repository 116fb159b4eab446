"""Workers, agents and hosts die at random moments of a training on three hosts; after each, the run must go on.

    sudo .venv/bin/python benchmarks/faults/kills.py OUT [--kills 200] [--seed 1]

Hosts are network namespaces at one switch, with a run directory each. A training of 300 steps takes kills until it is
done; then it is compared: with an undisturbed one, bit for bit, where it waits for all three hosts to come back
(faults.min_hosts = 3, "exact"); otherwise ("fewer") the hosts with each other and the position in the data with the sum
of what each step took. A row for each kill is appended to OUT/kills.jsonl; run again, it goes on after the last one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# Benchmarks are run as programs, which do not see the tests otherwise.
sys.path.append(str(Path(__file__).parents[2]))

from tests import hosts as network
from tests.processes import NUM_PAIRS, Trainings, checkpoint_steps, losses, same_bits, state, tensors

from konvoi.cluster.faults import last_events
from konvoi.cluster.job_spec import JobSpec, Member, spec_file, state_file
from konvoi.data.text import read_tsv_pairs
from konvoi.fetch.sets import KNOWN_SETS
from konvoi.folder import read_json, write_whole
from konvoi.run_directory import RunDirectory

NUM_HOSTS, NUM_STEPS, EVERY = 3, 300, 10
SETTINGS = (
    f"train.duration={NUM_STEPS} steps",
    f"checkpoint.every={EVERY} steps",
    "checkpoint.keep=3",
    "evaluate.every=30 steps",
    "faults.max_restarts=1000",
    "train.log_every=1000 steps",
)
PATIENCE_SECONDS = 180.0
PORT = 29500
# The others notice a silent host after 4 s.
CUT_SECONDS = (9.5, 14.0)
AGENT_BACK_SECONDS = (0.5, 6.0)


@dataclass(frozen=True)
class Kill:
    what: str
    node: int
    moment: str
    pause: float
    away: float

    @classmethod
    def by_chance(cls, chance: random.Random) -> Kill:
        what = chance.choice(("worker", "worker", "agent", "host"))
        moment = chance.choice(("training", "evaluation", "checkpoint"))
        away = chance.uniform(*(CUT_SECONDS if what == "host" else AGENT_BACK_SECONDS))
        return cls(what, chance.randrange(NUM_HOSTS), moment, chance.uniform(0, 1.5), away)


class Training:
    """On three hosts, from its agents' start to their end."""

    def __init__(self, trainings: Trainings, prefix: str, *overrides: str) -> None:
        self.prefix = prefix
        self.runs = [trainings.new(*SETTINGS, f"train.workers={NUM_HOSTS}", *overrides) for _ in range(NUM_HOSTS)]
        members = [Member(f"h{n}", network.address_of(n + 1), network.INTERFACE, 1) for n in range(NUM_HOSTS)]
        spec = JobSpec(uuid.uuid4().hex, tuple(members), 0, PORT, environment=trainings.environment())
        for node, run in enumerate(self.runs):
            spec_file(run.path).parent.mkdir()
            write_whole(spec_file(run.path), replace(spec, node=node).to_json())
        self.left_behind: list[int] = []
        """Hosts that were not back before the others had finished."""
        self.agents = [self.start(node) for node in range(NUM_HOSTS)]

    def start(self, node: int) -> subprocess.Popen[bytes]:
        words = [*network.inside(f"{self.prefix}-h{node}"), sys.executable, "-m", "konvoi", "node"]
        with (self.runs[node].path / "agent.txt").open("ab") as log:
            return subprocess.Popen([*words, str(self.runs[node].path)], stdout=log, stderr=log)

    def is_over(self) -> bool:
        codes = [agent.poll() for agent in self.agents]
        left = [node for node in range(NUM_HOSTS) if codes[node] is None]
        if 0 in codes and all(self._waits(node) for node in left):
            # Came back after the others had finished; konvoi train --cluster ends those as well.
            for node in left:
                self.agents[node].terminate()
                self.agents[node].wait()
                self.left_behind.append(node)
            return True
        return not left

    def _waits(self, node: int) -> bool:
        state = read_json(state_file(self.runs[node].path, f"h{node}"))
        return bool(state.get("state") == "waiting")

    def last(self, node: int, *kinds: str) -> dict[str, Any]:
        found = last_events(self.runs[node].events / f"rank{node}.jsonl")
        return next((event for event in found if event["kind"] in kinds), {"time": 0.0, "step": 0})

    def all_train(self) -> bool:
        """All hosts together, and have made a step since they met."""
        for node in range(NUM_HOSTS):
            met = self.last(node, "started")
            if met.get("workers") != NUM_HOSTS or self.last(node, "step")["time"] <= met["time"]:
                return False
        return True

    def is_at(self, moment: str, node: int) -> bool:
        last = self.last(node, "step", "evaluation", "checkpoint")
        if moment == "evaluation":
            return last["kind"] == "step" and last["step"] % 30 == 0
        if moment == "checkpoint":
            return any(self.runs[node].checkpoints.glob(".step-*"))
        return True

    def strike(self, kill: Kill) -> None:
        if kill.what == "worker":
            os.kill(self.last(kill.node, "started")["process_id"], signal.SIGKILL)
        elif kill.what == "agent":
            self.agents[kill.node].kill()
            self.agents[kill.node].wait()
        else:
            self._link(kill.node, "down")

    def mend(self, kill: Kill) -> None:
        if kill.what == "agent":
            self.agents[kill.node] = self.start(kill.node)
        elif kill.what == "host":
            self._link(kill.node, "up")

    def _link(self, node: int, state: str) -> None:
        words = ["ip", "-n", f"{self.prefix}-switch", "link", "set", f"port{node + 1}", state]
        subprocess.run(words, check=True)


def wait(training: Training, is_so: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> bool:
    give_up_at = time.monotonic() + seconds
    while not is_so():
        if training.is_over() or time.monotonic() > give_up_at:
            return False
        time.sleep(0.01)
    return True


def kill_once(training: Training, kill: Kill, waits_for_all: bool) -> dict[str, Any] | None:
    """What came of it; None where the training was over before."""
    if not wait(training, training.all_train):
        return None
    time.sleep(kill.pause)
    if training.is_over():
        return None
    was_hit = wait(training, lambda: training.is_at(kill.moment, kill.node), 20.0)
    seen_by = next(n for n in range(NUM_HOSTS) if n != kill.node)
    before, began_at = training.last(seen_by, "step"), time.time()
    try:
        training.strike(kill)
    except ProcessLookupError:
        # It has just ended.
        return None
    row = {"what": kill.what, "host": kill.node, "moment": kill.moment if was_hit else "training"}
    mended_at = began_at
    if kill.what != "worker" and waits_for_all:
        time.sleep(kill.away)
        training.mend(kill)
        mended_at = time.time()
    has_gone_on = wait(training, lambda: _goes_on(training, seen_by, began_at))
    # Before a killed agent is started again, which takes a moment to see that all is done.
    is_over = not has_gone_on and training.is_over()
    first = _first_step_after(training, seen_by)
    if kill.what != "worker" and not waits_for_all:
        time.sleep(max(0.0, began_at + kill.away - time.time()))
        training.mend(kill)
    if not has_gone_on:
        return {**row, "recovered": is_over}
    reached = max(event["step"] for event in _steps_until(training, seen_by, first["time"]))
    lost = reached - first["step"] + 1
    stall = first["time"] - max(before["time"], mended_at if waits_for_all and kill.what != "worker" else 0.0)
    return {**row, "recovered": True, "stall_seconds": round(stall, 2), "steps_lost": lost}


def _goes_on(training: Training, node: int, since: float) -> bool:
    restart = training.last(node, "restart", "started")
    return restart["time"] > since and training.last(node, "step")["time"] > restart["time"]


def _first_step_after(training: Training, node: int) -> dict[str, Any]:
    events = list(training.runs[node].events_of(node))
    begin = max((number for number, event in enumerate(events) if event["kind"] == "started"), default=0)
    return next((event for event in events[begin:] if event["kind"] == "step"), {"time": 0.0, "step": 0})


def _steps_until(training: Training, node: int, end: float) -> Iterator[dict[str, Any]]:
    yield {"step": 0}
    for event in training.runs[node].events_of(node):
        if event["kind"] == "step" and event["time"] < end:
            yield event


def faults_of(training: Training, reference: RunDirectory | None) -> list[str]:
    """What is wrong with a training that has ended."""
    present = [node for node in range(NUM_HOSTS) if node not in training.left_behind]
    codes = {node: training.agents[node].returncode for node in present}
    found = [f"h{node} ended with {code}" for node, code in codes.items() if code]
    whole = next((node for node, code in codes.items() if code == 0), None)
    if whole is None:
        return found
    run = training.runs[whole]
    if checkpoint_steps(run)[-1] != NUM_STEPS:
        found.append(f"the last checkpoint is of step {checkpoint_steps(run)[-1]}")
    others = [training.runs[node] for node in present]
    if not all(same_bits(tensors(other, step=NUM_STEPS), tensors(run, step=NUM_STEPS)) for other in others):
        found.append("the hosts' weights differ")
    made = {event["step"]: event for event in run.events_of(whole) if event["kind"] == "step"}
    if reference:
        expected = losses(reference)
        if {step: made[step]["loss"] for step in made} != {step: expected[step] for step in made}:
            found.append("losses differ from the undisturbed run's")
        if not same_bits(tensors(run, step=NUM_STEPS), tensors(reference, step=NUM_STEPS)):
            found.append("weights differ from the undisturbed run's")
    if (position := state(run)["position"]) != (expected_position := _expected_position(training.runs)):
        found.append(f"{position} micro-batches were used, not {expected_position}")
    return found


def _expected_position(runs: list[RunDirectory]) -> int:
    """Every step takes one micro-batch of each worker that it was made with; a repeated one, as the last time.

    A host that was away does not know of the steps that the others made: all of them are asked.
    """
    made: dict[int, tuple[float, int]] = {}
    for node, run in enumerate(runs):
        workers = NUM_HOSTS
        for event in run.events_of(node):
            workers = event["workers"] if event["kind"] == "started" else workers
            if event["kind"] == "step":
                made[event["step"]] = max(made.get(event["step"], (0.0, 0)), (event["time"], workers))
    return sum(workers for _, workers in made.values())


def run_one(trainings: Trainings, prefix: str, seed: int, reference: RunDirectory) -> list[dict[str, Any]]:
    """A training with as many kills as it takes until its end."""
    chance, waits_for_all = random.Random(seed), seed % 2 == 0
    training = Training(trainings, prefix, f"faults.min_hosts={NUM_HOSTS if waits_for_all else 1}")
    rows = []
    try:
        while not training.is_over():
            row = kill_once(training, Kill.by_chance(chance), waits_for_all)
            if row:
                rows.append({"seed": seed, "mode": "exact" if waits_for_all else "fewer", **row})
                print(json.dumps(row), flush=True)
        wrong = faults_of(training, reference if waits_for_all else None)
    finally:
        for agent in training.agents:
            agent.kill()
            agent.wait()
    return [{**row, "run": str(training.runs[0].path), "wrong": wrong} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    rows_file = given.out / "kills.jsonl"
    rows = [json.loads(line) for line in rows_file.read_text().splitlines()] if rows_file.exists() else []
    first_seed = max((row["seed"] for row in rows), default=given.seed - 1) + 1
    pairs = list(itertools.islice(read_tsv_pairs(KNOWN_SETS["demo-en-de"].embedded_path), NUM_PAIRS))
    trainings = Trainings(given.out / f"from-{first_seed}", pairs)
    reference = trainings.new(*SETTINGS, f"train.workers={NUM_HOSTS}")
    launch = trainings.launch(reference, NUM_HOSTS)
    launch.join()
    assert launch.exitcode == 0
    prefix = f"kf{os.getpid()}"
    try:
        network.add_switch(f"{prefix}-switch")
        for node in range(NUM_HOSTS):
            network.add_namespace(f"{prefix}-h{node}", f"{prefix}-switch", node + 1)
        for seed in itertools.count(first_seed):
            if len(rows) >= given.kills:
                break
            new = run_one(trainings, prefix, seed, reference)
            rows += new
            with rows_file.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in new)
            print(f"{len(rows)} kills; wrong: {[row['wrong'] for row in new if row['wrong']][:1]}", flush=True)
    finally:
        network.remove_namespaces(prefix)


if __name__ == "__main__":
    main()
