"""A run directory that a test writes bit by bit, as training does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tomli_w

from konvoi.analysis.verdict import Advice, Verdict
from konvoi.watch.live import LiveRun, Snapshot

BEGAN_AT = 1_700_000_000.0
VERDICT = Verdict(
    verdict="network",
    kind="bandwidth",
    sentence="Network (bandwidth): 0.26 s of a step of 0.5 s.",
    confidence=0.9,
    sure="sure",
    step_seconds=0.5,
    advice=[Advice("half precision gradients", "--set sync.name=fp16", 1.71, 0.98)],
)


class GrowingRun:
    def __init__(self, path: Path, *, duration: str = "100 steps", num_workers: int = 2, **train: Any) -> None:
        self.path, self.num_workers = path, num_workers
        (path / "events").mkdir(parents=True)
        tables = {"train": {"duration": duration, **train}, "evaluate": {"metric": "bleu"}}
        (path / "recipe.toml").write_text(tomli_w.dumps(tables))

    def summary(self, status: str = "running", **values: Any) -> None:
        facts = {"workers": self.num_workers, "device": "cpu", "precision": "fp32", "micro_batches_per_epoch": 80}
        (self.path / "summary.json").write_text(json.dumps({"status": status, **facts, **values}))

    def write(self, rank: int, text: str) -> None:
        with (self.path / "events" / f"rank{rank}.jsonl").open("a") as file:
            file.write(text)

    def event(self, kind: str, step: int, *, rank: int = 0, at: float | None = None, **values: Any) -> None:
        self.write(rank, self.line(kind, step, at=at, **values))

    def line(self, kind: str, step: int, *, at: float | None = None, **values: Any) -> str:
        return json.dumps({"kind": kind, "time": BEGAN_AT + step if at is None else at, "step": step, **values}) + "\n"

    def started(self, at: float = BEGAN_AT) -> None:
        for rank in range(self.num_workers):
            self.write(rank, json.dumps({"kind": "started", "time": at, "rank": rank, "host": f"node-{rank}"}) + "\n")

    def step(self, step: int, **values: Any) -> None:
        """On all ranks: half a second, of which rank 0 waits 0.1 s and rank 1 does not."""
        for rank in range(self.num_workers):
            self.event("step", step, rank=rank, **{**step_values(rank, self.num_workers), **values})

    def steps(self, first: int, last: int, **values: Any) -> None:
        for step in range(first, last + 1):
            self.step(step, **values)

    def host(self, name: str, num_samples: int = 5, **sample: Any) -> None:
        """A link of 100 Mbit/s, of which 40 are used: 5 MB/s x 8 bits."""
        (self.path / "hosts").mkdir(exist_ok=True)
        about = {
            "kind": "host",
            "time": BEGAN_AT,
            "memory_bytes": 8e9,
            "job_interface": "eth0",
            "interfaces": {"eth0": {"addresses": [], "link_bits_per_second": 100e6}},
        }
        moved = {"lo": {"bytes_in": 9e9, "bytes_out": 9e9}, "eth0": {"bytes_in": 5_000_000, "bytes_out": 2_500_000}}
        each = {"kind": "sample", "seconds": 1.0, "interfaces": moved, "cpu_percent": [100, 60]}
        samples = [{**each, "memory_used_bytes": 3.2e9, **sample} for _ in range(num_samples)]
        with (self.path / "hosts" / f"{name}.jsonl").open("a") as file:
            file.writelines(json.dumps(event) + "\n" for event in (about, *samples))


def step_values(rank: int, num_workers: int) -> dict[str, Any]:
    waiting = 0.1 if rank == 0 else 0.0
    phases = {
        "data": 0.01,
        "forward": 0.2 - waiting,
        "backward": 0.19,
        "exposed_communication": 0.05 + waiting,
        "optimiser": 0.03,
        "agreement": 0.01,
        "other": 0.01,
    }
    values = {
        "loss": 4.0,
        "step_seconds": 0.5,
        "own_target_tokens": 1000,
        "target_tokens": 1000 * num_workers,
        "target_tokens_per_second": 2000.0 * num_workers,
        "phases": phases,
    }
    return values if num_workers == 1 else {**values, "communication": {"waiting_seconds": waiting, "seconds": 0.2}}


def snapshot_of(run: GrowingRun, verdict: Verdict = VERDICT) -> Snapshot:
    return LiveRun(run.path, lambda _: verdict).refresh()
