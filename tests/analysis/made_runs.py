"""Run directories as a training leaves them, written in a moment and with numbers that a test can choose.

    make_run(tmp_path / "run", num_workers=2, step={"phases": {"data": 0.3}})
    make_run(path, step=lambda rank, step: {"phases": {"forward": 0.9}} if rank == 1 else {})
    make_run(path, evaluations={25: {"bleu": 20.0}, 50: {}}, checkpoints=[25, 50], hosts=("a", "b"))

Overrides are merged table by table. `step_seconds` is the sum of the phases, and of the exposed communication all
that is not waiting is moving, unless given. A value of ABSENT takes a key out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

Table = dict[str, Any]
Overrides = Mapping[str, Any] | Callable[..., Mapping[str, Any]] | None

ABSENT = object()
STARTED_AT = 1_700_000_000.0
TOKENS_PER_RANK = 1000
PARAMETERS = 1_500_000

# A healthy step of half a second: 0.44 s compute, 0.04 s on the network, 0.02 s for the rest.
PHASES = {
    "agreement": 0.01,
    "data": 0.005,
    "forward": 0.15,
    "backward": 0.25,
    "exposed_communication": 0.03,
    "optimiser": 0.04,
    "other": 0.015,
}
RECIPE: Table = {
    "task": {"name": "translation", "source": "en", "target": "de"},
    "data": {"set": "demo-en-de"},
    "model": {"name": "transformer", "size": "tiny"},
    "batching": {"max_tokens": 1024},
    "optim": {"name": "adam"},
    "schedule": {"name": "one-cycle", "learning_rate": 0.005, "rise": 0.15},
    "train": {"accumulate": 1, "precision": "auto", "seed": 1, "mode": "train_evaluate"},
    "evaluate": {"every": "25 steps", "metric": "bleu"},
    "checkpoint": {},
    "sync": {"name": "ddp", "bucket_megabytes": 25.0},
}
DATA = {
    "set": "demo-en-de",
    "source": "en",
    "target": "de",
    "pairs": {"train": 69000, "dev": 500},
    "raw_mb": {"en": 2.0, "de": 2.4},
    "tokens": {"train": {"en": 650_000, "de": 670_000}, "dev": {"en": 4700, "de": 4800}},
    "filters": [
        {"filter": "read", "dropped": 0, "pairs": 70000, "mb": {"en": 2.0, "de": 2.4}},
        {"filter": "held_out", "dropped": 1000, "pairs": 69000, "mb": {"en": 1.9, "de": 2.3}},
    ],
    "vocabulary_size": 3000,
    "licence": "CC BY 2.0 FR",
    "citation": "tatoeba.org",
}
SAMPLES = [{"source": "Hello.", "reference": "Hallo.", "translation": "Hallo."}]


def make_run(
    path: Path,
    num_workers: int = 2,
    num_steps: int = 50,
    step: Overrides = None,
    evaluations: Mapping[int, Mapping[str, Any]] | Iterable[int] = (),
    checkpoints: Mapping[int, Mapping[str, Any]] | Iterable[int] = (),
    hosts: Sequence[str] = ("host-a",),
    sample: Overrides = None,
    about: Overrides = None,
    started: Overrides = None,
    recipe: Mapping[str, Any] | None = None,
    summary: Mapping[str, Any] | None = None,
    status: str = "finished",
    ranks: Iterable[int] | None = None,
) -> Path:
    """Writes a whole run and returns its path.

    step(rank, step), started(rank), sample(host, second) and about(host) may be functions or fixed overrides.
    ranks: whose events are there (else all). status: finished, interrupted, running, died or failed.
    """
    planned = {"train": {"duration": f"{max(num_steps, 1)} steps", "workers": num_workers}}
    path.mkdir(parents=True)
    (path / "recipe.toml").write_text(tomli_w.dumps(merged(merged(RECIPE, planned), recipe or {})))
    _write_json(path / "data.json", DATA)
    _write_json(path / "environment.json", {"host": "host-a", "started_at": "2023-11-14T22:13:20"})
    # What has long been silent is taken for dead.
    begins_at = time.time() if status == "running" else STARTED_AT
    ends_at, totals = begins_at, []
    for rank in range(num_workers) if ranks is None else ranks:
        begun = merged(_started(rank, num_workers, hosts), _of(started, rank))
        pauses = (_by_step(evaluations), _by_step(checkpoints))
        events = [*_events(begun, begins_at, num_workers, num_steps, step, *pauses)]
        if status in ("finished", "interrupted"):
            events.append({"kind": status, "time": events[-1]["time"], "step": num_steps, "ending": status})
        write_lines(path / "events" / f"rank{rank}.jsonl", events)
        ends_at = max(ends_at, events[-1]["time"])
        totals = totals or [event for event in events if event["kind"] == "step"]
    for host in hosts:
        write_lines(path / "hosts" / f"{host}.jsonl", _host_lines(host, begins_at, ends_at, sample, about))
    _write_json(path / "summary.json", merged(_summary(totals, num_workers, num_steps, hosts, status), summary or {}))
    return path


def merged(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> Table:
    """Overrides win; tables are merged key by key; ABSENT takes a key out."""
    result = dict(base)
    for key, value in overrides.items():
        if value is ABSENT:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


def write_lines(file: Path, events: Iterable[Mapping[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(event) + "\n" for event in events))


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2))


def _of(overrides: Overrides, *arguments: Any) -> Mapping[str, Any]:
    return (overrides(*arguments) if callable(overrides) else overrides) or {}


def _by_step(given: Mapping[int, Mapping[str, Any]] | Iterable[int]) -> dict[int, Mapping[str, Any]]:
    return dict(given) if isinstance(given, Mapping) else {number: {} for number in given}


def _events(
    begun: Table,
    begins_at: float,
    num_workers: int,
    num_steps: int,
    step: Overrides,
    evaluations: Mapping[int, Mapping[str, Any]],
    checkpoints: Mapping[int, Mapping[str, Any]],
) -> Iterator[Table]:
    rank, clock = begun["rank"], begins_at + (begun.get("seconds") or 0.0)
    yield {**begun, "time": clock}
    for number in range(1, num_steps + 1):
        event = _step(rank, number, num_workers, _of(step, rank, number))
        clock += event.get("step_seconds") or 0.0
        yield merged(event, {"time": clock})
        if number in evaluations:
            event = merged(_evaluation(number, num_steps), evaluations[number])
            clock += event.get("seconds") or 0.0
            yield {**event, "time": clock}
        if number in checkpoints:
            event = merged(_checkpoint(number, rank), checkpoints[number] if rank == 0 else {})
            clock += event.get("seconds") or 0.0
            yield {**event, "time": clock}


def _started(rank: int, num_workers: int, hosts: Sequence[str]) -> Table:
    """Ranks fill one host after the other."""
    per_host = -(-num_workers // max(1, len(hosts)))
    return {
        "kind": "started",
        "rank": rank,
        "local_rank": rank % per_host,
        "workers": num_workers,
        "host": hosts[rank // per_host] if hosts else "host-a",
        "process_id": 100 + rank,
        "device": "cpu",
        "threads": 1,
        "seconds": 2.0,
        "phases": {"launch": 1.0, "rendezvous": 0.2, "data": 0.3, "model": 0.4, "other": 0.1},
    }


def _step(rank: int, number: int, num_workers: int, overrides: Mapping[str, Any]) -> Table:
    phases = merged(PHASES, overrides.get("phases", {})) if overrides.get("phases") is not ABSENT else {}
    if num_workers == 1:
        phases = merged({**phases, "exposed_communication": 0.0, "agreement": 0.0}, overrides.get("phases", {}))
    step_seconds = overrides.get("step_seconds", sum(value or 0.0 for value in phases.values()))
    tokens = num_workers * TOKENS_PER_RANK
    event = {
        "kind": "step",
        "time": 0.0,
        "step": number,
        "loss": 2.0 + 6.0 / number,
        "objective": 2.2 + 6.0 / number,
        "learning_rate": 0.001,
        "gradient_norm": 1.0,
        "step_seconds": step_seconds,
        "target_tokens": tokens,
        "source_tokens": tokens,
        "padding": 0.1,
        "own_target_tokens": TOKENS_PER_RANK,
        "target_tokens_per_second": tokens / step_seconds if step_seconds else None,
        "tokens_per_second": 2 * tokens / step_seconds if step_seconds else None,
        "phases": phases,
        **_communication(phases, num_workers, overrides.get("communication", {})),
        "cpu_seconds": sum(phases.get(name) or 0.0 for name in ("forward", "backward", "optimiser")),
        "run_delay_seconds": 0.001,
    }
    return merged(event, {key: value for key, value in overrides.items() if key != "phases" or value is ABSENT})


def _communication(phases: Mapping[str, Any], num_workers: int, overrides: Any) -> Table:
    if num_workers == 1:
        return {}
    exposed = (phases.get("exposed_communication") or 0.0) + (phases.get("agreement") or 0.0)
    waiting = (overrides.get("waiting_seconds") or 0.0) if isinstance(overrides, Mapping) else 0.0
    return {
        "communication": {
            "seconds": exposed,
            "waiting_seconds": waiting,
            "moving_seconds": exposed - waiting,
            "agreement_moving_seconds": 0.001,
            "num_collectives": 3,
            "bytes": 2 * (num_workers - 1) / num_workers * 4 * PARAMETERS,
        }
    }


def _evaluation(number: int, num_steps: int) -> Table:
    return {
        "kind": "evaluation",
        "time": 0.0,
        "step": number,
        "seconds": 1.0,
        "loss": 2.1 + 6.0 / number,
        "bleu": 30.0 * number / max(1, num_steps),
        "chrf": 50.0 * number / max(1, num_steps),
        "sentences": 500,
        "samples": SAMPLES,
    }


def _checkpoint(number: int, rank: int) -> Table:
    wrote = {"seconds": 0.1, "bytes": 12 * PARAMETERS} if rank == 0 else {"seconds": 0.0}
    return {"kind": "checkpoint", "time": 0.0, "step": number, **wrote}


def _host_lines(host: str, begins_at: float, ends_at: float, sample: Overrides, about: Overrides) -> Iterator[Table]:
    address = {"addresses": ["10.0.0.1"], "link_bits_per_second": 1_000_000_000}
    first = {"kind": "host", "time": begins_at, "host": host, "cores": 2, "memory_bytes": 8 * 2**30}
    yield merged({**first, "job_interface": "eth0", "interfaces": {"eth0": address}, "gpus": []}, _of(about, host))
    for second in range(1, int(ends_at - begins_at) + 1):
        line = {
            "kind": "sample",
            "time": begins_at + second,
            "seconds": 1.0,
            "interfaces": {"eth0": {"bytes_in": 12_000_000, "bytes_out": 12_000_000}},
            "cpu_percent": [90.0, 90.0],
            "memory_used_bytes": 2 * 2**30,
            "disk": {"bytes_read": 0, "bytes_written": 0},
        }
        yield merged(line, _of(sample, host, second))


def _summary(
    steps: Sequence[Mapping[str, Any]], num_workers: int, num_steps: int, hosts: Sequence[str], status: str
) -> Table:
    seconds = sum(event.get("step_seconds") or 0.0 for event in steps)
    mean = seconds / len(steps) if steps else 0.0
    return {
        "format": 1,
        # One that died could not say so.
        "status": "running" if status == "died" else status,
        "steps": num_steps,
        "seconds": seconds,
        "step_seconds": {"mean": mean, "median": mean, "p95": mean},
        "target_tokens_per_second": num_workers * TOKENS_PER_RANK / mean if mean else 0.0,
        "tokens_per_second": 2 * num_workers * TOKENS_PER_RANK / mean if mean else 0.0,
        "workers": num_workers,
        "hosts": max(1, len(hosts)),
        "parameters": PARAMETERS,
        "precision": "fp32",
        "device": "cpu",
        "threads": 1,
        "bytes_sent_per_step": 2 * (num_workers - 1) / num_workers * 4 * PARAMETERS,
        "micro_batches_per_epoch": 400,
        "skipped_steps": 0,
        "scores": {},
        "best": {},
    }
