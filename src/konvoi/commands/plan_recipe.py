"""What a recipe asks of a device and of a network, before anything is trained: for konvoi plan."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from konvoi import registry
from konvoi.config.recipe import Recipe, apply, check_section
from konvoi.config.section import Section
from konvoi.engine import optim
from konvoi.errors import DataError, RecipeError, UserError
from konvoi.plan import Profile, devices, store
from konvoi.plan.outlook import Job
from konvoi.sync import Team, Traffic, diloco, hierarchical
from konvoi.world import World

# More tell no more about the mean.
NUM_BATCHES = 200
BYTES_PER_VALUE = {"fp32": 4, "fp16": 2, "bf16": 2}
MEASURED = "measured"
# By as much may the steps of a profile be larger or smaller than those of the whole data.
SAMPLE_FACTOR = 1.5
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
    amount = demand.images or demand.target_tokens + demand.source_tokens
    # A few steps are a sample; where the data is not here, full batches are what is assumed.
    is_alike = demand.is_assumed or 1 / SAMPLE_FACTOR < profile.amount / amount < SAMPLE_FACTOR
    if profile.micro_batches != demand.micro_batches or not is_alike:
        raise UserError(
            f"{name} was measured with other batches: {profile.micro_batches} a step,"
            f" {profile.amount:,.0f} tokens or pictures; the recipe has {demand.micro_batches} and {amount:,.0f}",
            hint="measure this recipe with konvoi profile, with the same --set",
        )
    return profile


def ways_of(recipe: Recipe, names: Sequence[str], overrides: Sequence[str], shapes: Any) -> dict[str, Traffic]:
    """What each way to synchronise sends, by its name in the table; --set sync.x is for those that know x."""
    given = _given(recipe, overrides, names)
    return _named((_config(name, given) for name in names), shapes)


def alternatives(recipe: Recipe, shapes: Any) -> dict[str, Traffic]:
    """All that advice may name; each also between hosts, whose own workers then stay equal."""
    given = _own_settings(recipe, without=diloco.GO_BY_LOCAL_STEPS)
    given |= given.pop("between", {})
    tried: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in hierarchical.BETWEEN if name != "diloco"]
    tried += [("diloco", {"local_steps": steps, "wire": wire}) for steps, wire in diloco.USUAL]
    configs = [_config(name, {**given, **settings}) for name, settings in tried]
    return _named((way for config in configs for way in (hierarchical.Config(between=config), config)), shapes)


def most_exact_first(ways: Mapping[str, Traffic]) -> dict[str, Traffic]:
    """Gradients as they are, then rounded; then fewer and smaller exchanges; what is known to cost most comes last."""

    def exactness(way: tuple[str, Traffic]) -> tuple[int, int, float]:
        name, traffic = way
        kind = 1 if traffic.hidden_by == "steps" else 2 if "powersgd" in name else 0
        return kind, traffic.every_steps, -traffic.payload_bytes

    return dict(sorted(ways.items(), key=exactness))


def fitting(recipe: Recipe, ways: Mapping[str, Traffic]) -> dict[str, Traffic]:
    """Those with which the recipe would train."""
    parts = [name for name, traffic in ways.items() if traffic.hidden_by == "steps" and recipe.needs_equal_workers]
    return {name: traffic for name, traffic in ways.items() if name not in parts}


def _named(configs: Iterable[Section], shapes: Any) -> dict[str, Traffic]:
    return {label(config): traffic_of(config, shapes) for config in configs}


def traffic_of(config: Any, shapes: Any) -> Traffic:
    traffic: Traffic = registry.find("sync", config.name).traffic(config, shapes)
    return traffic


def label(config: Any) -> str:
    """What is not the usual is named: diloco H=16 int8, hierarchical (fp16)."""
    if isinstance(config, hierarchical.Config):
        between: Any = config.between
        return config.name + (f" ({label(between)})" if between.name != "ddp" else "")
    if not isinstance(config, diloco.Config):
        return str(config.name)
    return f"{config.name} H={config.local_steps}" + (f" {config.wire}" if config.wire != diloco.Config().wire else "")


def _config(name: str, given: Mapping[str, Any]) -> Section:
    """Of what is given, those keys that this way has."""
    kind = registry.find("sync", name).Config
    table = {key: value for key, value in given.items() if key in kind.model_fields and key != "name"}
    config, problems = check_section("sync", kind, table)
    if config is None:
        raise RecipeError(f"--sync {name}", problems)
    return config


def _own_settings(recipe: Recipe, without: Sequence[str] = ()) -> dict[str, Any]:
    """Of the recipe's [sync] table, what was written there; some keys may be left out, inside of a table as well."""
    found: dict[str, Any] = recipe.sync.model_dump(exclude_unset=True)
    tables = (found, found.get("between", {}))
    for table in tables:
        for key in without:
            table.pop(key, None)
    return found


def _given(recipe: Recipe, overrides: Sequence[str], names: Sequence[str]) -> dict[str, Any]:
    """The recipe's own settings, and those of --set; each must be one that some way knows."""
    given = _own_settings(recipe)
    known = {key for name in names for key in registry.find("sync", name).Config.model_fields} - {"name"}
    for override in overrides:
        key = override.partition("=")[0].strip().removeprefix("sync.").partition(".")[0]
        if key not in known:
            raise UserError(
                f"--set {override}: none of {', '.join(names)} has such a key",
                hint=f"known: {', '.join(sorted(known))}",
            )
        if problems := apply({"sync": given}, override):
            raise UserError(problems[0], hint="as in --set sync.local_steps=8")
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
