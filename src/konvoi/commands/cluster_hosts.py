"""konvoi cluster import and show: the cluster file, made from what names the machines, and as a table."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from konvoi.cluster.hosts import DEFAULT_FILE, Cluster, Host, check_cluster, read_cluster, to_toml
from konvoi.cluster.imports import aws as aws_json
from konvoi.cluster.imports import host_list, ssh_names
from konvoi.cluster.imports import hostfile as mpi_file
from konvoi.commands.output import aligned, print_json, write_output
from konvoi.errors import ClusterError, UserError

HEADER = ("", "host", "ssh", "address", "workers", "GPUs", "key")


@dataclass(frozen=True)
class Names:
    """What was said on the command line about where the hosts are named."""

    aws: str | None
    tags: list[str]
    user: str | None
    hostfile: Path | None
    hosts: str | None
    ssh: list[str]
    more: list[str]
    """Words that stand alone: what follows the blank in -H a:2, b:2 or in --ssh a b."""


def import_hosts(names: Names, ssh_config: Path | None, output: Path, force: bool) -> None:
    source = _source(names)
    if output.exists() and not force:
        raise ClusterError(f"{output} exists already", hint="--force replaces its hosts; -o names another file")
    notes: list[str] = []
    settings = _settings(output, ssh_config, notes)
    found = [host.model_dump(exclude_none=True) for host in _find(source, names, settings.get("ssh_config"), notes)]
    cluster = check_cluster({**settings, "hosts": found}, "what was found", output.parent)
    write_output(output, to_toml(cluster))
    _tell(cluster, output, notes)


def _source(names: Names) -> str:
    """The one that is given."""
    options = {"--aws": names.aws, "--hostfile": names.hostfile, "-H": names.hosts, "--ssh": names.ssh or None}
    given = [option for option, value in options.items() if value is not None]
    if len(given) != 1:
        problem = f"{' and '.join(given)} are given" if given else "nothing says where the hosts are"
        raise UserError(problem, hint="give one of --aws FILE, --hostfile FILE, -H HOST:SLOTS,... and --ssh NAME")
    if (names.tags or names.user) and given != ["--aws"]:
        raise UserError(f"--tag and --user make no sense beside {given[0]}", hint="they belong to --aws")
    if names.more and given[0] not in ("-H", "--ssh"):
        raise UserError(f'"{names.more[0]}" belongs to no option', hint="konvoi cluster import --help")
    return given[0]


def _settings(output: Path, ssh_config: Path | None, notes: list[str]) -> dict[str, Any]:
    """All but the hosts. What a file there says stays: instances that are started anew change nothing but addresses."""
    settings: dict[str, Any] = {}
    if output.is_file():
        settings = read_cluster(output).model_dump(exclude_defaults=True, exclude={"hosts"})
    if settings:
        notes.append(f"kept from the file that was there: {', '.join(settings)}")
    return {**settings, "ssh_config": str(ssh_config.absolute())} if ssh_config else settings


def _find(source: str, names: Names, ssh_config: str | None, notes: list[str]) -> list[Host]:
    if source == "--aws":
        return aws_json.hosts(_text(str(names.aws)), names.tags, names.user, notes.append)
    if source == "--hostfile":
        return mpi_file.hosts(_text(str(names.hostfile)), notes.append, ssh_config)
    if source == "-H":
        return host_list.hosts(" ".join([str(names.hosts), *names.more]), notes.append, ssh_config)
    return ssh_names.hosts([*names.ssh, *names.more], notes.append, ssh_config)


def _text(file: str) -> str:
    """A file's content; - is standard input."""
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        # A byte order mark is what some editors and shells put first.
        return content.decode("utf-8-sig")
    except OSError as error:
        raise ClusterError(f"{file} cannot be read: {error.strerror}", hint="name a file that you may read") from None
    except UnicodeDecodeError:
        raise ClusterError(f"{file} is not text in UTF-8", hint="PowerShell: | Out-File -Encoding utf8") from None


def _tell(cluster: Cluster, output: Path, notes: list[str]) -> None:
    typer.echo(_table(cluster))
    typer.echo()
    for note in notes:
        typer.echo(f"note: {note}")
    option = "" if output == DEFAULT_FILE else f" --cluster {output}"
    typer.echo(f"written: {output}; next: konvoi cluster check{option}")


def show(file: Path, as_json: bool) -> None:
    cluster = read_cluster(file)
    if as_json:
        print_json({**cluster.model_dump(mode="json"), "totals": _totals(cluster)})
    else:
        typer.echo(_table(cluster))


def _totals(cluster: Cluster) -> dict[str, int | None]:
    given = [host.gpus for host in cluster.hosts if host.gpus is not None]
    gpus = sum(given) if len(given) == len(cluster.hosts) else None
    return {"hosts": len(cluster.hosts), "workers": cluster.num_workers, "gpus": gpus}


def _table(cluster: Cluster) -> str:
    rows = [HEADER, *(_cells(number, host) for number, host in enumerate(cluster.hosts))]
    totals = _totals(cluster)
    gpus = "GPUs not known" if totals["gpus"] is None else _count(totals["gpus"], "GPU")
    words = (_count(len(cluster.hosts), "host"), _count(cluster.num_workers, "worker"), gpus)
    return f"{aligned(rows)}\n\n{', '.join(words)}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _cells(number: int, host: Host) -> tuple[str, ...]:
    gpus = "?" if host.gpus is None else str(host.gpus)
    return (str(number), host.name, host.ssh, host.address, str(host.workers), gpus, host.identity or "as ssh has it")
