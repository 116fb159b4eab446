"""Imports point one way, and what must start at once does not wait for torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import konvoi

PACKAGE = Path(konvoi.__file__).parent

# A room imports from rooms further down and from itself, never from above nor from beside.
LAYERS = (
    ("__main__",),
    ("cli",),
    ("commands",),
    ("export", "serve"),
    ("engine", "report", "watch", "cluster", "bundle"),
    ("tasks", "analysis"),
    ("evaluate",),
    ("data", "image_input", "models", "sync"),
    ("telemetry", "plan"),
    ("run_directory", "fetch", "images"),
    ("config",),
    ("registry", "folder", "memory", "parallel", "world"),
    ("cores", "stages"),
    ("errors", "exit_codes", "recipes", "__init__"),
)
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}

# Launching, listing, reading a run: none of it may take torch's two seconds.
WITHOUT_TORCH = (
    "cli.py",
    "errors.py",
    "exit_codes.py",
    "registry.py",
    "run_directory.py",
    "bundle/*.py",
    "cluster/*.py",
    "cluster/checks/*.py",
    "cluster/far/*.py",
    "cluster/imports/*.py",
    "cluster/setup/*.py",
    "config/*.py",
    "cores.py",
    "data/*.py",
    "fetch/*.py",
    "folder.py",
    "image_input/*.py",
    "images/*.py",
    "memory.py",
    "parallel.py",
    "plan/*.py",
    "stages.py",
    "world.py",
    "analysis/*.py",
    "analysis/answers/*.py",
    "commands/compare.py",
    "report/*.py",
    "serve/*.py",
    "report/sections/*.py",
    "watch/*.py",
    "telemetry/console.py",
    "telemetry/environment.py",
    "telemetry/events.py",
    "telemetry/gpus.py",
    "telemetry/host.py",
    "telemetry/processor.py",
    "telemetry/timeline.py",
    "telemetry/units.py",
    "telemetry/wandb.py",
)

FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(module: str) -> str:
    """konvoi.data.text -> data, konvoi.errors -> errors, konvoi -> __init__"""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def own_imports(tree: ast.Module) -> Iterator[str]:
    """All modules of the package that a file imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == "konvoi")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where they point"
            if node.module == "konvoi":
                rooms = [f"konvoi.{name.name}" for name in node.names if name.name in LEVEL]
                yield from rooms or ["konvoi"]
            elif node.module and node.module.startswith("konvoi."):
                yield node.module


def imported_at_once(tree: ast.Module) -> set[str]:
    """Top-level packages that are imported when the file is, not inside a function."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            names |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


def test_there_are_files_and_each_belongs_to_a_layer() -> None:
    rooms = {file.relative_to(PACKAGE).parts[0].removesuffix(".py") for file in FILES}
    assert len(rooms) > 10
    assert rooms <= LEVEL.keys()


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_point_down(file: Path) -> None:
    own = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for module in own_imports(parse(file)):
        room = room_of(module)
        assert room == own or LEVEL[room] > LEVEL[own], f"{own} must not import {module}"


@pytest.mark.parametrize("pattern", WITHOUT_TORCH)
def test_these_files_do_not_import_torch(pattern: str) -> None:
    files = sorted(PACKAGE.glob(pattern))
    assert files
    for file in files:
        assert "torch" not in imported_at_once(parse(file)), file


def test_nor_do_they_through_others() -> None:
    files = [file for pattern in WITHOUT_TORCH for file in sorted(PACKAGE.glob(pattern))]
    modules = [".".join(("konvoi", *file.relative_to(PACKAGE).with_suffix("").parts)) for file in files]
    modules = [module.removesuffix(".__init__") for module in modules]
    program = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == 0
