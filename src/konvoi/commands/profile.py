"""konvoi profile: a few real steps alone, and what exchanging costs this machine, for konvoi plan."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import typer

from konvoi import registry
from konvoi.commands import exchange
from konvoi.commands.output import aligned, print_json, progress_display
from konvoi.config.recipe import Recipe, read
from konvoi.cores import usable_cores
from konvoi.engine.loop import train
from konvoi.engine.setup import build, close
from konvoi.errors import UserError
from konvoi.plan import Profile, store
from konvoi.run_directory import RunDirectory
from konvoi.telemetry.processor import OtherPrograms
from konvoi.world import World

# The first steps open kernels and files.
SHARE_NOT_COUNTED = 0.25
# Of the cores; less is what any system does.
BUSY_SHARE = 0.05
PHASES = ("data", "forward", "backward", "optimiser")


def profile(name: str, overrides: list[str], num_steps: int, to: Path | None, as_json: bool) -> None:
    file = to or store.default_file(name)
    recipe = read(name, [*overrides, *_own_settings(num_steps)])
    _check_writable(file)
    with progress_display(in_lines=True) as report:
        registry.find("task", recipe.name_of("task")).prepare(recipe, report)
    found = measure(recipe, name)
    store.write(found, file)
    if as_json:
        print_json(asdict(found))
    else:
        typer.echo(f"{aligned(_rows(found))}\nwritten to {file}; konvoi plan {name} --device {file}")


def _own_settings(num_steps: int) -> list[str]:
    """Alone, and as long as asked for; evaluated once, at the end."""
    steps = f'"{num_steps} steps"'
    return [
        f"train.duration={steps}",
        "train.workers=1",
        f"evaluate.every={steps}",
        f"checkpoint.every={steps}",
        "checkpoint.keep=1",
    ]


def _check_writable(file: Path) -> None:
    """Before the measuring, not after it."""
    if not file.parent.is_dir():
        raise UserError(f"{file} cannot be written: there is no folder {file.parent}", hint="name another with --to")


def measure(recipe: Recipe, name: str) -> Profile:
    """Trains in a folder that is gone afterwards."""
    others = OtherPrograms()
    with tempfile.TemporaryDirectory(prefix="konvoi-profile-") as folder:
        directory = RunDirectory.create(Path(folder) / "run", recipe)
        run = build(directory, World(), resume=False, quiet=True)
        try:
            ending = train(run)
        finally:
            close(run)
        if ending == "interrupted":
            raise KeyboardInterrupt
        events = list(directory.events_of())
        shapes = tuple(tuple(p.shape) for p in run.bare_model.parameters() if p.requires_grad)
        device, precision = run.precision.device, run.precision.name
    on_processor = device.type == "cpu"
    costs = exchange.measure() if on_processor else exchange.Costs(0.0, 0.0, 0.0)
    return Profile(
        **_measured(events),
        shapes=shapes,
        micro_batches=recipe.train.accumulate,
        exchange_seconds_per_byte=costs.seconds_per_byte,
        exchange_latency_seconds=costs.latency_seconds,
        seconds_per_pass=costs.seconds_per_pass,
        on_processor=on_processor,
        cores=usable_cores(),
        device=_device_name(device),
        precision=precision,
        threads=torch.get_num_threads(),
        recipe=name,
        date=time.strftime("%Y-%m-%d"),
        source=f"measured on {time.strftime('%Y-%m-%d')} by konvoi profile{_busy_words(others.share())}",
    )


def _busy_words(share: float) -> str:
    """What others had of the cores, the measured steps lacked."""
    return f", while other programs had {share:.0%} of the cores" if share > BUSY_SHARE else ""


def _measured(events: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The mean of the steps that count: what varies from batch to batch is part of the training."""
    steps = [event for event in events if event["kind"] == "step"]
    counted = steps[round(SHARE_NOT_COUNTED * len(steps)) :]
    phases = {name: statistics.fmean(event["phases"].get(name, 0.0) for event in counted) for name in PHASES}
    rest = statistics.fmean(event["step_seconds"] for event in counted) - sum(phases.values())
    evaluations = [event["seconds"] for event in events if event["kind"] == "evaluation"]
    amounts = {
        key: statistics.fmean(event.get(key, 0.0) for event in counted)
        for key in ("target_tokens", "source_tokens", "images")
    }
    return {
        "data_seconds": phases["data"],
        "forward_seconds": phases["forward"],
        "backward_seconds": phases["backward"],
        # What has no name in the timeline is not hidden by anything either.
        "optimiser_seconds": phases["optimiser"] + max(0.0, rest),
        "evaluation_seconds": evaluations[-1] if evaluations else 0.0,
        **amounts,
    }


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{usable_cores()} CPU cores"


def _rows(found: Profile) -> list[tuple[str, str]]:
    amount = (
        f"{found.images:,.1f} pictures"
        if found.images
        else (f"{found.target_tokens:,.0f} target, {found.source_tokens:,.0f} source tokens")
    )
    rows = [
        ("device", f"{found.device}, {found.threads} threads, {found.precision}"),
        ("a step", f"{found.step_seconds:.4g} s for {amount}"),
        ("  data", f"{found.data_seconds:.4g} s"),
        ("  forward", f"{found.forward_seconds:.4g} s"),
        ("  backward", f"{found.backward_seconds:.4g} s"),
        ("  optimiser", f"{found.optimiser_seconds:.4g} s"),
        ("an evaluation", f"{found.evaluation_seconds:.4g} s"),
        ("parameters", f"{found.num_values:,}"),
        ("source", found.source),
    ]
    if not found.on_processor:
        return rows
    rate, latency = 1e-6 / found.exchange_seconds_per_byte, 1e3 * found.exchange_latency_seconds
    return [*rows, ("exchanging", f"{rate:,.0f} MB/s and {latency:.2g} ms between two processes, by loopback")]
