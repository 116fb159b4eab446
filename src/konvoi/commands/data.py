"""konvoi data: list, get, prepare and describe corpora and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from konvoi.commands.data_tables import image_table, overview, text_table
from konvoi.commands.output import aligned, print_json, progress_display
from konvoi.config.recipe import check_section, toml_value
from konvoi.data.home import konvoi_home
from konvoi.data.prepare import prepare
from konvoi.data.prepared import PreparedSet, prepared_sets
from konvoi.data.settings import Data
from konvoi.errors import DataError, RecipeError, UserError, did_you_mean
from konvoi.fetch.sets import KNOWN_SETS, OWN, KnownSet, find_set, is_here
from konvoi.images.demo import make_demo_images
from konvoi.images.image_set import ImageSet, image_sets
from konvoi.images.prepare import prepare_images
from konvoi.images.sets import DEMO_IMAGES, IMAGE_SETS

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List, get, prepare and describe corpora and pictures."
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table.")]
Source = Annotated[Path | None, typer.Option(help="Training text, one sentence a line; plain, .gz, .xz or .zst.")]
Target = Annotated[Path | None, typer.Option(help="Its translation, line by line.")]
OneFile = Annotated[Path | None, typer.Option(help="Both sides in one .tsv or .jsonl file, plain or packed.")]
HeldOut = Annotated[Path | None, typer.Option(help="Held-out text; else some is split off.")]
From = Annotated[
    Path | None, typer.Option("--from", help="Of a known set: a folder that holds its files or archives already.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of a recipe's [data], as max_words=80.")
]
Vocabulary = Annotated[Path | None, typer.Option(help="A SentencePiece .model to use instead of learning one.")]
Processes = Annotated[int | None, typer.Option(min=1, help="Processes at work; all cores unless given.")]


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
    typer.echo(f"\npictures: {', '.join(IMAGE_SETS)}, each with konvoi data prepare NAME --from DIR")
    typer.echo(f"({DEMO_IMAGES} is inside the package and needs no --from)")


@app.command("get")
def get_set(
    name: Annotated[str, typer.Argument(help="A set of konvoi data list.")],
    from_folder: From = None,
    mirror: Annotated[str | None, typer.Option(help="Address of a folder that holds the archives by name.")] = None,
    prepared: Annotated[bool, typer.Option("--prepare/--no-prepare", help="Make it ready for training, too.")] = True,
    processes: Processes = None,
    as_json: AsJson = False,
) -> None:
    """Download (or take from a folder), verify, clean and tokenise a known set."""
    # Imported here: no other command needs the network.
    from konvoi.fetch.get import get

    _check_is_text(name)
    known = find_set(name)
    with progress_display(in_lines=True) as report:
        path = get(known, home=konvoi_home(), from_folder=from_folder, mirror=mirror, report=report)
        if not prepared:
            info = {"set": name, "path": str(path)}
        else:
            info = prepare(
                _checked({"set": name}),
                source=known.source,
                target=known.target,
                home=konvoi_home(),
                report=report,
                num_processes=processes,
            ).info
    if as_json:
        print_json(info)
    else:
        typer.echo(text_table(info) if prepared else f"{name} is in {path}")


@app.command("prepare")
def prepare_set(
    name: Annotated[str, typer.Argument(metavar="SET", help='A known set, or "own" for your files.')] = OWN,
    source: Source = None,
    target: Target = None,
    file: OneFile = None,
    dev_source: HeldOut = None,
    dev_target: HeldOut = None,
    dev_file: HeldOut = None,
    test_source: HeldOut = None,
    test_target: HeldOut = None,
    test_file: HeldOut = None,
    source_language: Annotated[str | None, typer.Option(help="Translate from this language (en).")] = None,
    target_language: Annotated[str | None, typer.Option(help="Translate into this language (de).")] = None,
    vocabulary: Vocabulary = None,
    vocabulary_size: Annotated[int | None, typer.Option(help="Pieces that both languages share.")] = None,
    dev_pairs: Annotated[int | None, typer.Option(help="Pairs to split off where no dev files are given.")] = None,
    test_pairs: Annotated[int | None, typer.Option(help="Pairs to split off where no test files are given.")] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Lowercase all text.")] = False,
    settings: Settings = None,
    from_folder: From = None,
    to: Annotated[Path | None, typer.Option(help="Pictures: the folder to make, instead of Konvoi's home.")] = None,
    processes: Processes = None,
    as_json: AsJson = False,
) -> None:
    """Make text ready (clean, vocabulary, tokens) or pictures (class folders, index); once per settings and files."""
    if name in IMAGE_SETS:
        return _prepare_images(name, from_folder, to, processes, as_json)
    given: dict[str, Any] = {
        "train_source": source,
        "train_target": target,
        "train_file": file,
        "dev_source": dev_source,
        "dev_target": dev_target,
        "dev_file": dev_file,
        "test_source": test_source,
        "test_target": test_target,
        "test_file": test_file,
        "vocabulary": vocabulary,
        "vocabulary_size": vocabulary_size,
        "dev_pairs": dev_pairs,
        "test_pairs": test_pairs,
        "lowercase": lowercase or None,
    }
    known = KNOWN_SETS.get(name)
    _check_fits(known, from_folder=from_folder, to=to, dev_pairs=dev_pairs, test_pairs=test_pairs)
    # Not given is left to the set's own settings.
    chosen = {key: value for key, value in given.items() if value is not None}
    data = _checked({"set": name, **chosen, **_parsed(settings or [])})
    with progress_display(in_lines=True) as report:
        if known and from_folder:
            # Into Konvoi's home, where training looks for it.
            from konvoi.fetch.get import get

            get(known, home=konvoi_home(), from_folder=from_folder, report=report)
        prepared = prepare(
            data,
            source=source_language or (known.source if known else "en"),
            target=target_language or (known.target if known else "de"),
            home=konvoi_home(),
            report=report,
            num_processes=processes,
        )
    print_json(prepared.info) if as_json else typer.echo(text_table(prepared.info))


def _check_is_text(name: str) -> None:
    if name in IMAGE_SETS:
        raise DataError(f"{name} is a set of pictures", hint=f"konvoi data prepare {name} --from DIR")
    if name == OWN:
        raise DataError("your own text need not be got", hint="konvoi data prepare --source FILE --target FILE")


def _check_fits(known: KnownSet | None, **options: object) -> None:
    """What would have no effect is refused, rather than passed over."""
    refused = ("to", "dev_pairs", "test_pairs") if known else ("to", "from_folder")
    names = {"from_folder": "--from", "to": "--to", "dev_pairs": "--dev-pairs", "test_pairs": "--test-pairs"}
    for option in refused:
        if options[option] is not None:
            what = f"{known.name}, whose splits are fixed" if known else "your own text"
            raise UserError(f"{names[option]} has no effect on {what}", hint="leave it out")


def _prepare_images(name: str, from_folder: Path | None, to: Path | None, processes: int | None, as_json: bool) -> None:
    is_embedded = name == DEMO_IMAGES
    if is_embedded and from_folder is not None:
        raise DataError(f"{name} is inside the package", hint=f"konvoi data prepare {name}, without --from")
    if not is_embedded and from_folder is None:
        raise DataError(f"{name}: no folder given", hint=f"konvoi data prepare {name} --from DIR")
    with progress_display(in_lines=True) as report:
        if from_folder is None:
            images = make_demo_images(konvoi_home(), report, to)
        else:
            images = prepare_images(
                name, from_folder=from_folder, to=to, home=konvoi_home(), report=report, num_processes=processes
            )
    print_json(images.info) if as_json else typer.echo(image_table(images.info))


@app.command("info")
def info(
    name: Annotated[str | None, typer.Argument(metavar="SET|FOLDER", help="A prepared set or its folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """What is prepared: all sets, or one in full."""
    found = _find(name)
    if as_json:
        return print_json([one.info for one in found])
    if not found:
        typer.echo("nothing is prepared yet; try: konvoi data prepare demo-en-de")
    elif name is None:
        typer.echo(overview([one.info for one in found]))
    else:
        typer.echo("\n\n".join(map(_table, found)))


def _table(one: PreparedSet | ImageSet) -> str:
    """Its info.json may be anything: a set need not be ours."""
    try:
        return text_table(one.info) if isinstance(one, PreparedSet) else image_table(one.info)
    except (LookupError, TypeError, ValueError, AttributeError):
        problem = f"{one.folder}/info.json is damaged"
        raise DataError(problem, hint="remove this folder and prepare the set again") from None


def _find(name: str | None) -> list[PreparedSet | ImageSet]:
    """All, those of a set, or the one in a folder."""
    everything: list[PreparedSet | ImageSet] = [*prepared_sets(konvoi_home()), *image_sets(konvoi_home())]
    found = [one for one in everything if name is None or name in (one.info["set"], one.folder.name)]
    if name is None or found:
        return found
    folder = Path(name)
    if folder.is_dir():
        return [ImageSet.open(folder) if ImageSet.is_one(folder) else PreparedSet.open(folder)]
    known = {*KNOWN_SETS, *IMAGE_SETS, OWN, *(one.folder.name for one in everything)}
    raise DataError(
        f"{name} is neither a prepared set nor a folder{did_you_mean(name, known)}",
        hint="konvoi data info lists what is prepared, konvoi data list what can be",
    )


def _parsed(settings: list[str]) -> dict[str, Any]:
    split = [one.removeprefix("data.").partition("=") for one in settings]
    if wrong := [f"--set {key}: must be key=value, as in max_words=80" for key, equals, _ in split if not equals]:
        raise RecipeError("konvoi data prepare", wrong)
    return {key.strip(): toml_value(value.strip()) for key, _, value in split}


def _checked(settings: dict[str, Any]) -> Data:
    data, problems = check_section("data", Data, settings)
    if problems:
        raise RecipeError(
            "konvoi data prepare", problems, hint="konvoi recipes show demo --all lists every key of [data]"
        )
    assert isinstance(data, Data)
    return data
