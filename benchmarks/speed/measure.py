"""Target tokens per second, peak memory and start-up of konvoi and of a peer, interleaved in one run.

    python benchmarks/speed/measure.py --peers DIR --home DIR [--sizes tiny,base] [--rounds 3]

DIR holds a `run.sh PEER SIZE PROCESSES SECONDS` that trains a peer on the same Multi30k text and prints a JSON line.
Every measurement appends a row to results.jsonl; what is there already is not measured again, so a run that was
stopped goes on where it was. `--table` prints the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results.jsonl")
RECIPE = Path(__file__).with_name("speed.toml")
# Padded target tokens that hold about 4,096 real ones.
TOKENS_PER_STEP = 4200
SECONDS = {"tiny": 30, "base": 55}
WARM_UP_SECONDS = {"tiny": 6, "base": 10}
# Where the processor has bf16, that is eole's best setting: EOLE_DTYPE=bf16.
CONTENDERS = {
    "konvoi, 1 process of 2 threads": ("konvoi", 1, {}),
    "konvoi, 2 workers": ("konvoi", 2, {}),
    "eole, fp32": ("eole", 1, {"EOLE_DTYPE": "fp32"}),
    "OpenNMT-py": ("onmt", 1, {}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder of run.sh")
    parser.add_argument("--home", type=Path, help="$KONVOI_HOME that holds multi30k-en-de")
    parser.add_argument("--sizes", default="tiny,base")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="contenders whose name holds this")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if not arguments.table:
        measure_all(arguments)
    print_table()


def measure_all(arguments: argparse.Namespace) -> None:
    done = {(row["contender"], row["size"], row["round"]) for row in rows()}
    for number in range(arguments.rounds):
        for size in arguments.sizes.split(","):
            for contender, (program, processes, settings) in CONTENDERS.items():
                if (contender, size, number) in done or (arguments.only and arguments.only not in contender):
                    continue
                if program == "konvoi":
                    result = measure_konvoi(size, processes, arguments.home)
                else:
                    result = measure_peer(arguments.peers, program, size, processes, settings)
                row = {
                    "contender": contender,
                    "size": size,
                    "round": number,
                    "at": time.strftime("%Y-%m-%d %H:%M"),
                    **result,
                }
                with RESULTS.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(row, flush=True)


def measure_peer(folder: Path, peer: str, size: str, processes: int, settings: dict[str, str]) -> dict[str, Any]:
    environment = {**os.environ, **settings, "QUIET": "0", "WARM": str(WARM_UP_SECONDS[size])}
    command = ["bash", str(folder / "run.sh"), peer, size[0].upper(), str(processes), str(SECONDS[size])]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
    line = json.loads(output.strip().splitlines()[-1])
    return {
        "target_tokens_per_second": line.get("tgt_tok_s"),
        "target_tokens_per_step": line.get("tok_per_step"),
        "peak_gib": line["peak_rss_gib"],
        "start_seconds": line["startup_s"],
    }


def measure_konvoi(size: str, workers: int, home: Path) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp())
    run = folder / "run"
    command = [sys.executable, "-m", "konvoi", "train", str(RECIPE), "--workers", str(workers), "--run", str(run)]
    for setting in (
        f"model.size={size}",
        f"batching.max_tokens={TOKENS_PER_STEP // workers}",
        f"train.duration={SECONDS[size] + WARM_UP_SECONDS[size]} seconds",
    ):
        command += ["--set", setting]
    started_at = time.time()
    environment = {**os.environ, "KONVOI_HOME": str(home)} if home else dict(os.environ)
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    peak_bytes = 0
    while process.poll() is None:
        peak_bytes = max(peak_bytes, tree_bytes(process.pid))
        time.sleep(0.5)
    assert process.stderr is not None
    if process.returncode:
        sys.exit(process.stderr.read())
    steps = [json.loads(line) for line in (run / "events" / "rank0.jsonl").read_text().splitlines()]
    steps = [event for event in steps if event["kind"] == "step"]
    shutil.rmtree(folder)
    warm = [event for event in steps if event["time"] >= steps[0]["time"] + WARM_UP_SECONDS[size]]
    seconds = sum(event["step_seconds"] for event in warm)
    tokens = sum(event["target_tokens"] for event in warm)
    return {
        "target_tokens_per_second": round(tokens / seconds, 1),
        "target_tokens_per_step": round(tokens / len(warm)),
        "peak_gib": round(peak_bytes / 2**30, 2),
        "start_seconds": round(steps[0]["time"] - started_at, 1),
    }


def tree_bytes(pid: int) -> int:
    """Resident memory of a process and of all below it."""
    total, waiting = 0, [pid]
    while waiting:
        current = waiting.pop()
        try:
            total += int(Path(f"/proc/{current}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            for task in Path(f"/proc/{current}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except (OSError, ValueError):
            continue
    return total


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def print_table() -> None:
    grouped: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows():
        if row["target_tokens_per_second"]:
            grouped[row["size"], row["contender"]].append(row)
    print("| size | contender | target tokens/s (median, all) | peak GiB | s to the first step | runs |")
    print("| --- | --- | --- | --- | --- | --- |")
    for (size, contender), group in sorted(grouped.items(), reverse=True):
        speeds = [row["target_tokens_per_second"] for row in group]
        middle, memory, start = (
            statistics.median(row[key] for row in group)
            for key in ("target_tokens_per_second", "peak_gib", "start_seconds")
        )
        every = ", ".join(f"{speed:,.0f}" for speed in speeds)
        print(f"| {size} | {contender} | **{middle:,.0f}** ({every}) | {memory:.1f} | {start:.1f} | {len(group)} |")


if __name__ == "__main__":
    main()
