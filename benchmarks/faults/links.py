"""Links of a training on three hosts go for seconds again and again, or get slow: it must end as if nothing had been.

    sudo .venv/bin/python benchmarks/faults/links.py OUT [--runs 9] [--seed 1] [--cases flapping halved long]

Hosts are network namespaces at one switch, each link as fast as RATE_MEGABITS. By turns:

    flapping    a host's link goes for 0.3 to 3 s, then all are there for 0.3 to 3 s, and so on to the end
    halved      all links at half the rate from a random step on
    long        cuts of 1 to 12 s with 5 to 20 s between: silent hosts are given up after 8 s

All wait for all three hosts (faults.min_hosts = 3): every loss and the last weights must be the undisturbed run's, bit
for bit. A row for each run is appended to OUT/links.jsonl.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

# Benchmarks are run as programs, which do not see the tests otherwise.
sys.path.append(str(Path(__file__).parents[2]))

from tests.faults.network import Agents, Network, made
from tests.processes import NUM_PAIRS, Trainings, losses, same_bits, tensors

from konvoi.data.text import read_tsv_pairs
from konvoi.fetch.sets import KNOWN_SETS
from konvoi.run_directory import RunDirectory

NUM_HOSTS, NUM_STEPS = 3, 300
SETTINGS = (
    f"train.duration={NUM_STEPS} steps",
    "train.mode=train",
    "checkpoint.every=20 steps",
    f"faults.min_hosts={NUM_HOSTS}",
    "faults.max_restarts=1000",
)
# The ring of three hosts sends 215 kB of gradients a step: an eighth of a second.
RATE_MEGABITS = 16.0
CASES = ("flapping", "halved", "long")
# How long a link is cut, and how long all are there before the next cut.
SECONDS = {"flapping": ((0.3, 3.0), (0.3, 3.0)), "long": ((1.0, 12.0), (5.0, 20.0))}
# Only against a hang.
PATIENCE_SECONDS = 900.0


def run_one(trainings: Trainings, hosts: Network, case: str, seed: int, undisturbed: RunDirectory) -> dict[str, Any]:
    chance = random.Random(seed)
    hosts.limit(RATE_MEGABITS)
    with Agents(trainings, hosts, *SETTINGS) as agents:
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        _wait_for_step(agents, chance.randrange(3, 30), give_up_at)
        if case == "halved":
            hosts.limit(RATE_MEGABITS / 2)
            cuts: list[float] = []
        else:
            cuts = _flap(agents, chance, case, give_up_at)
        codes = agents.exit_codes(PATIENCE_SECONDS)
        return {
            "case": case,
            "seed": seed,
            "at": time.strftime("%Y-%m-%d %H:%M"),
            "cuts": len(cuts),
            "cut_seconds": round(sum(cuts), 1),
            **_what_it_cost(agents),
            "wrong": _wrong(agents, codes, undisturbed),
        }


def _flap(agents: Agents, chance: random.Random, case: str, give_up_at: float) -> list[float]:
    """Until the training is over; how long each cut was."""
    cuts = []
    cut_seconds, up_seconds = SECONDS[case]
    while not agents.are_over() and time.monotonic() < give_up_at:
        node = chance.randrange(NUM_HOSTS)
        cuts.append(chance.uniform(*cut_seconds))
        agents.hosts.cut(node)
        time.sleep(cuts[-1])
        agents.hosts.mend(node)
        time.sleep(chance.uniform(*up_seconds))
    return cuts


def _wait_for_step(agents: Agents, step: int, give_up_at: float) -> None:
    while not any(event["step"] >= step for event in agents.events(0, "step")):
        if agents.are_over() or time.monotonic() > give_up_at:
            raise SystemExit(f"{agents.runs[0].path}: no step {step}")
        time.sleep(0.1)


def _what_it_cost(agents: Agents) -> dict[str, Any]:
    made_at = [event["time"] for event in agents.events(0, "step")]
    restarts = agents.events(0, "restart")
    return {
        "faults": len(agents.events(0, "fault")),
        "restarts": len(restarts),
        "steps_repeated": len(made_at) - NUM_STEPS,
        "longest_stall_seconds": round(max(later - one for one, later in itertools.pairwise(made_at)), 1),
        "seconds": round(made_at[-1] - made_at[0], 1),
    }


def _wrong(agents: Agents, codes: list[int | None], undisturbed: RunDirectory) -> list[str]:
    found = [f"h{node} ended with {code}" for node, code in enumerate(codes) if code != 0]
    if losses(agents.runs[0]) != losses(undisturbed):
        found.append("losses differ from the undisturbed run's")
    if not found and not all(same_bits(tensors(run), tensors(undisturbed)) for run in agents.runs):
        found.append("weights differ from the undisturbed run's")
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    given = parser.parse_args()
    pairs = list(itertools.islice(read_tsv_pairs(KNOWN_SETS["demo-en-de"].embedded_path), NUM_PAIRS))
    trainings = Trainings(given.out / time.strftime("%Y%m%d-%H%M%S"), pairs)
    with made(NUM_HOSTS) as hosts:
        hosts.limit(RATE_MEGABITS)
        with Agents(trainings, hosts, *SETTINGS) as undisturbed:
            assert undisturbed.exit_codes(PATIENCE_SECONDS) == [0] * NUM_HOSTS
        rows = [{"case": "undisturbed", **_what_it_cost(undisturbed)}]
        for seed in range(given.seed, given.seed + given.runs):
            case = given.cases[(seed - given.seed) % len(given.cases)]
            rows.append(run_one(trainings, hosts, case, seed, undisturbed.runs[0]))
            with (given.out / "links.jsonl").open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
            print(*map(json.dumps, rows), sep="\n", flush=True)
            rows = []


if __name__ == "__main__":
    main()
