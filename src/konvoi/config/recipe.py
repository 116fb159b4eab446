"""TOML + overrides -> Recipe; every error at once, each with its key, what was given and what is allowed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import SerializeAsAny, ValidationError

from konvoi import registry
from konvoi.config.duration import Length
from konvoi.config.schedules import SCHEDULES, Schedule
from konvoi.config.section import Section
from konvoi.config.sections import Checkpoint, Evaluate, Faults, Optim, Telemetry, Train
from konvoi.errors import RecipeError, UserError, did_you_mean

SECTIONS = (
    "task",
    "data",
    "model",
    "batching",
    "optim",
    "schedule",
    "train",
    "evaluate",
    "checkpoint",
    "sync",
    "faults",
    "telemetry",
)


class Recipe(Section):
    """A whole run, checked. task, data, model, batching, evaluate and sync have the type that their module declares."""

    task: SerializeAsAny[Section]
    data: SerializeAsAny[Section]
    model: SerializeAsAny[Section]
    batching: SerializeAsAny[Section]
    optim: Optim
    schedule: SerializeAsAny[Schedule]
    train: Train
    evaluate: SerializeAsAny[Evaluate]
    checkpoint: Checkpoint
    sync: SerializeAsAny[Section]
    faults: Faults
    telemetry: Telemetry

    def name_of(self, section: str) -> str:
        """The module that a table names."""
        name: str = getattr(self, section).name
        return name

    @property
    def needs_equal_workers(self) -> str:
        """The key for which the workers' weights may not part between exchanges, or nothing."""
        if self.train.ema_decay:
            return "train.ema_decay"
        return "model.sync_batch_norm" if getattr(self.model, "sync_batch_norm", False) else ""

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


def shipped() -> dict[str, Path]:
    """The recipes inside the package, by name."""
    folder = Path(str(resources.files("konvoi.recipes")))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def locate(name_or_file: str) -> Path:
    """A shipped recipe's name, or a file."""
    recipes = shipped()
    if name_or_file in recipes:
        return recipes[name_or_file]
    path = Path(name_or_file)
    if path.is_file():
        return path
    looks_like_file = path.suffix == ".toml" or "/" in name_or_file
    near = "" if looks_like_file else did_you_mean(name_or_file, recipes)
    what = f"there is no file {name_or_file}" if looks_like_file else f'there is no recipe "{name_or_file}"{near}'
    raise UserError(what, hint=f"known recipes: {', '.join(recipes)}; or name a .toml file")


def read(name_or_file: str, overrides: Sequence[str] = ()) -> Recipe:
    """The checked recipe of that name or file, with --set overrides applied."""
    path = locate(name_or_file)
    return check(read_toml(path), overrides, origin=str(name_or_file))


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise UserError(
            f"{path}: cannot be read as TOML: {error}", hint="konvoi recipes show demo is an example"
        ) from None


def check(tables: dict[str, Any], overrides: Sequence[str] = (), origin: str = "recipe") -> Recipe:
    """All problems are collected first and raised together."""
    problems: list[str] = []
    tables = {name: dict(table) if isinstance(table, dict) else table for name, table in tables.items()}
    for override in overrides:
        problems += apply(tables, override)
    for name in tables:
        if name not in SECTIONS:
            problems.append(f"[{name}]: no such table{did_you_mean(name, SECTIONS)} (allowed: {', '.join(SECTIONS)})")
    checked: dict[str, Section] = {}
    for name, kind in _section_types(tables, problems):
        result, found = check_section(name, kind, tables.get(name, {}))
        problems += found
        if result is not None:
            checked[name] = result
    if not problems:
        problems += list(_contradictions(checked))
    if problems:
        raise RecipeError(origin, problems, hint="konvoi recipes show demo --all lists every key")
    return Recipe(**checked)  # type: ignore[arg-type]


def apply(tables: dict[str, Any], override: str) -> list[str]:
    """Changes the tables as --set says; returns what is wrong with it."""
    key, equals, text = override.partition("=")
    *sections, name = key.strip().split(".")
    if not (equals and sections and all(sections) and name):
        return [f"--set {override}: must be section.key=value, as in train.seed=2"]
    table: Any = tables
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            return [f"--set {override}: {section} is no table, but {table!r}"]
    table[name] = toml_value(text.strip())
    return []


def toml_value(text: str) -> Any:
    """A TOML value, or the text itself: the shell has eaten the quotes of train.duration="60 steps"."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def _section_types(tables: dict[str, Any], problems: list[str]) -> Iterator[tuple[str, type[Section]]]:
    """The class that checks each table; problems grows where a named module does not exist."""
    modules = {}
    for kind, default in (("task", "translation"), ("model", "transformer"), ("sync", "ddp")):
        table = tables.get(kind, {})
        name = table.get("name", default) if isinstance(table, dict) else default
        try:
            modules[kind] = registry.find(kind, str(name))
        except UserError as error:
            problems.append(f"{kind}.name: {error.problem} ({error.hint})")
            continue
        yield kind, modules[kind].Config
    if task := modules.get("task"):
        yield "data", task.Data
        yield "batching", task.Batching
        yield "evaluate", task.Evaluate
    yield "optim", Optim
    yield "train", Train
    yield "checkpoint", Checkpoint
    yield "faults", Faults
    yield "telemetry", Telemetry
    table = tables.get("schedule", {})
    name = table.get("name", "transformer") if isinstance(table, dict) else "transformer"
    if name in SCHEDULES:
        yield "schedule", SCHEDULES[name]
    else:
        known = ", ".join(SCHEDULES)
        problems.append(f'schedule.name: is "{name}"{did_you_mean(str(name), SCHEDULES)} (allowed: {known})')


def check_section(name: str, kind: type[Section], table: Any) -> tuple[Section | None, list[str]]:
    if not isinstance(table, dict):
        return None, [f"[{name}]: must be a table, is {table!r}"]
    try:
        return kind.model_validate(table), []
    except ValidationError as error:
        return None, [_explain(name, kind, table, detail) for detail in error.errors()]


def _explain(section: str, kind: type[Section], table: dict[str, Any], detail: Any) -> str:
    key = ".".join(str(part) for part in (section, *detail["loc"]))
    if detail["type"] == "extra_forbidden":
        unknown = str(detail["loc"][-1])
        near = did_you_mean(unknown, kind.model_fields)
        return f"{key}: no such key{near} (allowed: {', '.join(kind.model_fields)})"
    if detail["type"] == "missing":
        return f"{key}: missing; {_field_help(kind, str(detail['loc'][-1]))}"
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    given = detail.get("input")
    if detail["type"] == "literal_error":
        near = did_you_mean(str(given), detail["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", "))
        return f"{key}: is {given!r}{near} (allowed: {detail['ctx']['expected']})"
    shown = "" if given is None or isinstance(given, dict) else f"is {given!r}, "
    return f"{key}: {shown}{message[:1].lower()}{message[1:]}"


def _field_help(kind: type[Section], name: str) -> str:
    field = kind.model_fields[name]
    return (field.description or "must be given").split("\n")[0]


def _contradictions(sections: dict[str, Section]) -> Iterator[str]:
    """What is right table by table, and wrong together."""
    train, schedule = sections["train"], sections["schedule"]
    assert isinstance(train, Train) and isinstance(schedule, Schedule)
    name = type(schedule).model_fields["name"].default
    if name in ("one-cycle", "cosine", "polynomial") and train.duration.seconds is not None:
        yield (
            f'train.duration: is "{train.duration}", but the {name} schedule must know its last step; '
            "give steps or epochs, and a time as train.time_budget"
        )
    for key, value in schedule:
        lengths = value if isinstance(value, list) else [value]
        if any(isinstance(length, Length) and length.seconds is not None for length in lengths):
            yield f"schedule.{key}: must be in steps or epochs"
    budget = train.time_budget
    if budget is not None and budget.seconds is None:
        yield f'train.time_budget: is "{budget}", must be in seconds, minutes or hours'
    if train.log_every.unit != "step":
        yield f'train.log_every: is "{train.log_every}", must be in steps'
