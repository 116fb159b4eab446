"""konvoi cluster: the machines of a training. One short function per command; the work is in cluster_*.py beside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from konvoi.cluster.hosts import DEFAULT_FILE

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="The machines of a training: list them, check them, set them up."
)

ClusterFile = Annotated[Path, typer.Option("--cluster", metavar="FILE", help="The cluster file.")]
RecipeName = Annotated[str | None, typer.Option("--recipe", metavar="RECIPE", help="Also the data that it needs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


@app.command("import", epilog="Example: aws ec2 describe-instances | konvoi cluster import --aws - --tag team=blue")
def import_hosts(
    aws: Annotated[
        str | None, typer.Option(metavar="FILE", help="JSON of aws ec2 describe-instances; - reads it.")
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="With --aws: only such instances.")] = None,
    user: Annotated[str | None, typer.Option(help="With --aws: the user of ssh; else ubuntu.")] = None,
    hostfile: Annotated[Path | None, typer.Option(metavar="FILE", help="A host file of mpirun.")] = None,
    hosts: Annotated[str | None, typer.Option("-H", "--host", metavar="HOST:SLOTS,...", help="As for mpirun.")] = None,
    ssh: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A name of ~/.ssh/config; may be repeated.")
    ] = None,
    ssh_config: Annotated[Path | None, typer.Option(metavar="FILE", help="Instead of ~/.ssh/config.")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The cluster file to write.")] = DEFAULT_FILE,
    force: Annotated[bool, typer.Option("--force", help="Replace the hosts of a file that is there.")] = False,
    more: Annotated[list[str] | None, typer.Argument(metavar="NAME", hidden=True)] = None,
) -> None:
    """Make cluster.toml from what already names the machines."""
    from konvoi.commands.cluster_hosts import Names, import_hosts

    names = Names(aws, tag or [], user, hostfile, hosts, ssh or [], more or [])
    import_hosts(names, ssh_config, output, force)


@app.command(epilog="Example: konvoi cluster show")
def show(cluster: ClusterFile = DEFAULT_FILE, as_json: AsJson = False) -> None:
    """The hosts as a table."""
    from konvoi.commands.cluster_hosts import show

    show(cluster, as_json)


@app.command(epilog="Example: konvoi cluster check --recipe demo")
def check(
    cluster: ClusterFile = DEFAULT_FILE,
    recipe: RecipeName = None,
    quick: Annotated[bool, typer.Option("--quick", help="Without measuring rates.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look for what would make a training fail, hang or crawl, before it does; changes nothing."""
    from konvoi.commands.cluster_check import check

    raise typer.Exit(check(cluster, recipe, quick, as_json))


@app.command(epilog="Example: konvoi cluster setup --recipe multi30k-tiny")
def setup(
    cluster: ClusterFile = DEFAULT_FILE,
    recipe: RecipeName = None,
    offline: Annotated[bool, typer.Option("--offline", help="Push the wheels; the hosts fetch nothing.")] = False,
) -> None:
    """Bring every host to the same environment, and the data to it. Twice changes nothing."""
    from konvoi.commands.cluster_setup import setup

    setup(cluster, recipe, offline)


@app.command("exec", epilog="Example: konvoi cluster exec -- nvidia-smi -L")
def execute(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="One command with its words.")],
    cluster: ClusterFile = DEFAULT_FILE,
    on: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="Only here; a name or number; repeatable.")
    ] = None,
) -> None:
    """Run a command on every host at once; every line of its output names the host."""
    from konvoi.commands.cluster_run import execute

    raise typer.Exit(execute(cluster, on or [], command))


@app.command(epilog="Example: konvoi cluster ssh 1")
def ssh(
    host: Annotated[str, typer.Argument(metavar="HOST", help="Its name, or its number from 0.")],
    cluster: ClusterFile = DEFAULT_FILE,
) -> None:
    """A shell on one of the hosts."""
    from konvoi.commands.cluster_run import shell

    shell(cluster, host)


@app.command(epilog="Example: konvoi cluster pull runs/demo-20261115-204512")
def pull(run: Annotated[Path, typer.Argument(metavar="RUN", help="A run that was trained on a cluster.")]) -> None:
    """Bring all of a run here, its checkpoints too."""
    from konvoi.commands.cluster_run import pull

    pull(run)
