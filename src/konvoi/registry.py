"""A file's name is its registry entry: find("sync", "ddp") imports konvoi/sync/ddp.py."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from konvoi.errors import UserError, did_you_mean

ROOMS = {"model": "models", "task": "tasks", "sync": "sync"}


def names(kind: str) -> list[str]:
    """All entries of a kind, by looking into its folder (nothing is imported but the package)."""
    package = importlib.import_module(f"konvoi.{ROOMS[kind]}")
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_"))


def find(kind: str, name: str) -> ModuleType:
    """The module of that name; a near name is suggested where there is none."""
    known = names(kind)
    if name not in known:
        raise UserError(
            f'there is no {kind} "{name}"{did_you_mean(name, known)}',
            hint=f"known: {', '.join(known)}",
        )
    return importlib.import_module(f"konvoi.{ROOMS[kind]}.{name}")
