"""konvoi cluster setup: the shared folder, the environment and the data on all hosts, side by side."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import typer

from konvoi import registry
from konvoi.cluster.dataset import DataSet, needed, push_data
from konvoi.cluster.hosts import Cluster, Host, read_cluster
from konvoi.cluster.session import FarError, Session, on_all
from konvoi.cluster.setup.environment import bring, verify_prebuilt
from konvoi.cluster.setup.kit import Kit, make_kit
from konvoi.cluster.setup.shared import check_shared, mount_shared
from konvoi.commands.output import aligned, amount_words, megabytes, progress_display
from konvoi.config.recipe import Recipe, read
from konvoi.errors import ClusterError, HostError, UserError
from konvoi.stages import Report


def setup(cluster_file: Path, recipe: str | None, offline: bool) -> None:
    cluster = read_cluster(cluster_file)
    with progress_display() as report:
        data = data_of(read(recipe), report) if recipe else None
    with tempfile.TemporaryDirectory() as folder, _host_lines(cluster) as report_of:
        kit = None if cluster.environment else make_kit(Path(folder))
        work = SetUp(cluster, kit, data, offline, report_of)
        work.run()
    if work.done:
        typer.echo(aligned([[name, *words] for name, words in work.done.items()]))
    work.raise_errors()
    typer.echo(f"{_hosts(len(cluster.hosts))} ready; konvoi cluster check looks closer")


def data_of(recipe: Recipe, report: Report) -> DataSet | None:
    """What a recipe needs on the hosts, made here where it is missing; nothing where they make it themselves."""
    return needed(registry.find("task", recipe.name_of("task")).prepare(recipe, report))


@dataclass
class SetUp:
    """What is done to the hosts, in the order of run(); one that fails is left out of what follows."""

    cluster: Cluster
    kit: Kit | None
    """None where the environment is prebuilt."""
    data: DataSet | None
    offline: bool
    report_of: Callable[[str], Report]
    done: dict[str, list[str]] = field(default_factory=dict)
    """By host, in words: the environment, the data."""
    errors: dict[str, HostError] = field(default_factory=dict)

    def run(self) -> None:
        if self.cluster.shared:
            self._on_all(self._mount)
            if self._hosts:
                self._leave_out(check_shared(self.cluster, self._hosts))
        self._on_all(self._environment)
        if self.data:
            self._on_all(self._data)

    def raise_errors(self) -> None:
        """All of them at once."""
        if len(self.errors) == 1:
            raise next(iter(self.errors.values()))
        if self.errors:
            lines = [f"  {error.problem}\n    {error.hint}".rstrip() for error in self.errors.values()]
            total = len(self.cluster.hosts)
            raise ClusterError("\n".join([f"{len(lines)} of {total} hosts are not ready", *lines]))

    @property
    def _hosts(self) -> list[Host]:
        return [host for host in self.cluster.hosts if host.name not in self.errors]

    def _on_all(self, work: Callable[[Session, Report], str]) -> None:
        def one(host: Host) -> str:
            try:
                with Session(self.cluster, host) as session:
                    return work(session, self.report_of(host.name))
            except HostError:
                raise
            except FarError as error:
                raise HostError(host.name, error.text) from None
            except UserError as error:
                # Ours, on the way: the other hosts need not wait for it.
                raise HostError(host.name, error.problem, error.hint) from None

        if not self._hosts:
            return
        results = on_all(self._hosts, one)
        self._leave_out({name: result for name, result in results.items() if isinstance(result, HostError)})
        for host in self._hosts:
            self.done.setdefault(host.name, []).append(str(results[host.name]))

    def _leave_out(self, errors: Mapping[str, HostError]) -> None:
        self.errors |= errors
        for name in errors:
            self.done.pop(name, None)

    def _mount(self, session: Session, report: Report) -> str:
        assert self.cluster.shared
        report("mounting the shared folder")
        return f"{self.cluster.shared.target} {'mounted' if mount_shared(session, self.cluster) else 'is mounted'}"

    def _environment(self, session: Session, report: Report) -> str:
        if self.kit is None:
            words = verify_prebuilt(session, self.cluster)
        else:
            words = bring(session, self.cluster, self.kit, offline=self.offline, report=report)
        report("environment ready")
        return f"environment {words}"

    def _data(self, session: Session, report: Report) -> str:
        assert self.data
        first = self._hosts[0].name
        if self._is_data_shared and session.host.name != first:
            return f"data shared with {first}"
        moved = push_data(session, self.cluster, self.data, report)
        report("data ready")
        return f"data sent: {megabytes(moved.num_bytes)}" if moved.num_files else "data unchanged"

    @property
    def _is_data_shared(self) -> bool:
        shared = self.cluster.shared
        return shared is not None and Path(self.cluster.data_home).is_relative_to(shared.target)


def _hosts(number: int) -> str:
    return "the host is" if number == 1 else f"all {number} hosts are"


@contextlib.contextmanager
def _host_lines(cluster: Cluster) -> Iterator[Callable[[str], Report]]:
    """A Report for each host: on a terminal a line that changes, in a pipe a line for each stage."""
    # Imported here: most commands show no progress.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[state]}"))
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        tasks = {host.name: progress.add_task(host.name, total=None, state="") for host in cluster.hosts}
        told = {host.name: "" for host in cluster.hosts}

        def report_of(host: str) -> Report:
            def report(stage: str, done: int = 0, total: int | None = None, unit: str = "lines") -> None:
                amount = amount_words(done, total, unit, None)
                progress.update(tasks[host], completed=done, total=total, state=f"{stage} {amount}")
                # Of "installing: numpy" the first word is enough for a log.
                if not console.is_terminal and (short := stage.partition(":")[0]) != told[host]:
                    told[host] = short
                    typer.echo(f"{host}: {short}", err=True)

            return report

        yield report_of
