"""Does `konvoi diagnose` name the cause? Trains every case on its own hosts and asks.

    python benchmarks/diagnosis/run.py [--seed 1] [--only 3,7] [--keep DIR]     needs root
    python benchmarks/diagnosis/run.py --table [--seed 1]

Every case appends a row to results.jsonl; what is there already is not trained again unless it is void, so a run that
was stopped goes on where it was. The machine should have nothing else to do. What is injected, and how the truth is
known: cases.py. Another seed draws strengths that nobody has seen.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cases import CAUSES, Case, cases
from early import cut
from faults import Healthy, Setting, setting_of
from hosts import check_root
from training import Measured, train

RESULTS = Path(__file__).with_name("results.jsonl")
# More than that makes a straggler, or slows everything, by itself.
MOST_OTHERS_CORES = 0.3
# A verdict should be right by then, however long the run goes on.
EARLY_STEPS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="numbers of cases, with commas; the healthy ones that they need are added")
    parser.add_argument("--keep", type=Path, help="where the run directories stay; else they are removed")
    parser.add_argument("--table", action="store_true", help="train nothing, print what is known")
    arguments = parser.parse_args()
    if not arguments.table:
        check_root()
        # Leaves as Ctrl-C does, so that hosts, links and disks are taken down.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        only = {int(word) for word in arguments.only.split(",")} if arguments.only else None
        run_all(arguments.seed, only, arguments.keep)
    print_table(rows(arguments.seed))


def run_all(seed: int, only: set[int] | None, keep: Path | None) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = (keep or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        # A data home of its own: the sets are small, and nobody's own are touched.
        os.environ["KONVOI_HOME"] = str(folder / "home")
        for case in chosen(seed, only):
            if case.number not in {row["number"] for row in rows(seed) if not row["void"]}:
                row = run_one(case, seed, folder)
                if keep is None:
                    shutil.rmtree(folder / run_name(case, seed))
                with RESULTS.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(f"{case}: {outcome(row)}", flush=True)


def chosen(seed: int, only: set[int] | None) -> list[Case]:
    every = cases(seed)
    if only is None:
        return every
    worlds = {case.world for case in every if case.number in only}
    return [case for case in every if case.number in only or (case.cause == "healthy" and case.world in worlds)]


def run_one(case: Case, seed: int, folder: Path) -> dict[str, Any]:
    setting = setting_of(case, healthy_of(case, seed))
    path = folder / run_name(case, seed)
    if path.exists():
        # Of a case that was stopped before its end.
        shutil.rmtree(path)
    measured = train(case, setting, path)
    return row_of(case, seed, setting, measured, diagnose(path), diagnose_early(path))


def run_name(case: Case, seed: int) -> str:
    return f"seed{seed}-case{case.number:02d}"


def healthy_of(case: Case, seed: int) -> Healthy | None:
    """The measure of its world; none for a case that is itself one."""
    if case.cause == "healthy":
        return None
    names = [field.name for field in dataclasses.fields(Healthy)]
    world = next(
        row for row in rows(seed) if row["cause"] == "healthy" and (row["model"], row["workers"]) == case.world
    )
    return Healthy(**{name: world["measured"][name] for name in names})


def diagnose(path: Path) -> dict[str, Any]:
    """As a program would ask."""
    command = [sys.executable, "-m", "konvoi", "diagnose", str(path), "--json"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        return {"verdict": "failed", "error": result.stderr.strip()}
    said: dict[str, Any] = json.loads(result.stdout)
    return said


def diagnose_early(path: Path) -> dict[str, Any]:
    """After the first steps only."""
    with tempfile.TemporaryDirectory() as folder:
        return diagnose(cut(path, Path(folder) / "run", EARLY_STEPS))


def is_right(case: Case, said: dict[str, Any]) -> bool:
    return said["verdict"] == case.verdict and (case.culprit is None or said.get("rank") == case.culprit)


def row_of(
    case: Case, seed: int, setting: Setting, measured: Measured, said: dict[str, Any], early: dict[str, Any]
) -> dict[str, Any]:
    cause = CAUSES[case.cause]
    cause_seconds = seconds_of_cause(case, setting, measured, healthy_of(case, seed))
    return {
        "seed": seed,
        "number": case.number,
        "cause": case.cause,
        "model": case.model,
        "workers": case.num_workers,
        "strength": case.strength,
        "injected": str(setting),
        "truth": {"verdict": cause.verdict, "kind": cause.kind, "rank": case.culprit, "why": cause.why},
        "said": {key: said.get(key) for key in ("verdict", "confidence", "kind", "rank", "host", "why")},
        "right": is_right(case, said),
        "right_early": is_right(case, early),
        **({} if is_right(case, said) else {"everything_said": said}),
        "void": why_void(case, cause_seconds, measured),
        "cause_seconds": cause_seconds,
        "measured": dataclasses.asdict(measured),
        "at": time.strftime("%Y-%m-%d %H:%M"),
    }


def seconds_of_cause(case: Case, setting: Setting, measured: Measured, healthy: Healthy | None) -> float:
    """What the cause really took of the run; see cases.py."""
    steps_seconds = setting.num_steps * measured.step_seconds
    if case.verdict == "compute":
        return steps_seconds - (setting.cause_seconds or 0)
    if case.verdict == "evaluation":
        return measured.evaluation_seconds
    if case.verdict == "start-up":
        return measured.start_seconds
    if setting.cause_seconds is not None:
        return setting.cause_seconds
    assert healthy is not None
    expected = healthy.start_seconds + setting.num_steps * healthy.step_seconds + healthy.evaluation_seconds
    return measured.wall_seconds - expected


def why_void(case: Case, cause_seconds: float, measured: Measured) -> str:
    """Nothing where the cause took more than the start, and more than all that is neither, in a quiet machine."""
    if measured.others_cores > MOST_OTHERS_CORES:
        return f"other programs kept {measured.others_cores:.1f} cores busy"
    start_seconds = 0.0 if case.verdict == "start-up" else measured.start_seconds
    rest_seconds = measured.wall_seconds - start_seconds - cause_seconds
    return "" if cause_seconds > max(start_seconds, rest_seconds) else "the cause was not the largest part"


def rows(seed: int) -> list[dict[str, Any]]:
    if not RESULTS.exists():
        return []
    every = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    # The last one of a case counts: only void ones are repeated.
    return list({row["number"]: row for row in every if row["seed"] == seed}.values())


def outcome(row: dict[str, Any]) -> str:
    said = ", ".join(f"{key} {value}" for key, value in row["said"].items() if value is not None)
    judgement = f"void, {row['void']}" if row["void"] else "right" if row["right"] else "WRONG"
    share = row["cause_seconds"] / row["measured"]["wall_seconds"]
    return f"{judgement}: {said} ({row['injected']}; the cause took {share:.0%})"


def print_table(found: Sequence[dict[str, Any]]) -> None:
    header = ("cause", "cases", "void", "right", f"right after {EARLY_STEPS} steps", "kind or why right")
    print(f"| {' | '.join(header)} |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in CAUSES:
        print(table_line(name, [row for row in found if row["cause"] == name]))
    print(table_line("all", found))
    if found:
        others = statistics.median(row["measured"]["others_cores"] for row in found)
        print(f"\nOther programs kept {others:.1f} cores busy meanwhile (median).")
    for row in found:
        if not row["void"] and not row["right"]:
            print(
                f"\nmissed {row['number']} ({row['cause']}, {row['model']}, {row['workers']} workers): {outcome(row)}"
            )


def table_line(name: str, group: Sequence[dict[str, Any]]) -> str:
    valid = [row for row in group if not row["void"]]
    num_right, num_early = (sum(row[key] for row in valid) for key in ("right", "right_early"))
    detailed = [row for row in valid if row["truth"]["kind"] or row["truth"]["why"]]
    num_detailed_right = sum(is_right_in_detail(row) for row in detailed)
    detail = f"{num_detailed_right} of {len(detailed)}" if detailed else ""
    return f"| {name} | {len(valid)} | {len(group) - len(valid)} | {num_right} | {num_early} | {detail} |"


def is_right_in_detail(row: dict[str, Any]) -> bool:
    return all(row["said"][key] == row["truth"][key] for key in ("kind", "why") if row["truth"][key])


if __name__ == "__main__":
    main()
