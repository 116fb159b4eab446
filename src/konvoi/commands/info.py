"""konvoi info: what a recipe will take, before any training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import typer

from konvoi import registry
from konvoi.commands.output import aligned, megabytes, print_json
from konvoi.commands.plan_recipe import shapes_of
from konvoi.config.recipe import Recipe, read
from konvoi.config.schedules import OneCycle, Span
from konvoi.engine.setup import span_of
from konvoi.errors import DataError
from konvoi.sync import Team, num_hidden, num_values
from konvoi.world import World

BYTES_PER_FLOAT = 4
OUTPUTS = {"translation": "vocabulary_size", "classification": "classes"}
SCHEDULE_WORDS = {
    "constant": "stays at {learning_rate:g}",
    "transformer": "rises for {warmup}, then falls with the square root of the step",
    "one-cycle": "rises to {learning_rate:g} in the first {rise:.0%}, then falls to {end:g} of it, both along a cosine",
    "cosine": "falls from {learning_rate:g} to {end:g} of it along a cosine",
    "polynomial": "falls from {learning_rate:g} to {end:g} of it with power {power:g}",
    "exponential": "falls from {learning_rate:g} to {factor:g} of itself every {every}",
    "piecewise": "steps through {rates} at {boundaries}",
}


def info(name: str, overrides: list[str], as_json: bool) -> None:
    recipe = read(name, overrides)
    prepared, why_not = _find(recipe)
    facts: dict[str, Any] = {"recipe": name, "workers": recipe.train.workers}
    facts["model"] = _model(recipe, prepared)
    facts["bytes"] = _bytes(recipe, prepared)
    facts["data"] = _data(recipe, prepared, why_not)
    facts["steps"] = _steps(recipe, prepared)
    facts["schedule"] = _schedule(recipe, facts["steps"])
    if as_json:
        print_json(facts)
    else:
        typer.echo(aligned(_rows(facts)))


def _task(recipe: Recipe) -> Any:
    return registry.find("task", recipe.name_of("task"))


def _find(recipe: Recipe) -> tuple[Any, str]:
    """The prepared set, or why there is none."""
    try:
        found = _task(recipe).find(recipe)
        return found, "" if found else "not prepared yet"
    except DataError as error:
        return None, error.problem


def _model(recipe: Recipe, prepared: Any) -> dict[str, Any]:
    task, module = _task(recipe), registry.find("model", recipe.name_of("model"))
    num_outputs = task.num_outputs(recipe, prepared)
    filled: Any = getattr(recipe.model, "filled", lambda: recipe.model)()
    return {
        **filled.model_dump(mode="json"),
        OUTPUTS[recipe.name_of("task")]: num_outputs,
        "parameters": module.num_parameters(recipe.model, num_outputs),
        **task.work(recipe, prepared),
    }


def _bytes(recipe: Recipe, prepared: Any) -> dict[str, Any]:
    """Exact but for a few kilobytes of names and counters."""
    shapes = shapes_of(recipe, _task(recipe).num_outputs(recipe, prepared))
    weights = BYTES_PER_FLOAT * num_values(shapes)
    # Muon keeps a momentum where Adam keeps two moments.
    moments = 2 * weights - BYTES_PER_FLOAT * num_hidden(shapes)
    if recipe.optim.name == "sgd":
        moments = weights if recipe.optim.momentum else 0
    averages = weights if recipe.train.ema_decay else 0
    sync = registry.find("sync", recipe.name_of("sync"))
    return {
        "gradient": weights,
        "sent_per_step_and_worker": sync.traffic(recipe.sync, shapes).bytes_per_step(recipe.train.workers),
        "optimiser_state": moments,
        "checkpoint": weights + moments + averages,
    }


def _data(recipe: Recipe, prepared: Any, why_not: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"set": recipe.data.set, "prepared": prepared is not None}  # type: ignore[attr-defined]
    if prepared is None:
        return {**facts, "why_not": why_not}
    known = {key: prepared.info[key] for key in ("pairs", "tokens", "images", "bytes") if key in prepared.info}
    return {**facts, "folder": str(prepared.folder), **known}


def _steps(recipe: Recipe, prepared: Any) -> dict[str, Any]:
    """None for what cannot be known: without prepared text an epoch has no length, and a time has no steps."""
    duration, per_epoch = recipe.train.duration, None
    if prepared is not None:
        task = _task(recipe).Task(recipe, torch.device("cpu"), Team(World()))
        per_epoch = span_of(recipe, task.num_per_epoch, recipe.train.workers).steps_per_epoch
    in_epochs = duration.unit == "epoch"
    total = None if in_epochs and per_epoch is None else duration.steps(per_epoch or 1.0)
    return {"per_epoch": per_epoch, "duration": str(duration), "total": total}


def _schedule(recipe: Recipe, steps: dict[str, Any]) -> dict[str, Any]:
    schedule = recipe.schedule
    facts: dict[str, Any] = {"name": recipe.name_of("schedule"), "words": _schedule_words(recipe), "rates": {}}
    lengths = [item for _, value in schedule for item in (value if isinstance(value, list) else [value])]
    needs_epoch = any(getattr(length, "unit", "") == "epoch" for length in lengths)
    if steps["per_epoch"] is None and (needs_epoch or steps["total"] is None):
        return facts
    filled: Any = getattr(recipe.model, "filled", lambda: recipe.model)()
    total, per_epoch = steps["total"], steps["per_epoch"] or 1.0
    span = Span(total_steps=total or 0, steps_per_epoch=per_epoch, width=getattr(filled, "width", 512))
    warm = _end_of_warmup(recipe, span)
    named = {"first step": 1, **({"end of warm-up": warm} if warm else {}), **({"last step": total} if total else {})}
    facts["rates"] = {name: {"step": step, "rate": schedule.rate(step, span)} for name, step in named.items()}
    return facts


def _end_of_warmup(recipe: Recipe, span: Span) -> int | None:
    schedule = recipe.schedule
    warmup_steps = span.steps(schedule.warmup) if schedule.warmup else 0
    if isinstance(schedule, OneCycle):
        return warmup_steps + round(schedule.rise * (span.total_steps - warmup_steps))
    return warmup_steps or None


def _schedule_words(recipe: Recipe) -> str:
    values = recipe.schedule.model_dump(mode="json")
    words = SCHEDULE_WORDS[values["name"]].format(**values)
    rises = values["warmup"] and values["name"] != "transformer"
    return f"{values['name']}: " + (f"rises for {values['warmup']}, then " if rises else "") + words


def _rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    model, num_bytes, steps = facts["model"], facts["bytes"], facts["steps"]
    per_epoch = "unknown until the data is prepared" if steps["per_epoch"] is None else f"{steps['per_epoch']:,.1f}"
    total = "unknown" if steps["total"] is None else f"{steps['total']:,}"
    return [
        ("model", _model_words(model)),
        ("parameters", f"{model['parameters']:,}"),
        *_work_words(model),
        ("gradient", f"{num_bytes['gradient']:,} bytes ({megabytes(num_bytes['gradient'])}, fp32)"),
        ("sent per step", f"{_sent_words(facts)}"),
        ("optimiser state", megabytes(num_bytes["optimiser_state"])),
        ("checkpoint", megabytes(num_bytes["checkpoint"])),
        ("data", _data_words(facts["data"])),
        ("steps per epoch", per_epoch),
        ("steps in all", f"{total} ({steps['duration']})"),
        ("learning rate", facts["schedule"]["words"]),
        *(
            (f"  at the {name}", f"{at['rate']:.3g} (step {at['step']:,})")
            for name, at in facts["schedule"]["rates"].items()
        ),
    ]


def _model_words(model: dict[str, Any]) -> str:
    size = f"{model['name']} {model['size']}: " if "size" in model else f"{model['name']}: "
    keys = ("encoder_layers", "decoder_layers", "width", "ffn_width", "heads", "vocabulary_size", "depth", "classes")
    return size + ", ".join(f"{key.replace('_', ' ')} {model[key]:,}" for key in keys if key in model)


def _work_words(model: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key, flops in model.items():
        if key.startswith("flops_per_"):
            words = key.removeprefix("flops_per_").replace("_", " ")
            yield f"work per {words}", f"{flops / 1e6:,.1f} MFLOP (forward and backward)"


def _sent_words(facts: dict[str, Any]) -> str:
    count = facts["workers"]
    if count == 1:
        return "nothing: 1 worker"
    return f"{megabytes(facts['bytes']['sent_per_step_and_worker'])} by each of {count} workers"


def _data_words(data: dict[str, Any]) -> str:
    if not data["prepared"]:
        return f"{data['set']}: {data['why_not'].removeprefix(data['set'] + ': ')}"
    if "images" in data:
        return f"{data['set']}: " + ", ".join(f"{split} {count:,} pictures" for split, count in data["images"].items())
    tokens = ", ".join(f"{side} {count:,}" for side, count in data["tokens"]["train"].items())
    return f"{data['set']}: {data['pairs']['train']:,} training pairs; tokens: {tokens}"
