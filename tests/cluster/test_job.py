"""A job as far as no host is needed: what is brought here, whose processes it has, how it ended."""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.hosts import wait_until

from konvoi.cluster.far import jobs
from konvoi.cluster.follow import PATIENCE_SECONDS, Followers, is_expected, patterns
from konvoi.cluster.hosts import Cluster
from konvoi.cluster.job import Job, Outcome, outcome, raise_all
from konvoi.cluster.job_spec import Failure, HostState, JobSpec, Member, host_log, state_file
from konvoi.errors import ClusterError, HostError, RunError

TWO_HOSTS = [
    {"name": "a", "ssh": "a", "address": "10.0.0.1", "workers": 2},
    {"name": "b", "ssh": "b", "address": "10.0.0.2", "workers": 1},
]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    cluster = Cluster.model_validate({"hosts": TWO_HOSTS, "ssh_config": "ssh.txt"})
    members = tuple(Member(host.name, host.address, "eth0", host.workers) for host in cluster.hosts)
    job = Job(tmp_path, cluster, JobSpec(uuid.uuid4().hex, members, 0, 29400))
    job.save()
    return job


def tell(job: Job, host: str, code: int | None, failure: Failure | None = None) -> None:
    state = HostState("running" if code is None else "ended", 1, 0.0, code, failure)
    state_file(job.run, host).write_text(state.to_json())


def test_a_run_directory_alone_tells_its_job(job):
    again = Job.open(job.run)
    assert again.spec == job.spec
    assert again.hosts == job.hosts
    # Whoever reads it may be in another folder.
    assert again.cluster.ssh_config == str(Path("ssh.txt").absolute())


def test_another_run_has_no_job(tmp_path):
    with pytest.raises(RunError, match="was not trained on a cluster"):
        Job.open(tmp_path)


def test_ranks_are_named_with_their_host(job):
    assert [job.name_of_rank(rank) for rank in range(3)] == ["a rank 0", "a rank 1", "b rank 2"]


def names_of(job: Job, host: int) -> list[str]:
    grow, replace = patterns(job, job.hosts[host])
    return [*grow, *replace]


def test_only_the_first_host_tells_what_rank_0_writes_for_all(job):
    own = {"events/rank0.jsonl", "events/rank1.jsonl", "summary.json", "log.txt"}
    assert own <= set(names_of(job, 0))
    assert {"events/rank2.jsonl", "logs/rank2.txt", "logs/b.txt", "job/b.json", "hosts/*.jsonl"} == set(
        names_of(job, 1)
    )


@pytest.mark.parametrize(
    "name",
    [
        "../summary.json",
        "/etc/passwd",
        "hosts/../summary.json",
        "hosts/../../x.jsonl",
        "hosts/a/b.jsonl",
        "/hosts/a.jsonl",
        "recipe.toml",
        "events/rank0.jsonl",
        "",
    ],
)
def test_a_host_cannot_write_what_is_not_its_own(job, name):
    assert not is_expected(name, names_of(job, 1))


def test_a_host_may_write_its_own(job):
    for name in ("hosts/b.jsonl", "events/rank2.jsonl", "job/b.json"):
        assert is_expected(name, names_of(job, 1))


def look(folder: Path, marks: dict[str, Any], job_id: str = "none") -> list[tuple[Any, ...]]:
    """One look of a host whose runs are in `folder`: (name, offset, bytes) of each piece."""
    values = list(jobs.follow(str(folder), "r", job_id, ["log.txt"], ["summary.json"], marks, once=True))
    return [(*header.values(), content) for header, content in zip(values[::2], values[1::2], strict=True)]


def test_what_a_file_gained_is_sent_and_a_file_written_anew_is_sent_whole(tmp_path):
    run = tmp_path / "runs" / "r"
    run.mkdir(parents=True)
    log, marks = run / "log.txt", dict[str, Any]()
    log.write_bytes(b"one\n")
    assert look(tmp_path, marks) == [("log.txt", 0, b"one\n")]
    log.write_bytes(b"one\ntwo\n")
    assert look(tmp_path, marks) == [("log.txt", 4, b"two\n")]
    assert look(tmp_path, marks) == []
    # Shorter, and longer but with another beginning.
    log.write_bytes(b"new\n")
    assert look(tmp_path, marks) == [("log.txt", 0, b"new\n")]
    log.write_bytes(b"another\n")
    assert look(tmp_path, marks) == [("log.txt", 0, b"another\n")]
    (run / "summary.json").write_bytes(b"{}")
    assert look(tmp_path, marks) == [("summary.json", None, b"{}")]


def test_a_run_that_is_gone_is_refused(tmp_path):
    with pytest.raises(jobs.Refused, match="is gone"):
        look(tmp_path, {})


def test_the_processes_of_a_job_are_known_by_their_environment_and_ended_at_once(tmp_path):
    job_id = uuid.uuid4().hex
    # The second is a child of the first, which ignores SIGTERM.
    words = ["sh", "-c", "trap '' TERM; sleep 1000 & wait; wait"]
    with subprocess.Popen(words, env={**os.environ, "KONVOI_JOB": job_id}) as process:
        give_up_at = time.monotonic() + 60
        while len(jobs.alive(job_id)) < 2:
            assert time.monotonic() < give_up_at
        assert process.pid in jobs.alive(job_id)
        assert jobs.alive(job_id[:-1]) == []
        assert next(counts := jobs.stop(str(tmp_path), "r", job_id, now=True)) == 2
        assert set(counts) <= {1, 2}
        assert jobs.alive(job_id) == []


def start(folder: Path, program: Path, job_id: str, is_new: bool = True) -> int:
    member = {"name": "a"}
    spec = {"id": job_id, "members": [member], "node": 0, "environment": {"KONVOI_HOME": "~/x"}}
    return jobs.start(str(folder), "r", spec, "recipe", str(program), is_new)


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """Stands for Python: says with what it was called, then stays."""
    program = tmp_path / "agent"
    program.write_text('#!/bin/sh\necho "$@" "$KONVOI_HOME"\nexec sleep 1000\n')
    program.chmod(0o755)
    return program


# A host's far end leaves the agent to itself, on purpose.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_run_is_started_once(tmp_path, agent):
    job_id, run = uuid.uuid4().hex, tmp_path / "runs" / "r"
    process_id = start(tmp_path, agent, job_id)
    try:
        assert os.getsid(process_id) == process_id
        assert json.loads((run / "job/spec.json").read_text())["environment"]["KONVOI_HOME"] == str(
            Path("~/x").expanduser()
        )
        # A process that is just becoming another program shows no environment for a moment.
        wait_until(lambda: jobs.alive(job_id))
        with pytest.raises(jobs.Refused, match="right now"):
            start(tmp_path, agent, uuid.uuid4().hex)
    finally:
        list(jobs.stop(str(tmp_path), "r", job_id, now=True))
    os.waitpid(process_id, 0)
    assert (run / "logs/a.txt").read_text() in ("", f"-m konvoi node {run} {Path('~/x').expanduser()}\n")
    (run / "events" / "rank0.jsonl").touch()
    with pytest.raises(jobs.Refused, match="holds another run"):
        start(tmp_path, agent, job_id)


def test_the_folder_from_which_a_run_was_started_is_no_place_for_a_host(job, agent):
    run = job.run / "runs" / "r"
    Job(run, job.cluster, job.spec).run.mkdir(parents=True)
    Job(run, job.cluster, job.spec).save()
    with pytest.raises(jobs.Refused, match="where the run was started from"):
        start(job.run, agent, uuid.uuid4().hex)


def test_a_missing_environment_is_said_with_the_command_that_makes_it(tmp_path):
    with pytest.raises(jobs.Refused, match="konvoi cluster setup"):
        start(tmp_path, tmp_path / "venv/bin/python", uuid.uuid4().hex)


def test_the_first_failure_and_its_code_are_the_outcome(job):
    failure = Failure("b", 2, "error: no room")
    tell(job, "a", 1, failure)
    tell(job, "b", 2, failure)
    assert outcome(job) == Outcome(2, failure)


@pytest.mark.parametrize(("codes", "expected"), [((0, 0), 0), ((130, 130), 130), ((130, None), 130), ((0, None), 0)])
def test_without_a_failure_the_codes_tell(job, codes, expected):
    for host, code in zip(job.hosts, codes, strict=True):
        tell(job, host.name, code)
    assert outcome(job) == Outcome(expected)


def test_where_every_agent_was_killed_the_first_ones_last_words_are_told(job):
    tell(job, "a", None)
    host_log(job.run, "a").write_text("last words\n")
    assert outcome(job) == Outcome(1, Failure("a", None, "last words"))


def test_a_lost_host_is_given_up_only_when_all_others_have_ended(job):
    followers = Followers(job)
    first, second = followers.each
    second.lost_at = time.monotonic() - PATIENCE_SECONDS - 1
    assert not followers.have_ended
    first.has_ended = True
    assert followers.have_ended
    # Lost a moment ago, or not lost at all.
    second.lost_at = time.monotonic()
    assert not followers.have_ended
    second.lost_at = None
    assert not followers.have_ended
    # The laptop is offline: all are lost, and the training goes on.
    first.has_ended = False
    first.lost_at = second.lost_at = time.monotonic() - PATIENCE_SECONDS - 1
    assert not followers.have_ended


def test_the_problems_of_all_hosts_are_one_error():
    with pytest.raises(ClusterError, match="2 hosts have a problem\n  a: x\n  b: y"):
        raise_all({"a": HostError("a", "x"), "b": HostError("b", "y"), "c": 3})
    with pytest.raises(HostError, match="a: x"):
        raise_all({"a": HostError("a", "x"), "b": True})
    raise_all({"a": True})
