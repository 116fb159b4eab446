"""Measured steps beside predicted ones, in set-ups drawn at random.

    sudo .venv/bin/python benchmarks/network/measured.py --seed 2 --runs 40
    sudo .venv/bin/python benchmarks/network/measured.py --seed 1 --runs 20 --calibrate

Draws hosts, link, model, way to synchronise and emulated compute (worker.py) from the seed, measures, asks the planner,
and appends a row to measured.jsonl; what is there is not measured again. `--table` prints the table of docs/network.md.
`--calibrate` draws others, into calibration.jsonl: what the planner assumes may be fitted to those, never to the
rows that its error is quoted for. `--table --calibrate` asks the planner anew.

Seed 1 was drawn before there were int4, int2 and Muon's momentum, and stays in measured.jsonl as it was measured.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any

from runs import append, measured, rows
from worker import MODELS, Case, shapes_of

from konvoi import registry
from konvoi.commands import exchange
from konvoi.cores import usable_cores
from konvoi.plan import Link, Profile, Setup, predict

FOLDER = Path(__file__).parent
MACHINE = FOLDER / "machine.json"
# It measures for itself and then becomes one of the others.
NOT_DRAWN = ("auto",)
HOSTS = (2, 3, 4)
MEGABITS = (20.0, 2000.0)
COMPUTE_SECONDS = (0.1, 0.6)
# A run: so long are the rounds that count, unless a few of them take longer; and no more than a minute in all.
COUNTED_SECONDS, MOST_SECONDS = 15.0, 45.0
LEAST_STEPS, LEAST_ROUNDS = 3, 2
# What else the machine does may take so much of it; beyond, a run may be repeated, and the least disturbed one counts.
MOST_DISTURBED = 0.25


def draw(seed: str, number: int) -> Case:
    """The first that can be measured within a minute; every way to synchronise in turn."""
    random = Random(f"{seed}/{number}")
    names = [name for name in registry.names("sync") if name not in NOT_DRAWN]
    while True:
        case = _with_rounds(_drawn(random, names[number % len(names)]))
        if _rough_seconds(case) * case.traffic.every_steps * (case.rounds + 1) <= MOST_SECONDS:
            return case


def _drawn(random: Random, name: str) -> Case:
    low, high = map(math.log, MEGABITS)
    seconds = random.uniform(*COMPUTE_SECONDS)
    forward, optimiser = random.uniform(0.25, 0.4), random.uniform(0.0, 0.1)
    return Case(
        num_hosts=random.choice(HOSTS),
        rate_megabits=round(math.exp(random.uniform(low, high)), 1),
        model=random.choice(list(MODELS)),
        sync=settings(random, name),
        forward_seconds=round(seconds * forward, 4),
        backward_seconds=round(seconds * (1 - forward - optimiser), 4),
        optimiser_seconds=round(seconds * optimiser, 4),
        workers_per_host=2 if name == "hierarchical" else 1,
        idle_steps=4,
        # Whose momentum may travel.
        optimiser=random.choice(["adam", "muon"]),
    )


def settings(random: Random, name: str) -> dict[str, Any]:
    """Of the recipe's [sync] table."""
    if name == "diloco":
        local_steps = random.choice([2, 4, 8, 12, 16, 24, 32])
        fragments = random.choice([count for count in (1, 2, 4) if count <= local_steps])
        wire = random.choice(["fp32", "fp16", "int8", "int4", "int2"])
        return {"name": name, "local_steps": local_steps, "fragments": fragments, "wire": wire}
    if name == "powersgd":
        return {"name": name, "rank": random.choice([1, 2, 4, 8]), "start_step": 2}
    if name == "hierarchical":
        return {"name": name, "between": settings(random, random.choice(["ddp", "fp16", "bf16", "diloco"]))}
    return {"name": name, "bucket_megabytes": random.choice([5, 25, 50])}


def _with_rounds(case: Case) -> Case:
    every_steps = case.traffic.every_steps
    least = LEAST_STEPS if every_steps == 1 else LEAST_ROUNDS
    rounds = max(least, round(COUNTED_SECONDS / (_rough_seconds(case) * every_steps)))
    return Case(**{**case.key(), "rounds": rounds})


def _rough_seconds(case: Case) -> float:
    """Of a step, from compute and bytes alone: which cases are drawn must not depend on the planner."""
    sent = case.traffic.bytes_per_step(case.num_workers, case.num_hosts) * 8 / (case.rate_megabits * 1e6)
    hidden = case.traffic.hidden_by == "steps"
    return max(case.compute_seconds, sent) if hidden else case.compute_seconds + sent


def predicted_seconds(case: Case) -> float:
    costs = machine()
    # The cores of this machine are those of all hosts.
    crowding = max(1.0, case.num_workers / costs["cores"])
    profile = Profile(
        exchange_seconds_per_byte=crowding * costs["seconds_per_byte"],
        exchange_latency_seconds=costs["latency_seconds"],
        seconds_per_pass=crowding * costs["seconds_per_pass"],
        forward_seconds=case.forward_seconds,
        backward_seconds=case.backward_seconds,
        optimiser_seconds=case.optimiser_seconds,
        shapes=tuple(tuple(shape) for shape in shapes_of(case.model)),
    )
    traffic = case.traffic
    if traffic.hidden_by == "backward":
        # Gradients are laid into buckets and divided within the time that the backward pass sleeps.
        traffic = replace(traffic, training_passes=0)
    link = Link.of_bits(case.rate_megabits * 1e6)
    return predict(profile, Setup.alike(case.num_hosts, link, case.workers_per_host), traffic).step_seconds


def machine() -> dict[str, Any]:
    """What exchanging costs this machine's processor, as `konvoi profile` measures it; once, and kept."""
    if not MACHINE.exists():
        costs = {**asdict(exchange.measure()), "cores": usable_cores(), "at": time.strftime("%Y-%m-%d %H:%M")}
        MACHINE.write_text(json.dumps(costs) + "\n")
    found: dict[str, Any] = json.loads(MACHINE.read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--repeat", type=int, default=1, help="runs of a draw at most, where they are disturbed")
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    path = FOLDER / ("calibration.jsonl" if arguments.calibrate else "measured.jsonl")
    seed = f"{'calibration' if arguments.calibrate else 'quoted'} {arguments.seed}"
    if not arguments.table:
        for number in range(arguments.runs):
            measure(path, seed, number, arguments.repeat)
    print_table(least_disturbed(path, seed), ask_again=arguments.calibrate)


def measure(path: Path, seed: str, number: int, most_runs: int) -> None:
    while True:
        found = [row for row in rows(path) if (row["seed"], row["number"]) == (seed, number)]
        if len(found) >= most_runs or any(row["busy_with_others"] <= MOST_DISTURBED for row in found):
            return
        case = draw(seed, number)
        predicted = round(predicted_seconds(case), 5)
        append(path, {"seed": seed, "number": number, **measured(case), "predicted_seconds": predicted})


def least_disturbed(path: Path, seed: str) -> list[dict[str, Any]]:
    best: dict[int, dict[str, Any]] = {}
    for row in rows(path):
        if row["seed"] == seed:
            best[row["number"]] = min(row, best.get(row["number"], row), key=lambda one: float(one["busy_with_others"]))
    return [best[number] for number in sorted(best)]


def print_table(found: list[dict[str, Any]], ask_again: bool) -> None:
    print("| hosts x workers | Mbit/s | model | optimiser | sync | compute s | measured s | predicted s | error |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    errors = []
    for row in found:
        case = Case(**{key: row[key] for key in Case.__dataclass_fields__ if key in row})
        predicted = predicted_seconds(case) if ask_again else row["predicted_seconds"]
        errors.append(predicted / row["step_seconds"] - 1)
        where = f"{case.num_hosts} x {case.workers_per_host} | {case.rate_megabits:,.0f} | {case.model}"
        figures = f"{case.compute_seconds:.3f} | {row['step_seconds']:.3f} | {predicted:.3f} | {errors[-1]:+.1%}"
        print(f"| {where} | {case.optimiser} | {_settings_text(case.sync)} | {figures} |")
    sizes = sorted(abs(error) for error in errors)
    ninety_fifth = quantiles(sizes, n=20, method="inclusive")[-1] if len(sizes) > 1 else sizes[-1]
    print(f"\n{len(sizes)} runs: median error {median(sizes):.1%}, 95th percentile {ninety_fifth:.1%}")


def _settings_text(sync: dict[str, Any]) -> str:
    parts = [f"{key} {_settings_text(v) if isinstance(v, dict) else v}" for key, v in sync.items() if key != "name"]
    return f"{sync['name']} ({', '.join(parts)})" if parts else str(sync["name"])


if __name__ == "__main__":
    main()
