"""konvoi recipes: list, show, copy and check."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import tomli_w
import typer

from konvoi import exit_codes
from konvoi.commands.output import aligned, print_json
from konvoi.config.recipe import Recipe, locate, read, shipped
from konvoi.config.section import Section
from konvoi.errors import UserError
from konvoi.folder import write_whole

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List, show, copy and check recipes.")

NameOrFile = Annotated[str, typer.Argument(metavar="NAME", help="A recipe's name, or a .toml file.")]


@app.command("list", epilog="Example: konvoi recipes list")
def list_recipes(as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False) -> None:
    """The recipes inside the package."""
    rows = [{"name": name, "about": _about(path), "path": str(path)} for name, path in shipped().items()]
    if as_json:
        print_json(rows)
    else:
        typer.echo(aligned([cells for row in rows for cells in _cells(row["name"], row["about"])]))


@app.command("show", epilog="Example: konvoi recipes show demo --all")
def show(
    name: NameOrFile,
    everything: Annotated[bool, typer.Option("--all", help="With every key and what it means.")] = False,
) -> None:
    """Print a recipe."""
    typer.echo(with_all_keys(read(name)) if everything else _text_of(name), nl=False)


@app.command("copy", epilog="Example: konvoi recipes copy demo mine.toml")
def copy(name: NameOrFile, file: Annotated[Path, typer.Argument(help="Where to; must not exist yet.")]) -> None:
    """Copy a recipe, to change it."""
    text = _text_of(name)
    try:
        if file.exists():
            raise UserError(f"{file} exists already", hint="choose another name, or remove it first")
        write_whole(file, text)
    except OSError as error:
        raise UserError(f"{file} cannot be written: {error.strerror}", hint="choose another place") from None
    typer.echo(f"{file} is yours to change; then: konvoi train {file}")


@app.command("check", epilog="Example: konvoi recipes check mine.toml")
def check(names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names or .toml files.")]) -> None:
    """Say ok, or all that is wrong with each recipe."""
    num_wrong = 0
    for name in names:
        try:
            read(name)
            typer.echo(f"{name}: ok")
        except UserError as error:
            num_wrong += 1
            typer.echo(f"error: {error.problem}\nhint: {error.hint}", err=True)
    if num_wrong:
        raise typer.Exit(exit_codes.USER)


def _text_of(name: str) -> str:
    """As it was written, though it may be wrong."""
    path = locate(name)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: cannot be read as TOML: {error}", hint="write it in UTF-8") from None


def with_all_keys(recipe: Recipe) -> str:
    """TOML with every key; what is not set stands there as a comment."""
    tables = (_table(name, getattr(recipe, name)) for name in Recipe.model_fields)
    return "\n".join("\n".join(table) + "\n" for table in tables)


def _table(name: str, section: Section) -> Iterator[str]:
    yield f"[{name}]"
    # A model's size stands for keys that are not in the file.
    filled: Any = getattr(section, "filled", lambda: section)()
    values = filled.model_dump(mode="json")
    for key, field in type(filled).model_fields.items():
        about = f"  # {' '.join(field.description.split())}" if field.description else ""
        value = values[key]
        line = f"# {key} is not set" if value is None else tomli_w.dumps({key: value}).rstrip("\n")
        # A comment after an array that goes over several lines would read as if it were about its end.
        yield line if "\n" in line else f"{line}{about}"


def _about(path: Path) -> str:
    """The comments that a recipe opens with: its command, its time, its expected score."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comments = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return "\n".join(" ".join(line.lstrip("#").split()) for line in comments)


def _cells(name: str, about: str) -> list[tuple[str, str]]:
    return [(name if number == 0 else "", line) for number, line in enumerate(about.split("\n"))]
