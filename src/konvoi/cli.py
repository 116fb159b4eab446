"""The command line: one short function per command; the work is in commands/.

Nothing here imports torch, and what does is imported by the command that needs it: help and lists come at once.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from konvoi import __version__, exit_codes
from konvoi.cores import give_way_where_busy
from konvoi.errors import MachineError, UserError

# Of typer's own errors this one has no public name.
UsageError: Any = typer.BadParameter.__base__
OF_THE_MACHINE = {
    errno.ENOSPC: "free some room, or use another disk",
    errno.EDQUOT: "free some room, or use another disk",
    errno.EROFS: "use another disk",
    errno.EACCES: "allow it (chmod), or name another place",
    errno.EPERM: "allow it, or name another place",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOTDIR: "name a place inside a folder, not inside a file",
    errno.EISDIR: "name a file, not a folder",
}


# Commands that have commands: imported when one is asked for, since they would take half a second of every command.
GROUPS = ("recipes", "data", "cluster")


class Commands(TyperGroup):
    """Turns what a command raises into the words and the exit code that the user sees."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *GROUPS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in GROUPS:
            return super().get_command(ctx, cmd_name)
        group = typer.main.get_command(importlib.import_module(f"konvoi.commands.{cmd_name}").app)
        group.name = cmd_name
        return group

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
        except UsageError as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                raise
            command = error.ctx.command_path if error.ctx else f"{ctx.command_path} {ctx.invoked_subcommand}"
            raise _told(UserError(error.format_message(), hint=f"{command} --help")) from None
        except OSError as error:
            if error.errno not in OF_THE_MACHINE:
                raise
            problem = ": ".join(filter(None, (error.filename, error.strerror)))
            raise _told(MachineError(problem, hint=OF_THE_MACHINE[error.errno])) from None


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

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A name of konvoi recipes list, or a .toml file.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, as in runs/demo-20261115-204512.")]
ModelPath = Annotated[Path, typer.Argument(metavar="BUNDLE|RUN", help="What konvoi export made, or a run directory.")]
VariantName = Annotated[str | None, typer.Option(help="float32, float16 or int8 of a bundle; else its default.")]
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
    cluster: Annotated[Path | None, typer.Option(metavar="FILE", help="Train on the hosts of this file.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Go on in the background; konvoi attach RUN looks.")] = False,
) -> None:
    """Train a model.

    Prepares the data where needed, trains, and says how fast and how good the model became.
    """
    from konvoi.commands.train import Request, train

    if cluster and workers:
        raise typer.BadParameter("the cluster file says how many workers a host has", param_hint="--workers")
    request = Request(recipe, _with_workers(overrides, workers), run, resume, checkpoint, quiet)
    if cluster:
        from konvoi.commands.train_cluster import train_cluster

        raise typer.Exit(train_cluster(request, cluster, detach))
    if detach:
        from konvoi.commands.detach import train_detached

        raise typer.Exit(train_detached(request))
    raise typer.Exit(train(request))


@app.command(epilog="Example: konvoi attach runs/demo-20261115-204512")
def attach(run: RunPath) -> None:
    """Show a run that goes on in the background, until it ends; Ctrl-C leaves it running."""
    from konvoi.commands.attach import attach

    raise typer.Exit(attach(run))


@app.command(epilog="Example: konvoi stop runs/demo-20261115-204512")
def stop(
    run: RunPath,
    now: Annotated[bool, typer.Option("--now", help="Do not wait for the step and its checkpoint.")] = False,
) -> None:
    """End a run on all of its hosts, with a checkpoint to go on from."""
    from konvoi.commands.stop import stop

    raise typer.Exit(stop(run, now))


@app.command(epilog="Example: mpirun -n 4 -H a:2,b:2 konvoi worker demo --run runs/demo-mpi")
def worker(
    recipe: RecipeName,
    run: Annotated[Path | None, typer.Option(help="The run directory; else runs/RECIPE-TIME.")] = None,
    overrides: Overrides = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with --run, else with the newest run.")] = False,
    checkpoint: Annotated[str | None, typer.Option(help="With --resume: go on from this one, not the last.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, only the result.")] = False,
) -> None:
    """Be one worker of a training that mpirun, Slurm's srun or torchrun starts on every host."""
    from konvoi.cluster.workers import PLAIN_WORDS

    os.environ.update(PLAIN_WORDS)
    from konvoi.commands.train import Request
    from konvoi.commands.worker import worker

    raise typer.Exit(worker(Request(recipe, overrides or [], run, resume, checkpoint, quiet)))


@app.command(hidden=True)
def node(run: RunPath) -> None:
    """Take part in a training as one of its hosts; konvoi train --cluster calls this over ssh."""
    from konvoi.commands.node import node

    raise typer.Exit(node(run))


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
    give_way_where_busy()
    from konvoi.commands.evaluate import evaluate

    if (source is None) != (target is None):
        raise typer.BadParameter("must be given together", param_hint="--source and --target")
    if split and source:
        raise typer.BadParameter("makes no sense beside --source", param_hint="--split")
    files = (source, target) if source and target else None
    evaluate(run, checkpoint, files=files, split=split, beam=beam, as_json=as_json)


@app.command(epilog='Example: konvoi translate runs/demo-20261115-204512 "Where is the station?"')
def translate(
    model: ModelPath,
    text: Annotated[list[str] | None, typer.Argument(help="Sentences, each in quotes; else standard input.")] = None,
    input_file: Annotated[Path | None, typer.Option("--input", help="A file with one sentence a line.")] = None,
    output_file: Annotated[Path | None, typer.Option("--output", help="Write here, once all is done.")] = None,
    beam: Beam = None,
    num_best: Annotated[int, typer.Option(min=1, help="Translations of each sentence, with their scores.")] = 1,
    documents: Annotated[bool, typer.Option("--documents", help="Lines are paragraphs: split into sentences.")] = False,
    variant: VariantName = None,
    checkpoint: CheckpointName = "best",
) -> None:
    """Translate sentences: one line in, one line out.

    Needs the bundle only (and no torch), or the run directory only.
    """
    give_way_where_busy()
    from konvoi.commands.translate import translate

    if text and input_file:
        raise typer.BadParameter("give either TEXT or --input", param_hint="--input")
    translate(
        model,
        checkpoint,
        text=text or [],
        input_file=input_file,
        output_file=output_file,
        beam=beam,
        num_best=num_best,
        documents=documents,
        variant=variant,
    )


@app.command(epilog="Example: konvoi classify runs/demo-images-20261116-010203 shoe.png")
def classify(
    model: ModelPath,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Pictures, or folders of them.")],
    top: Annotated[int, typer.Option(min=1, help="How many classes to show.")] = 5,
    variant: VariantName = None,
    checkpoint: CheckpointName = "best",
    as_json: AsJson = False,
) -> None:
    """Say what is in a picture: the likeliest classes with their probabilities.

    Needs the bundle only (and no torch), or the run directory only.
    """
    give_way_where_busy()
    from konvoi.commands.classify import classify

    classify(model, checkpoint, images=images, num_classes=top, variant=variant, as_json=as_json)


@app.command(epilog="Example: konvoi export runs/demo-20261115-204512 --to en-de")
def export(
    run: RunPath,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The bundle's folder; it must not exist yet.")],
    checkpoint: CheckpointName = "best",
    precision: Annotated[str, typer.Option(help="Which to make, by comma: float32, float16, int8.")] = "float32,int8",
    sentences: Annotated[
        Path | None, typer.Option(metavar="FILE", help="To verify with, where the run's own text is not here.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Take the place of the bundle that is there.")] = False,
) -> None:
    """Make a bundle of a run: a small folder that runs anywhere, without torch.

    Verified against the trained model and measured before it is there.
    """
    from konvoi.commands.export import export

    export(run, to, checkpoint, precisions=precision.split(","), sentences=sentences, force=force)


@app.command(epilog="Example: konvoi serve en-de")
def serve(
    models: Annotated[list[Path], typer.Argument(metavar="BUNDLE|RUN...", help="One or several, chosen in the page.")],
    host: Annotated[str, typer.Option(help="Where it listens; beyond this machine only with a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is any that is free.")] = 8000,
    token: Annotated[
        str | None, typer.Option(help="What clients must know; others see it here, so rather in KONVOI_TOKEN.")
    ] = None,
    token_file: Annotated[Path | None, typer.Option(metavar="FILE", help="The token, in a file.")] = None,
    variant: VariantName = None,
    checkpoint: CheckpointName = "best",
) -> None:
    """Serve translation and pictures: a page for people and a REST service for programs."""
    from konvoi.commands.serve import serve

    serve(models, host=host, port=port, token=token, token_file=token_file, variant=variant, checkpoint=checkpoint)


@app.command(epilog="Example: konvoi info multi30k-tiny --workers 4")
def info(recipe: RecipeName, overrides: Overrides = None, workers: Workers = None, as_json: AsJson = False) -> None:
    """What a recipe will take, before any training.

    Parameters, operations, bytes, steps and learning rates.
    """
    from konvoi.commands.info import info

    info(recipe, _with_workers(overrides, workers), as_json)


@app.command(epilog="Example: konvoi plan transformer-base-en-de --nodes 1,2,4,8 --network 100mbit,1gbit --price 2.48")
def plan(
    recipe: RecipeName,
    nodes: Annotated[str | None, typer.Option(metavar="N,N", help="How many nodes; else 1,2,4,8.")] = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="N,N", help="Workers on a node, one for each GPU; else 1.")
    ] = None,
    device: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="v100, t4, ...; measured, or a file, of konvoi profile.")
    ] = "v100",
    network: Annotated[
        str | None,
        typer.Option(metavar="RATE,FILE", help="100mbit, else 1gbit, ...; or CLUSTER.check.json of cluster check."),
    ] = None,
    latency: Annotated[
        str | None, typer.Option(metavar="TIME", help="There and back between two nodes; else 0.2ms.")
    ] = None,
    sync: Annotated[str | None, typer.Option(metavar="NAME,NAME", help="Ways to synchronise; else all.")] = None,
    price: Annotated[float | None, typer.Option(min=0, help="What one node costs per hour.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of ddp's gradients: fp32, unless fp16 or bf16.")] = None,
    jitter: Annotated[
        float | None, typer.Option(min=0, max=0.99, help="How much a step varies by itself, as a share; else 0.")
    ] = None,
    hosts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Hosts that differ (TOML), instead of nodes, gpus, network.")
    ] = None,
    overrides: Overrides = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw the speeds, as SVG.")] = None,
    as_json: AsJson = False,
) -> None:
    """Predict what a recipe would take on other machines, before paying for them.

    Seconds a step, speed against one device, hours, cost and traffic; what binds, and what would change that.
    """
    from konvoi.commands.plan import Request, plan

    plan(
        Request(
            recipe,
            overrides or [],
            nodes=nodes,
            gpus=gpus,
            device=device,
            network=network,
            latency=latency,
            sync=sync,
            price=price,
            dtype=dtype,
            jitter=jitter,
            hosts=hosts,
            plot=plot,
            as_json=as_json,
        )
    )


@app.command(epilog="Example: konvoi profile demo --steps 20")
def profile(
    recipe: RecipeName,
    steps: Annotated[int, typer.Option(min=4, help="To train; the first quarter is not counted.")] = 20,
    overrides: Overrides = None,
    to: Annotated[Path | None, typer.Option("--to", metavar="FILE", help="Else RECIPE.profile.json, here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a few steps of a recipe on this machine, for konvoi plan --device measured.

    Trains alone, with one worker; then two processes measure what exchanging costs.
    """
    from konvoi.commands.profile import profile

    profile(recipe, overrides or [], steps, to, as_json)


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
