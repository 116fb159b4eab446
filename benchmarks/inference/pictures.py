"""Pictures per second of a run (PyTorch) and of its bundle (ONNX Runtime, float32 and int8), interleaved in one run.

    python benchmarks/inference/pictures.py RUN BUNDLE FOLDER [--rounds 5] [--pictures 256]

All answer the same files of FOLDER, from their bytes to the five likeliest classes, with as many threads as there are
cores: many at once, and one alone. Each round appends a row for each to pictures.jsonl; the table has medians of this
run alone, with the share of processor seconds, which suffers less from whatever else the machine does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from konvoi.bundle.classifier import open_classifier
from konvoi.bundle.format import open_bundle
from konvoi.bundle.interfaces import Classifier
from konvoi.cores import usable_cores
from konvoi.export.run_classifier import open_run_classifier
from konvoi.images.pictures import looks_like_a_picture
from konvoi.telemetry.environment import processor

RESULTS = Path(__file__).with_suffix(".jsonl")
NUM_ALONE = 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pictures", type=int, default=256)
    settings = parser.parse_args()
    pictures = read_pictures(settings.folder, settings.pictures)
    contenders = open_all(settings.run, settings.bundle)
    for classifier in contenders.values():
        classifier.classify(pictures)
    rows = [
        {"contender": name, **measure(classifier, pictures)}
        for _ in range(settings.rounds)
        for name, classifier in contenders.items()
    ]
    facts = {"at": time.strftime("%Y-%m-%d %H:%M"), "processor": processor(), "cores": usable_cores()}
    with RESULTS.open("a") as file:
        file.writelines(json.dumps({**facts, "pictures": len(pictures), **row}) + "\n" for row in rows)
    print_table(rows, list(contenders))


def open_all(run: Path, bundle: Path) -> dict[str, Classifier]:
    opened = open_bundle(bundle)
    variants = {name: open_classifier(opened, name) for name in opened.description.variants}
    return {"run": open_run_classifier(run), **variants}


def read_pictures(folder: Path, limit: int) -> list[bytes]:
    paths = sorted(path for path in folder.rglob("*") if looks_like_a_picture(path.name))
    return [path.read_bytes() for path in paths[:: -(-len(paths) // limit)]]


def measure(classifier: Classifier, pictures: Sequence[bytes]) -> dict[str, float]:
    started, started_cpu = time.perf_counter(), time.process_time()
    classifier.classify(pictures)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - started_cpu
    alone = []
    for picture in pictures[:NUM_ALONE]:
        started = time.perf_counter()
        classifier.classify([picture])
        alone.append(time.perf_counter() - started)
    return {
        "pictures_per_second": len(pictures) / seconds,
        "pictures_per_cpu_second": len(pictures) / cpu_seconds,
        "seconds_alone": statistics.median(alone),
    }


def print_table(rows: list[dict[str, Any]], names: list[str]) -> None:
    print(f"{'':10} {'pictures/s':>12} {'/CPU s':>10} {'ms alone':>10}")
    for name in names:
        per_second, per_cpu_second, alone = (
            statistics.median(row[key] for row in rows if row["contender"] == name)
            for key in ("pictures_per_second", "pictures_per_cpu_second", "seconds_alone")
        )
        print(f"{name:10} {per_second:12,.1f} {per_cpu_second:10,.1f} {1000 * alone:10.1f}")


if __name__ == "__main__":
    main()
