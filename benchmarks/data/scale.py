"""Prepares ever larger parts of a corpus: seconds per stage, and the peak memory of all processes together.

    python benchmarks/data/scale.py FOLDER [--pairs 700000 1500000 3000000 4500000] [--set check_language=true ...]

FOLDER holds train.source and train.target of make_corpus.py. Every size appends a row to results.jsonl beside this
file; a size that has its row of today is not measured again. The memory is the sum over all processes of what each has
for itself and its share of what it shares with others (PSS), sampled five times a second; the sum of the resident
sizes, which counts shared pages several times, stands beside it. Then the prepared set is opened as a rank does it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from konvoi.config.recipe import toml_value

RESULTS = Path(__file__).with_name("results.jsonl")
SAMPLE_SECONDS = 0.2
NUM_BATCHES = 2000


class PeakMemory:
    """Watches a process and all that descend from it."""

    def __init__(self, process_id: int) -> None:
        self.process_id = process_id
        self.peak_pss_mb = self.peak_rss_mb = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            readings = [memory_mb(process) for process in family(self.process_id)]
            self.peak_pss_mb = max(self.peak_pss_mb, sum(pss for pss, _ in readings))
            self.peak_rss_mb = max(self.peak_rss_mb, sum(rss for _, rss in readings))


def family(process_id: int) -> list[int]:
    try:
        tasks = [*Path(f"/proc/{process_id}/task").iterdir()]
        children = [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except OSError:
        return [process_id]
    return [process_id, *(member for child in children for member in family(child))]


def memory_mb(process_id: int) -> tuple[float, float]:
    try:
        lines = Path(f"/proc/{process_id}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0, 0.0
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
    return kilobytes["Pss"] / 1024, kilobytes["Rss"] / 1024


def prepare(folder: Path, home: Path, settings: dict[str, Any]) -> None:
    """Inside the child: prepares, and prints the seconds of each stage."""
    from konvoi.data.prepare import Data
    from konvoi.data.prepare import prepare as prepare_set

    began: dict[str, float] = {}

    def report(stage: str, *_: object) -> None:
        began.setdefault(stage, time.perf_counter())

    files = {"train_source": folder / "train.source", "train_target": folder / "train.target"}
    data = Data.model_validate({"set": "own", **files, "vocabulary_size": 32_768, **settings})
    started_at = time.perf_counter()
    prepared = prepare_set(data, source="en", target="de", home=home, report=report)
    marks = [*began.values(), time.perf_counter()]
    stages = {stage: end - start for stage, start, end in zip(began, marks, marks[1:], strict=False)}
    print(json.dumps({"seconds": marks[-1] - started_at, "stages": stages, "info": prepared.info}))


def open_set(folder: Path) -> None:
    """Inside the child: what a rank does with a prepared set before and while it trains."""
    from konvoi.data.batching import BatchPlan, gather
    from konvoi.data.prepared import PreparedSet

    _, before_mb = memory_mb(os.getpid())
    started_at = time.perf_counter()
    source, target = PreparedSet.open(folder).split("train")
    opened_at = time.perf_counter()
    plan = BatchPlan(source.lengths, target.lengths, max_tokens=4096, seed=1, max_length=256)
    first = plan[0]
    planned_at = time.perf_counter()
    for position in range(NUM_BATCHES):
        gather(source, plan[position], 0), gather(target, plan[position], 0)
    gathered_at = time.perf_counter()
    lines = Path("/proc/self/status").read_text().splitlines()
    peak_mb = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    result = {
        "open_seconds": opened_at - started_at,
        "plan_seconds": planned_at - opened_at,
        "batch_seconds": (gathered_at - planned_at) / NUM_BATCHES,
        "batch_sentences": float(np.mean([len(plan[p]) for p in range(NUM_BATCHES)])) if len(first) else 0.0,
        "rank_mb": memory_mb(os.getpid())[1] - before_mb,
        "rank_peak_mb": peak_mb - before_mb,
    }
    print(json.dumps(result))


def child(*words: str) -> tuple[dict[str, Any], PeakMemory]:
    process = subprocess.Popen([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True)
    with PeakMemory(process.pid) as peak:
        output, _ = process.communicate()
    if process.returncode:
        sys.exit(f"{words}: exit code {process.returncode}")
    return json.loads(output.splitlines()[-1]), peak


def cut(folder: Path, num_pairs: int, to: Path) -> Path:
    to.mkdir(exist_ok=True)
    for name in ("train.source", "train.target"):
        with (folder / name).open("rb") as stream, (to / name).open("wb") as out:
            out.writelines(itertools.islice(stream, num_pairs))
    return to


def measure(folder: Path, num_pairs: int, settings: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        part = cut(folder, num_pairs, Path(temporary) / "text")
        result, peak = child("--prepare", str(part), temporary, json.dumps(settings))
        opened, _ = child("--open", result["info"]["folder"], "-", "{}")
    info = result["info"]
    return {
        "date": date.today().isoformat(),
        "pairs": num_pairs,
        "settings": settings,
        "seconds": round(result["seconds"], 1),
        "stages": {stage: round(seconds, 1) for stage, seconds in result["stages"].items()},
        "peak_pss_mb": round(peak.peak_pss_mb),
        "peak_rss_mb": round(peak.peak_rss_mb),
        "text_mb": round(sum(info["raw_mb"].values())),
        "kept": info["pairs"]["train"],
        "tokens": sum(info["tokens"]["train"].values()),
        **{key: round(value, 4) for key, value in opened.items()},
    }


def is_measured(num_pairs: int, settings: dict[str, Any]) -> bool:
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    wanted = (date.today().isoformat(), num_pairs, settings)
    return any((row["date"], row["pairs"], row["settings"]) == wanted for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, nargs="*", default=[700_000, 1_500_000, 3_000_000, 4_500_000])
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    settings = {key: toml_value(value) for key, _, value in (one.partition("=") for one in arguments.settings)}
    for num_pairs in arguments.pairs:
        if not is_measured(num_pairs, settings):
            row = json.dumps(measure(arguments.folder, num_pairs, settings))
            with RESULTS.open("a") as stream:
                stream.write(row + "\n")
            print(row, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--prepare"]:
        prepare(Path(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]))
    elif sys.argv[1:2] == ["--open"]:
        open_set(Path(sys.argv[2]))
    else:
        main()
