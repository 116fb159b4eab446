"""Profiles as files: written by `konvoi profile`, read strictly."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from konvoi.errors import UserError
from konvoi.folder import write_whole
from konvoi.plan.profile import Profile

FORMAT, VERSION = "konvoi profile", 1
HINT = "konvoi profile RECIPE measures one"


def default_file(recipe: str) -> Path:
    """demo -> demo.profile.json, in the folder where the user is."""
    return Path(f"{Path(recipe).stem}.profile.json")


def write(profile: Profile, file: Path) -> None:
    write_whole(file, json.dumps({"format": FORMAT, "version": VERSION, **asdict(profile)}, indent=1) + "\n")


def read(file: Path) -> Profile:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no file {file}", hint=HINT) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read as JSON: {error}", hint=HINT) from None
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise UserError(f"{file} is no profile", hint=HINT)
    if (version := content.pop("version", None)) != VERSION:
        raise UserError(f"{file} is a profile of version {version}, this Konvoi reads {VERSION}", hint=HINT)
    return _checked(content, file)


def _checked(content: dict[str, Any], file: Path) -> Profile:
    unknown = sorted(content.keys() - Profile.__dataclass_fields__.keys())
    problems = [f"{key}: no such key" for key in unknown]
    try:
        profile = TypeAdapter(Profile).validate_python({k: v for k, v in content.items() if k not in unknown})
        problems += _impossible(profile)
    except ValidationError as error:
        problems += [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()]
    if problems:
        raise UserError(f"{file}: {problems[0]}" + f" (and {len(problems) - 1} more)" * (len(problems) > 1), hint=HINT)
    return profile


def _impossible(profile: Profile) -> list[str]:
    """What has the right type and cannot be."""
    numbers = {key: value for key, value in asdict(profile).items() if isinstance(value, int | float)}
    negative = [f"{key}: is {value}, must not be negative" for key, value in numbers.items() if not value >= 0]
    return negative or ([] if profile.compute_seconds > 0 else ["a step takes no time"])
