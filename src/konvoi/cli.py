"""The command line: one short function per command; the work is in commands/.

Nothing here imports torch, and what does is imported by the command that needs it: help and lists come at once.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from konvoi import __version__, exit_codes
from konvoi.commands.data import app as data_app
from konvoi.commands.recipes import app as recipes_app
from konvoi.errors import MachineError, UserError


class Commands(TyperGroup):
    """Turns what a command raises into the words and the exit code that the user sees."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            # Now rather than at the interpreter's end, where a closed pipe could not be caught.
            sys.stdout.flush()
            return result
        except UserError as error:
            raise _told(error) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(exit_codes.INTERRUPTED) from None
        except BrokenPipeError:
            _drop_output()
            raise typer.Exit(exit_codes.DONE) from None
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise _told(MachineError(f"no space left: {error}", hint="free some room, or use another disk")) from None


def _told(error: UserError) -> typer.Exit:
    typer.echo(f"error: {error.problem}", err=True)
    if error.hint:
        typer.echo(f"hint: {error.hint}", err=True)
    return typer.Exit(exit_codes.USER)


def _drop_output() -> None:
    """The reader of our output is gone (konvoi ... | head): what is still buffered has nowhere to go."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """The konvoi command."""
    try:
        app(prog_name="konvoi")
    except Exception:
        traceback.print_exc()
        typer.echo("error: this is a fault of Konvoi, not yours; please report it with the lines above", err=True)
        sys.exit(exit_codes.OUR_FAULT)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Trains translation and image models over a few ordinary machines, and knows why a run is fast or slow.",
    epilog="Start with: konvoi train demo",
)
app.add_typer(recipes_app, name="recipes")
app.add_typer(data_app, name="data")

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A name of konvoi recipes list, or a .toml file.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, as in runs/demo-20261115-204512.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a key of the recipe; may be given again."),
]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes on this machine; else train.workers.")]
CheckpointName = Annotated[str, typer.Option(help="best, last, average (of the latest), or a name or path.")]
Beam = Annotated[int | None, typer.Option(min=1, help="Hypotheses kept per sentence; else evaluate.beam.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"konvoi {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """What all commands share; the help text is given above."""


@app.command(epilog='Example: konvoi train demo --workers 2 --set train.duration="60 steps"')
def train(
    recipe: RecipeName,
    workers: Workers = None,
    run: Annotated[Path | None, typer.Option(help="The run directory; else runs/RECIPE-TIME.")] = None,
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with --run, else with the newest run.")] = False,
    checkpoint: Annotated[str | None, typer.Option(help="With --resume: go on from this one, not the last.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, only the result.")] = False,
) -> None:
    """Train a model.

    Prepares the data where needed, trains, and says how fast and how good the model became.
    """
    from konvoi.commands.train import Request, train

    if checkpoint and not resume:
        raise typer.BadParameter("makes sense only with --resume", param_hint="--checkpoint")
    raise typer.Exit(train(Request(recipe, _with_workers(overrides, workers), run, resume, checkpoint, quiet)))


@app.command("eval", epilog="Example: konvoi eval runs/demo-20261115-204512 --checkpoint average")
def evaluate(
    run: RunPath,
    source: Annotated[Path | None, typer.Option(help="Own text instead of the run's, one sentence a line.")] = None,
    target: Annotated[Path | None, typer.Option(help="Its translation, line by line.")] = None,
    checkpoint: CheckpointName = "best",
    split: Annotated[str | None, typer.Option(help="A split of the run's set; else test, where there is one.")] = None,
    beam: Beam = None,
    as_json: AsJson = False,
) -> None:
    """Score a trained model: loss, BLEU and chrF, or accuracies and confusions."""
    from konvoi.commands.evaluate import evaluate

    if (source is None) != (target is None):
        raise typer.BadParameter("must be given together", param_hint="--source and --target")
    if split and source:
        raise typer.BadParameter("makes no sense beside --source", param_hint="--split")
    files = (source, target) if source and target else None
    evaluate(run, checkpoint, files=files, split=split, beam=beam, as_json=as_json)


@app.command(epilog='Example: konvoi translate runs/demo-20261115-204512 "Where is the station?"')
def translate(
    run: RunPath,
    text: Annotated[list[str] | None, typer.Argument(help="Sentences, each in quotes; else standard input.")] = None,
    input_file: Annotated[Path | None, typer.Option("--input", help="A file with one sentence a line.")] = None,
    output_file: Annotated[Path | None, typer.Option("--output", help="Write here, once all is done.")] = None,
    beam: Beam = None,
    checkpoint: CheckpointName = "best",
) -> None:
    """Translate sentences: one line in, one line out.

    Needs the run directory only.
    """
    from konvoi.commands.translate import translate

    if text and input_file:
        raise typer.BadParameter("give either TEXT or --input", param_hint="--input")
    translate(run, checkpoint, text=text or [], input_file=input_file, output_file=output_file, beam=beam)


@app.command(epilog="Example: konvoi classify runs/demo-images-20261116-010203 shoe.png")
def classify(
    run: RunPath,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Pictures, or folders of them.")],
    top: Annotated[int, typer.Option(min=1, help="How many classes to show.")] = 5,
    checkpoint: CheckpointName = "best",
    as_json: AsJson = False,
) -> None:
    """Say what is in a picture: the likeliest classes with their probabilities.

    Needs the run directory only.
    """
    from konvoi.commands.classify import classify

    classify(run, checkpoint, images=images, num_classes=top, as_json=as_json)


@app.command(epilog="Example: konvoi info multi30k-tiny --workers 4")
def info(recipe: RecipeName, overrides: Overrides = None, workers: Workers = None, as_json: AsJson = False) -> None:
    """What a recipe will take, before any training.

    Parameters, operations, bytes, steps and learning rates.
    """
    from konvoi.commands.info import info

    info(recipe, _with_workers(overrides, workers), as_json)


@app.command(epilog="Example: konvoi runs --json")
def runs(
    parent: Annotated[Path, typer.Argument(metavar="DIR", help="The folder that holds the runs.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """All runs in a folder: status, scores and speed."""
    from konvoi.commands.runs import list_runs

    list_runs(parent, as_json)


@app.command(epilog="Example: konvoi watch runs/demo-20261115-204512")
def watch(
    run: RunPath,
    every: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="SECONDS", help="How often to look; else 1 on a terminal, 10 in a pipe."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Look once, then end.")] = False,
) -> None:
    """Watch a run while it goes on: progress, curves, phases of a step, network, verdict.

    Ends with the run, or with Ctrl-C; the run is not touched.
    """
    from konvoi.commands.watch import watch

    watch(run, every, once)


@app.command(epilog="Example: konvoi diagnose runs/demo-20261115-204512")
def diagnose(run: RunPath, as_json: AsJson = False) -> None:
    """Say what a run's speed is bound by, with the evidence, and what would help by how much."""
    from konvoi.commands.diagnose import diagnose

    diagnose(run, as_json)


@app.command(epilog="Example: konvoi report runs/demo-20261115-204512 -o report.html")
def report(
    run: RunPath,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file; else report.html, or standard output.")
    ] = None,
    form: Annotated[
        Literal["html", "markdown", "json"] | None, typer.Option("--format", help="Else by the ending of the file.")
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Show it live in a browser on this machine.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --serve; 0 is any that is free.")] = 8765,
) -> None:
    """Answer what a run is asked: how long, how good, fully trained, over-fitting, what bound it.

    One file that opens offline; also as Markdown and JSON.
    """
    from konvoi.commands import report as reports

    if serve and (output or form):
        raise typer.BadParameter("makes no sense beside --output or --format", param_hint="--serve")
    if serve:
        reports.serve(run, port)
    else:
        reports.report(run, output, form)


@app.command(epilog="Example: konvoi compare runs/one-node runs/two-nodes --price 2.48")
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Run directories; the first is the base.")],
    price: Annotated[float | None, typer.Option(min=0, help="What one host costs per hour.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Also write a page (HTML) here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs: speed-up, efficiency, time to the same score, cost, what differs."""
    from konvoi.commands.compare import compare

    compare(runs, price, output, as_json)


@app.command(epilog="Example: konvoi tensorboard runs/*")
def tensorboard(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where it listens, on this machine only.")] = 6006,
) -> None:
    """Show runs in TensorBoard."""
    from konvoi.commands.tensorboard import tensorboard

    tensorboard(runs, port)


def _with_workers(overrides: list[str] | None, workers: int | None) -> list[str]:
    """--workers is short for --set train.workers: the run's own recipe then tells what it was trained with."""
    return [*(overrides or []), *([f"train.workers={workers}"] if workers else [])]
