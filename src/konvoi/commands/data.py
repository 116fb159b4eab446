"""konvoi data: list, get, prepare and describe parallel text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from konvoi.commands.output import aligned, print_json, progress_display
from konvoi.data.get import get
from konvoi.data.home import konvoi_home
from konvoi.data.prepare import prepare
from konvoi.data.prepared import PreparedSet, prepared_sets
from konvoi.data.sets import KNOWN_SETS, OWN, find_set, is_here
from konvoi.data.settings import Data
from konvoi.errors import DataError, RecipeError

app = typer.Typer(no_args_is_help=True, help="List, get, prepare and describe parallel text.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table.")]
File = Annotated[Path | None, typer.Option(help="Plain text, .gz or .xz; one sentence a line.")]


@app.command("list")
def list_sets(as_json: AsJson = False) -> None:
    """The sets that Konvoi knows by name."""
    rows = [
        {
            "name": known.name,
            "train_pairs": known.train_pairs,
            "source": known.source,
            "target": known.target,
            "licence": known.licence,
            "here": is_here(known, konvoi_home()),
            "description": known.description,
        }
        for known in KNOWN_SETS.values()
    ]
    if as_json:
        return print_json(rows)
    cells = [("set", "training pairs", "languages", "licence", "here", "what it is")]
    for row in rows:
        languages, here = f"{row['source']}-{row['target']}", "yes" if row["here"] else "no"
        pairs = f"{row['train_pairs']:,}"
        cells.append((str(row["name"]), pairs, languages, str(row["licence"]), here, str(row["description"])))
    typer.echo(aligned(cells))


@app.command("get")
def get_set(
    name: Annotated[str, typer.Argument(help="A set of konvoi data list.")],
    from_folder: Annotated[Path | None, typer.Option("--from", help="A folder that holds the files already.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check the files of a known set and copy them into Konvoi's home."""
    with progress_display() as report:
        path = get(find_set(name), home=konvoi_home(), from_folder=from_folder, report=report)
    print_json({"set": name, "path": str(path)}) if as_json else typer.echo(f"{name} is in {path}")


@app.command("prepare")
def prepare_set(
    name: Annotated[str, typer.Argument(metavar="SET", help='A known set, or "own" for your files.')] = OWN,
    source: File = None,
    target: File = None,
    dev_source: File = None,
    dev_target: File = None,
    test_source: File = None,
    test_target: File = None,
    source_language: Annotated[str, typer.Option(help="Translate from this language.")] = "en",
    target_language: Annotated[str, typer.Option(help="Translate into this language.")] = "de",
    vocabulary_size: Annotated[int, typer.Option(help="Pieces that both languages share.")] = 8000,
    dev_pairs: Annotated[int, typer.Option(help="Pairs to split off where no dev files are given.")] = 1000,
    test_pairs: Annotated[int, typer.Option(help="Pairs to split off where no test files are given.")] = 1000,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Lowercase all text.")] = False,
    from_folder: Annotated[Path | None, typer.Option("--from", help="Where the files of a known set lie.")] = None,
    as_json: AsJson = False,
) -> None:
    """Clean text, learn its vocabulary and turn it into tokens, once per settings and files."""
    files = {"train_source": source, "train_target": target, "dev_source": dev_source, "dev_target": dev_target}
    files |= {"test_source": test_source, "test_target": test_target}
    counts = {"vocabulary_size": vocabulary_size, "dev_pairs": dev_pairs, "test_pairs": test_pairs}
    data = _checked({"set": name, "lowercase": lowercase, **counts, **files})
    with progress_display() as report:
        prepared = prepare(
            data,
            source=source_language,
            target=target_language,
            home=konvoi_home(),
            from_folder=from_folder,
            report=report,
        )
    print_json(prepared.info) if as_json else typer.echo(_in_full(prepared.info))


@app.command("info")
def info(
    name: Annotated[str | None, typer.Argument(metavar="SET|FOLDER", help="A prepared set or its folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """What is prepared: all sets, or one in full."""
    infos = [prepared.info for prepared in _find_prepared(name)]
    if as_json:
        return print_json(infos)
    if not infos:
        typer.echo("nothing is prepared yet; try: konvoi data prepare demo-en-de")
    elif name is None:
        typer.echo(_overview(infos))
    else:
        typer.echo("\n\n".join(_in_full(one) for one in infos))


def _find_prepared(name: str | None) -> list[PreparedSet]:
    """All, the one in a folder, or those of a set."""
    if name is not None and Path(name).is_dir():
        return [PreparedSet.open(Path(name))]
    everything = prepared_sets(konvoi_home())
    found = [one for one in everything if name is None or name in (one.info["set"], one.folder.name)]
    if name is not None and not found:
        raise DataError(f"{name} is neither a prepared set nor a folder", hint=f"konvoi data prepare {name}")
    return found


def _checked(settings: dict[str, Any]) -> Data:
    try:
        return Data(**settings)
    except ValidationError as error:
        problems = [
            ".".join(["data", *map(str, one["loc"])]) + ": " + one["msg"].removeprefix("Value error, ")
            for one in error.errors()
        ]
        raise RecipeError("konvoi data prepare", problems, hint="konvoi data prepare --help") from None


def _overview(infos: list[dict[str, Any]]) -> str:
    rows = [("set", "training pairs", "MB", "vocabulary", "made at", "where")]
    for one in infos:
        raw_mb = sum(one["raw_mb"].values())
        numbers = (f"{one['pairs']['train']:,}", f"{raw_mb:,.1f}", f"{one['vocabulary_size']:,}")
        rows.append((one["set"], *numbers, one["made_at"][:10], one["folder"]))
    return aligned(rows)


def _in_full(one: dict[str, Any]) -> str:
    return aligned([("set", f"{one['set']}: {one['source']} to {one['target']}"), *_facts(one)])


def _facts(one: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for split, number in one["pairs"].items():
        tokens = ", ".join(f"{side} {count:,}" for side, count in one["tokens"][split].items())
        yield split, f"{number:,} lines; tokens: {tokens}"
    yield "training text", ", ".join(f"{side} {mb:,.1f} MB" for side, mb in one["raw_mb"].items())
    dropped = {reason: number for reason, number in one["cleaning"].items() if reason not in ("kept", "held_out")}
    yield "dropped in cleaning", ", ".join(f"{reason} {number:,}" for reason, number in dropped.items())
    yield "vocabulary", f"{one['vocabulary_size']:,} pieces"
    for side, mean in one["length_mean"].items():
        yield f"sentence length, {side}", f"mean {mean:.1f}, 95 % up to {one['length_p95'][side]:.0f} tokens"
    yield "licence", one["licence"]
    if one["citation"]:
        yield "citation", one["citation"]
    yield "where", one["folder"]
    yield "made at", one["made_at"]
