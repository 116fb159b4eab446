"""What a recipe asks of a device and of a network, before anything is trained: for konvoi plan."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from konvoi import registry
from konvoi.config.recipe import Recipe, check_section, toml_value
from konvoi.engine import optim
from konvoi.errors import DataError, RecipeError, UserError
from konvoi.plan import Profile, devices, store
from konvoi.plan.outlook import Job
from konvoi.sync import Team, Traffic, diloco
from konvoi.world import World

# More tell no more about the mean.
NUM_BATCHES = 200
BYTES_PER_VALUE = {"fp32": 4, "fp16": 2, "bf16": 2}
MEASURED = "measured"
# Exact, or nearly: the rest comes after what is known to train as well.
EXACT = ("ddp", "hierarchical", "bf16", "fp16")
# It chooses among the others.
AUTO = "auto"


@dataclass(frozen=True)
class Demand:
    shapes: tuple[tuple[int, ...], ...]
    flops_per_step: float
    target_tokens: float
    source_tokens: float
    images: float
    """Of a step and worker, as the other amounts."""
    micro_batches: int
    job: Job
    is_assumed: bool
    """The data is not prepared: full batches are assumed."""


def demand_of(recipe: Recipe) -> Demand:
    task = registry.find("task", recipe.name_of("task"))
    prepared = _find(task, recipe)
    opened = task.Task(recipe, torch.device("cpu"), Team(World())) if prepared is not None else None
    targets = recipe.train.accumulate * (_mean_targets(opened) if opened else _full_batch(recipe))
    work: Mapping[str, Any] = task.work(recipe, prepared)
    source_length, target_length = work.get("mean_lengths", (1.0, 1.0))
    has_pictures = "flops_per_image" in work
    return Demand(
        shapes=shapes_of(recipe, task.num_outputs(recipe, prepared)),
        flops_per_step=targets * next(value for key, value in work.items() if key.startswith("flops_per_")),
        target_tokens=0.0 if has_pictures else targets,
        source_tokens=0.0 if has_pictures else targets * source_length / target_length,
        images=targets if has_pictures else 0.0,
        micro_batches=recipe.train.accumulate,
        job=_job(recipe, opened),
        is_assumed=opened is None,
    )


def shapes_of(recipe: Recipe, num_outputs: int) -> tuple[tuple[int, ...], ...]:
    """Of the trainable parameters, without the memory to hold them."""
    with torch.device("meta"):
        model = registry.find("model", recipe.name_of("model")).Model(recipe.model, num_outputs)
    return optim.shapes(recipe.optim, model)


def _find(task: Any, recipe: Recipe) -> Any:
    try:
        return task.find(recipe)
    except DataError:
        return None


def _mean_targets(task: Any) -> float:
    count = min(NUM_BATCHES, task.num_per_epoch)
    return statistics.fmean(task.num_targets(position) for position in range(count))


def _full_batch(recipe: Recipe) -> float:
    batching: Any = recipe.batching
    return float(getattr(batching, "max_tokens", 0) or batching.images)


def _job(recipe: Recipe, task: Any) -> Job:
    """Counted in steps of one worker: with several, each takes its share of them."""
    train, every = recipe.train, recipe.evaluate.every
    per_epoch = task.num_per_epoch / train.accumulate if task else None
    if train.duration.seconds is not None:
        return Job(seconds=train.duration.seconds)
    if train.duration.unit == "epoch":
        worker_steps = None if per_epoch is None else train.duration.count * per_epoch
    else:
        worker_steps = train.duration.count * train.workers
    if every.unit == "epoch":
        epochs = worker_steps / per_epoch if worker_steps and per_epoch else None
        return Job(worker_steps, num_evaluations=None if epochs is None else epochs / every.count)
    return Job(worker_steps, evaluate_every_steps=every.count if every.unit == "step" else None)


def profile_of(name: str, recipe_name: str, demand: Demand) -> Profile:
    """Of a known device, or what konvoi profile measured."""
    if name == MEASURED:
        name = str(store.default_file(recipe_name))
    if name.endswith(".json") or "/" in name:
        return _fitting(store.read(Path(name)), name, demand)
    estimate = devices.profile_of(devices.find(name), demand.flops_per_step)
    return replace(
        estimate,
        shapes=demand.shapes,
        micro_batches=demand.micro_batches,
        target_tokens=demand.target_tokens,
        source_tokens=demand.source_tokens,
        images=demand.images,
        device=name,
    )


def _fitting(profile: Profile, name: str, demand: Demand) -> Profile:
    wanted = sorted(demand.shapes)
    if sorted(profile.shapes) != wanted:
        raise UserError(
            f"{name} was measured with another model: {profile.num_values:,} parameters ({profile.recipe})",
            hint="measure this recipe with konvoi profile, with the same --set",
        )
    return profile


def ways_of(
    recipe: Recipe, names: Sequence[str], overrides: Sequence[str], shapes: Any, without: Sequence[str] = ()
) -> dict[str, Traffic]:
    """What each way to synchronise sends, by its name in the table; --set sync.x is for those that know x.

    Some of the recipe's own keys may be left out.
    """
    modules = {name: registry.find("sync", name) for name in names}
    given = {key: value for key, value in _given(recipe, overrides, modules).items() if key not in without}
    ways = {}
    for name, module in modules.items():
        table = {key: value for key, value in given.items() if key in module.Config.model_fields and key != "name"}
        config, problems = check_section("sync", module.Config, table)
        if problems:
            raise RecipeError(f"--sync {name}", problems)
        traffic: Traffic = module.traffic(config, shapes)
        ways[label(name, config, traffic)] = traffic
    return ways


def label(name: str, config: Any, traffic: Traffic) -> str:
    """What travels is named where it is not the usual: diloco H=16 int8."""
    if traffic.every_steps == 1:
        return name
    usual = diloco.Config().wire
    wire = getattr(config, "wire", usual)
    return f"{name} H={traffic.every_steps}" + ("" if wire == usual else f" {wire}")


def alternatives(recipe: Recipe, shapes: Any) -> dict[str, Traffic]:
    """All that advice may name, the most exact first."""
    names = [name for name in registry.names("sync") if name not in (AUTO, "diloco")]
    exact = [name for name in EXACT if name in names]
    ways = ways_of(recipe, exact, (), shapes)
    for steps, wire in diloco.USUAL:
        tried = [f"sync.local_steps={steps}", f"sync.wire={wire}"]
        ways |= ways_of(recipe, ["diloco"], tried, shapes, without=diloco.GO_BY_LOCAL_STEPS)
    return {**ways, **ways_of(recipe, [name for name in names if name not in EXACT], (), shapes)}


def _given(recipe: Recipe, overrides: Sequence[str], modules: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = recipe.sync.model_dump(exclude_unset=True, exclude={"name"})
    for override in overrides:
        key, _, text = override.removeprefix("sync.").partition("=")
        if not any(key in module.Config.model_fields for module in modules.values()):
            known = {field for module in modules.values() for field in module.Config.model_fields} - {"name"}
            raise UserError(
                f"--set {override}: none of {', '.join(modules)} has such a key",
                hint=f"known: {', '.join(sorted(known))}",
            )
        given[key] = toml_value(text.strip())
    return given


def with_dtype(ways: Mapping[str, Traffic], dtype: str | None) -> dict[str, Traffic]:
    """ddp sends fp32; other programs (and their reference runs) may send halves."""
    if dtype is None:
        return dict(ways)
    if dtype not in BYTES_PER_VALUE:
        raise UserError(f'there is no dtype "{dtype}" for gradients', hint=f"known: {', '.join(BYTES_PER_VALUE)}")
    factor = BYTES_PER_VALUE[dtype] / BYTES_PER_VALUE["fp32"]
    return {
        name: replace(traffic, payload_bytes=traffic.payload_bytes * factor) if name == "ddp" else traffic
        for name, traffic in ways.items()
    }
