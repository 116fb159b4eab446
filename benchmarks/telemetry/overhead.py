"""What telemetry costs: the same training with [telemetry] measure on and off, in turn, in one run.

    python benchmarks/telemetry/overhead.py [--rounds 6] [--steps 150]

Each round trains on, off, off, on (so that a machine that slows down hurts both alike), for every kind of run below.
A row per training goes to results.jsonl; what is there is not measured again. The table gives the median over the
rounds of on / off, by the median step and by the processor seconds of the whole training, and their range.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results.jsonl")
WARM_UP_STEPS = 20
# Short steps are the hard case: the cost of a step's telemetry does not grow with the step.
KINDS = {
    "translation, 1 worker": ("demo", 1),
    "translation, 2 workers": ("demo", 2),
    "images, 2 workers": ("demo-images", 2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if not arguments.table:
        measure_all(arguments.rounds, arguments.steps)
    print_table()


def measure_all(num_rounds: int, num_steps: int) -> None:
    done = {(row["kind"], row["round"], row["place"]) for row in rows()}
    for number in range(num_rounds):
        for kind, (recipe, num_workers) in KINDS.items():
            for place, is_on in enumerate((True, False, False, True)):
                if (kind, number, place) not in done:
                    row = {"kind": kind, "round": number, "place": place, "is_on": is_on}
                    append({**row, **measure(recipe, num_workers, num_steps, is_on)})


def measure(recipe: str, num_workers: int, num_steps: int, is_on: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        settings = (
            f"train.duration={num_steps} steps",
            f"evaluate.every={10 * num_steps} steps",
            "train.mode=train",
            f"telemetry.measure={str(is_on).lower()}",
        )
        words = [word for setting in settings for word in ("--set", setting)]
        command = [sys.executable, "-m", "konvoi", "train", recipe, "--workers", str(num_workers), "--run", str(run)]
        before = processor_seconds()
        subprocess.run([*command, "--quiet", *words], check=True, stdout=subprocess.DEVNULL)
        used_seconds = processor_seconds() - before
        events = map(json.loads, (run / "events" / "rank0.jsonl").read_text().splitlines())
        seconds = [event["step_seconds"] for event in events if event["kind"] == "step"][WARM_UP_STEPS:]
    return {
        "median_step_seconds": statistics.median(seconds),
        "processor_seconds": round(used_seconds, 3),
        "num_steps": num_steps,
        "measured_at": time.strftime("%Y-%m-%d %H:%M"),
    }


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def append(row: dict[str, Any]) -> None:
    with RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(row, file=sys.stderr)


def print_table() -> None:
    print("| run | step, off | step, on / off | range | processor time, on / off | range | rounds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for kind in KINDS:
        by_round: dict[int, list[dict[str, Any]]] = {}
        for row in rows():
            if row["kind"] == kind:
                by_round.setdefault(row["round"], []).append(row)
        rounds = [group for group in by_round.values() if len(group) == 4]
        if rounds:
            off = statistics.median(r["median_step_seconds"] for group in rounds for r in group if not r["is_on"])
            cells = [cell for key in ("median_step_seconds", "processor_seconds") for cell in ratios(rounds, key)]
            print(f"| {kind} | {1000 * off:.1f} ms | {' | '.join(cells)} | {len(rounds)} |")


def ratios(rounds: list[list[dict[str, Any]]], key: str) -> tuple[str, str]:
    values = [
        sum(row[key] for row in group if row["is_on"]) / sum(row[key] for row in group if not row["is_on"])
        for group in rounds
    ]
    return f"{statistics.median(values):.4f}", f"{min(values):.3f} to {max(values):.3f}"


if __name__ == "__main__":
    main()
