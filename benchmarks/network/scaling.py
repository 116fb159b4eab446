"""Four hosts against one, at 1 Gbit and at 100 Mbit: how much of four times the speed is left.

    sudo .venv/bin/python benchmarks/network/scaling.py [--only diloco] [--repeat 2]

The compute of a step is emulated (worker.py): 0.33 s, as one V100 takes for a step of transformer-base. Efficiency is
0.33 / (seconds per step of four hosts): 100 % is linear. Every run appends a row to scaling.jsonl; what is there is
not measured again. `--table` prints the table of docs/network.md without running anything; the planner is asked anew
about each row, as in measured.py, with the processor's costs of machine.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from measured import predicted_seconds
from runs import append, measured, rows
from worker import Case

RESULTS = Path(__file__).with_name("scaling.jsonl")
STEP_SECONDS = 0.33
SYNCS: dict[tuple[int, str], list[dict[str, Any]]] = {
    (1000, "adam"): [
        {"name": "ddp"},
        {"name": "fp16"},
        {"name": "diloco", "local_steps": 4, "wire": "int8"},
        {"name": "diloco", "local_steps": 4, "wire": "int4", "overlap_steps": 2},
        {"name": "diloco", "local_steps": 6, "wire": "int8"},
        {"name": "diloco", "local_steps": 8, "wire": "int8"},
        {"name": "diloco", "local_steps": 12, "wire": "int8"},
    ],
    # Its momentum travels as well, up to 8 local steps.
    (1000, "muon"): [
        {"name": "diloco", "local_steps": 6, "wire": "int8"},
        {"name": "diloco", "local_steps": 5, "wire": "int4"},
        {"name": "diloco", "local_steps": 6, "wire": "int4"},
        {"name": "diloco", "local_steps": 7, "wire": "int4"},
        {"name": "diloco", "local_steps": 8, "wire": "int4"},
    ],
    (100, "adam"): [
        {"name": "ddp"},
        {"name": "fp16"},
        {"name": "diloco", "local_steps": 8, "wire": "int2"},
        {"name": "diloco", "local_steps": 12, "wire": "int2"},
        {"name": "diloco", "local_steps": 16, "wire": "int4"},
        {"name": "diloco", "local_steps": 24, "wire": "int8"},
        {"name": "diloco", "local_steps": 32, "wire": "int8"},
    ],
}


def cases() -> list[Case]:
    return [
        Case(
            num_hosts=4,
            rate_megabits=rate_megabits,
            model="base",
            sync=sync,
            forward_seconds=STEP_SECONDS / 3,
            backward_seconds=STEP_SECONDS * 2 / 3,
            # Rounds of a slow way are steps, those of diloco are many.
            rounds=max(3, 48 // sync["local_steps"]) if "local_steps" in sync else 3,
            optimiser=optimiser,
        )
        for (rate_megabits, optimiser), syncs in SYNCS.items()
        for sync in syncs
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose sync's settings hold this")
    parser.add_argument("--rate", type=int, help="Mbit/s, one of the two")
    parser.add_argument("--optimiser", choices=("adam", "muon"))
    parser.add_argument("--repeat", type=int, default=1, help="runs of each case")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if not arguments.table:
        measure_all(arguments)
    print_table()


def measure_all(arguments: argparse.Namespace) -> None:
    for case in cases():
        if arguments.only not in json.dumps(case.sync) or arguments.rate not in (None, case.rate_megabits):
            continue
        if arguments.optimiser not in (None, case.optimiser):
            continue
        for _ in range(len(of_case(case)), arguments.repeat):
            row = measured(case)
            append(RESULTS, {**row, "efficiency": round(STEP_SECONDS / row["step_seconds"], 4)})


def of_case(case: Case) -> list[dict[str, Any]]:
    key = case.sync, case.rate_megabits, case.optimiser
    return [row for row in rows(RESULTS) if (row["sync"], row["rate_megabits"], row.get("optimiser", "adam")) == key]


def print_table() -> None:
    columns = (
        "link",
        "optimiser",
        "sync",
        "s per step",
        "predicted s",
        "error",
        "of linear",
        "MB out per step",
        "processor s",
        "busy with others",
    )
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    errors = []
    for case in cases():
        if found := of_case(case):
            seconds, mega, own, others = (
                median(row[name] for row in found)
                for name in ("step_seconds", "bytes_out", "processor_seconds", "busy_with_others")
            )
            settings = ", ".join(f"{key} {value}" for key, value in case.sync.items() if key != "name")
            name = f"{case.sync['name']} ({settings})" if settings else case.sync["name"]
            predicted = predicted_seconds(case)
            errors.append(predicted / seconds - 1)
            asked = f"{seconds:.3f} | {predicted:.3f} | {errors[-1]:+.1%}"
            figures = f"{STEP_SECONDS / seconds:.1%} | {mega / 1e6:.1f} | {own:.3f} | {others:.0%}"
            print(f"| {case.rate_megabits:,} Mbit | {case.optimiser} | {name} | {asked} | {figures} |")
    sizes = [abs(error) for error in errors]
    print(f"\n{len(sizes)} rows: the planner's median error {median(sizes):.1%}, at the most {max(sizes):.1%}")


if __name__ == "__main__":
    main()
