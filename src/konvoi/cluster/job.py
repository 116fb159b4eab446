"""A training on the hosts of a cluster, seen from the machine that started it: begin, end, and how it ended.

The starter's run directory holds job/cluster.toml, the cluster as it was used, and job/spec.json: with these alone one
may attach, stop and pull, also from another shell or after the starter was killed. On every host the run lies in
FOLDER/runs/NAME.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from konvoi import exit_codes
from konvoi.cluster.hosts import Cluster, Host, read_cluster, write_cluster
from konvoi.cluster.job_spec import (
    Failure,
    HostState,
    JobSpec,
    Member,
    Outcome,
    host_log,
    rank_log,
    read_spec,
    spec_file,
    state_file,
)
from konvoi.cluster.session import FarError, Session, on_all
from konvoi.errors import ClusterError, HostError, RunError
from konvoi.folder import DAMAGED, write_whole
from konvoi.run_directory import RunDirectory

# Between two signs of life of a host that ends its processes.
STOP_SILENCE_SECONDS = 60
NUM_LOG_LINES = 12


@dataclass(frozen=True)
class Job:
    run: Path
    """The starter's run directory."""
    cluster: Cluster
    spec: JobSpec

    @classmethod
    def open(cls, run: Path) -> Job:
        if not cluster_file(run).is_file():
            raise RunError(f"{run} was not trained on a cluster", hint="konvoi train RECIPE --cluster FILE does that")
        return cls(run, read_cluster(cluster_file(run)), read_spec(run, hint=DAMAGED))

    @property
    def hosts(self) -> tuple[Host, ...]:
        return self.cluster.hosts

    @property
    def place(self) -> dict[str, Any]:
        """Where the run lies on a host, as the functions of far/jobs.py take it."""
        return {"folder": self.cluster.folder, "run": self.run.resolve().name}

    def save(self) -> None:
        """Whatever a former job said of itself goes."""
        for folder in (spec_file(self.run).parent, host_log(self.run, "").parent):
            folder.mkdir(exist_ok=True)
        for former in spec_file(self.run).parent.iterdir():
            former.unlink()
        config = self.cluster.ssh_config
        absolute = {"ssh_config": str(Path(config).absolute())} if config else {}
        write_cluster(self.cluster.model_copy(update=absolute), cluster_file(self.run))
        write_whole(spec_file(self.run), self.spec.to_json())

    def start(self, recipe: str, is_new: bool) -> None:
        """An agent on every host, or on none."""
        order = {host.name: number for number, host in enumerate(self.hosts)}

        def start_one(host: Host) -> int:
            spec = asdict(replace(self.spec, node=order[host.name]))
            python = f"{self.cluster.venv}/bin/python"
            with Session(self.cluster, host) as session:
                asked: dict[str, Any] = {
                    **self.place,
                    "spec": spec,
                    "recipe": recipe,
                    "python": python,
                    "is_new": is_new,
                }
                return int(_asked(session, "jobs.start", **asked))

        try:
            raise_all(on_all(self.hosts, start_one))
        except BaseException:
            self.stop(now=True)
            raise

    def stop(self, now: bool) -> dict[str, bool | HostError]:
        """Returns when no process of the job is left on any host that can be reached: whether there was one."""

        def stop_one(host: Host) -> bool:
            with Session(self.cluster, host) as session:
                asked: dict[str, Any] = {**self.place, "job_id": self.spec.id, "now": now}
                return bool(list(session.stream("jobs.stop", timeout=STOP_SILENCE_SECONDS, **asked)))

        return on_all(self.hosts, stop_one)

    def is_alive(self) -> bool:
        """Whether any host that can be reached has a process of it."""

        def alive_on(host: Host) -> list[int]:
            with Session(self.cluster, host) as session:
                found: list[int] = session.ask("jobs.alive", job_id=self.spec.id)
                return found

        return any(found for found in on_all(self.hosts, alive_on).values() if not isinstance(found, HostError))

    def start_again(self, session: Session) -> bool:
        """The agent of a host where it was killed, while the training goes on elsewhere; whether it was."""
        if not self.restarts or not any(
            state and state.state != "ended" for name, state in self.states().items() if name != session.host.name
        ):
            return False
        python = f"{self.cluster.venv}/bin/python"
        return bool(_asked(session, "jobs.start_again", **self.place, job_id=self.spec.id, python=python))

    @property
    def restarts(self) -> bool:
        return RunDirectory(self.run).recipe().faults.max_restarts > 0

    def states(self) -> dict[str, HostState | None]:
        """What the hosts last said of themselves, as far as it was brought here."""
        return {host.name: _state(state_file(self.run, host.name)) for host in self.hosts}

    def name_of_rank(self, rank: int) -> str:
        """h1 rank 2"""
        names = [member.name for member in self.spec.members for _ in range(member.workers)]
        return f"{names[rank]} rank {rank}"


def outcome(job: Job) -> Outcome:
    """How a job ended, once all of it is here."""
    states = job.states()
    if any(state and state.exit_code == exit_codes.DONE for state in states.values()):
        # Whatever became of the others: those who were left have done all of it.
        return Outcome(exit_codes.DONE)
    told = [state.failure for state in states.values() if state and state.failure]
    if told:
        state = states.get(told[0].host)
        return Outcome((state and state.exit_code) or exit_codes.OUR_FAULT, told[0])
    codes = [state.exit_code for state in states.values() if state and state.exit_code is not None]
    if codes:
        # A host that was lost at the very end changes nothing: the others would have failed without it.
        return Outcome(max(codes))
    first = job.hosts[0].name
    words = _last_lines(host_log(job.run, first)) or "its agent ended without a word; was it killed?"
    return Outcome(exit_codes.OUR_FAULT, Failure(first, None, words))


def new_spec(cluster: Cluster, interfaces: Mapping[str, str], resume: bool, checkpoint: str) -> JobSpec:
    """With a random id, and a random port that is free where all will meet; `interfaces` are by name of host."""
    members = tuple(Member(host.name, host.address, interfaces[host.name], host.workers) for host in cluster.hosts)
    return JobSpec(
        id=uuid.uuid4().hex,
        members=members,
        node=0,
        port=_free_port(cluster),
        resume=resume,
        checkpoint=checkpoint,
        environment={"KONVOI_HOME": cluster.data_home},
    )


def checkpoints_there(job: Job) -> list[str]:
    """Names of the checkpoints on any of the hosts, which all must be reached."""

    def on(host: Host) -> list[str]:
        with Session(job.cluster, host) as session:
            return [str(name) for name in session.ask("jobs.checkpoints", **job.place)]

    found = on_all(job.hosts, on)
    raise_all(found)
    return sorted({name for names in found.values() if not isinstance(names, HostError) for name in names})


def speaker(job: Job) -> Host:
    """Who has all of the run: the first host that saw its end, else the first of all."""
    states = job.states()
    ended = [host for host in job.hosts if (state := states[host.name]) and state.exit_code == exit_codes.DONE]
    return (ended or [job.hosts[0]])[0]


def raise_all(results: Mapping[str, object]) -> None:
    """The errors of all hosts as one."""
    errors = [result for result in results.values() if isinstance(result, HostError)]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        lines = "\n".join(f"  {error.problem}" for error in errors)
        raise ClusterError(f"{len(errors)} hosts have a problem\n{lines}", hint=errors[0].hint)


def cluster_file(run: Path) -> Path:
    return run / "job" / "cluster.toml"


def log_of(job: Job, failure: Failure) -> Path:
    """Where all that the failed one printed is."""
    return host_log(job.run, failure.host) if failure.rank is None else rank_log(job.run, failure.rank)


def _free_port(cluster: Cluster) -> int:
    first, last = cluster.port_range
    with Session(cluster, host := cluster.hosts[0]) as session:
        return int(_asked(session, "network.free_port", address=host.address, first=first, last=last))


def in_words(error: FarError) -> HostError:
    """What a host refuses, it says in words for the user."""
    return HostError(error.host, error.text if error.kind == "Refused" else f"{error.kind}: {error.text}")


def _asked(session: Session, what: str, **arguments: Any) -> Any:
    try:
        return session.ask(what, **arguments)
    except FarError as error:
        raise in_words(error) from None


def _state(file: Path) -> HostState | None:
    try:
        return HostState.from_json(file.read_text(encoding="utf-8"))
    except OSError:
        return None


def _last_lines(file: Path) -> str:
    try:
        return "\n".join(file.read_text(encoding="utf-8", errors="replace").splitlines()[-NUM_LOG_LINES:])
    except OSError:
        return ""
