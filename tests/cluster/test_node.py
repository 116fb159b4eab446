"""A training over several hosts, as the hosts see it: here each is an address of loopback with a run directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest
from tests import processes
from tests.processes import (
    Trainings,
    checkpoint_steps,
    ended,
    free_port,
    is_alive,
    losses,
    same_bits,
    start_process,
    steps,
    tensors,
    wait_until,
)

from konvoi.cluster.job_spec import Failure, HostState, JobSpec, Member, rank_log, spec_file, state_file
from konvoi.exit_codes import DONE, INTERRUPTED, OUR_FAULT, USER
from konvoi.folder import write_whole

# The fixture, as in tests/engine.
trainings = processes.trainings

LONG = (
    "train.duration=100000 steps",
    "train.mode=train",
    "checkpoint.every=100000 steps",
    "faults.max_restarts=0",
)


class Hosts:
    """h1, h2, ... on 127.0.0.1, 127.0.0.2, ..., with so many workers each."""

    def __init__(self, trainings: Trainings, workers: tuple[int, ...], *overrides: str) -> None:
        self.trainings = trainings
        self.members = tuple(Member(f"h{n}", f"127.0.0.{n}", "lo", count) for n, count in enumerate(workers, start=1))
        self.runs = [trainings.new(f"train.workers={sum(workers)}", *overrides) for _ in workers]
        self.agents: list[BaseProcess] = []
        self.seen: dict[int, psutil.Process] = {}

    def write_specs(self, resume: bool = False) -> None:
        spec = JobSpec(uuid.uuid4().hex, self.members, 0, free_port(), resume, environment=self.trainings.environment())
        for node, run in enumerate(self.runs):
            spec_file(run.path).parent.mkdir(exist_ok=True)
            write_whole(spec_file(run.path), replace(spec, node=node).to_json())

    def start(self, resume: bool = False) -> None:
        self.write_specs(resume)
        program = (
            "import sys; from pathlib import Path; from konvoi.commands.node import node; sys.exit(node(Path({!r})))"
        )
        self.agents = [start_process(program.format(str(run.path)), {}) for run in self.runs]

    def start_and_train(self, num_steps: int = 3) -> None:
        """Until the last worker of all has made so many steps."""
        self.start()
        last_rank = sum(member.workers for member in self.members) - 1
        wait_until(lambda: len(steps(self.runs[-1], last_rank)) >= num_steps, self.agents[-1])
        self.seen = {process.pid: process for process in self.processes()}

    def processes(self) -> list[psutil.Process]:
        """The agents and all below them."""
        agents = [psutil.Process(agent.pid) for agent in self.agents]
        return [process for agent in agents for process in (agent, *agent.children(recursive=True))]

    def worker(self, node: int) -> psutil.Process:
        return psutil.Process(self.agents[node].pid).children()[-1]

    def exit_codes(self) -> list[int]:
        """Once all have ended; nothing of them may be left then."""
        codes = [ended(agent) for agent in self.agents]
        assert len(self.seen) == 0 or len(self.seen) >= sum(1 + member.workers for member in self.members)
        assert not [process_id for process_id in self.seen if is_alive(process_id)]
        return codes

    def state(self, node: int) -> HostState:
        return HostState.from_json(state_file(self.runs[node].path, self.members[node].name).read_text())

    def failures(self) -> list[Failure | None]:
        return [self.state(node).failure for node in range(len(self.members))]


def test_hosts_train_exactly_what_as_many_workers_of_one_host_do(trainings: Trainings) -> None:
    settings = ("train.duration=8 steps", "evaluate.every=4 steps")
    alone = trainings.new(*settings)
    assert trainings.train_together(alone, 3) == [DONE] * 3
    hosts = Hosts(trainings, (2, 1), *settings)
    hosts.write_specs()
    command = [sys.executable, "-m", "konvoi", "node"]
    environment = {**os.environ, "KONVOI_HOME": "/nonexistent: the spec tells another"}
    agents = [subprocess.Popen([*command, str(run.path)], env=environment) for run in hosts.runs]
    assert [agent.wait(timeout=120) for agent in agents] == [DONE, DONE]

    first, second = hosts.runs
    assert len(losses(alone)) == 8
    assert losses(first) == losses(alone)
    assert same_bits(tensors(first), tensors(alone))
    # 2 + 1 workers
    assert (first.summary()["status"], first.summary()["hosts"], first.summary()["workers"]) == ("finished", 2, 3)
    # ddp's ring leaves each host with one of its workers; alone, nothing does.
    sent = first.summary()["bytes_sent_per_step"]
    assert first.summary()["bytes_out_per_host_and_step"] == pytest.approx(sent) and sent > 0
    assert alone.summary()["bytes_out_per_host_and_step"] == 0
    assert first.environment()["workers"] == 3
    assert [list(steps(first, rank)) for rank in (0, 1)] == [list(steps(second, 2))] * 2
    # Every host keeps all: it may be the only one that is left.
    assert same_bits(tensors(second), tensors(first))
    assert second.summary()["status"] == "finished"
    for node, agent in enumerate(agents):
        state = hosts.state(node)
        assert (state.state, state.exit_code, state.failure, state.process_id) == ("ended", DONE, None, agent.pid)
    assert "step 1  loss" in first.log_file.read_text()
    # Nobody had anything to say besides.
    assert [rank_log(hosts.runs[rank // 2].path, rank).read_text() for rank in range(3)] == [""] * 3


def test_a_stop_on_one_host_ends_all_in_good_order_and_all_go_on_from_the_checkpoint(
    trainings: Trainings,
) -> None:
    hosts = Hosts(trainings, (1, 1, 1), *LONG)
    hosts.start_and_train()
    assert {hosts.state(node).state for node in range(3)} == {"running"}
    addresses = {
        connection.laddr.ip
        for process in hosts.seen.values()
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    # The store, and gloo, which binds to the interface.
    assert "127.0.0.1" in addresses and all(address.startswith("127.0.0.") for address in addresses)

    os.kill(hosts.agents[1].pid or 0, signal.SIGTERM)
    assert hosts.exit_codes() == [INTERRUPTED] * 3
    assert hosts.failures() == [None] * 3
    last = hosts.runs[0].summary()["steps"]
    assert hosts.runs[0].summary()["status"] == "interrupted"
    assert [checkpoint_steps(run) for run in hosts.runs] == [[last]] * 3
    assert [max(steps(run, rank)) for rank, run in enumerate(hosts.runs)] == [last] * 3

    for run in hosts.runs:
        trainings.change(run, f"train.duration={last + 3} steps")
    hosts.start(resume=True)
    assert hosts.exit_codes() == [DONE] * 3
    whole = trainings.new(*LONG, f"train.duration={last + 3} steps")
    assert trainings.train_together(whole, 3) == [DONE] * 3
    assert losses(hosts.runs[0]) == losses(whole)


def kill_a_worker(hosts: Hosts) -> None:
    hosts.worker(1).kill()


def kill_an_agent(hosts: Hosts) -> None:
    hosts.agents[1].kill()


def kill_the_first_agent(hosts: Hosts) -> None:
    hosts.agents[0].kill()


KILLED = (
    (kill_a_worker, "h2", 2, "was ended by SIGKILL; the system does that when memory runs out"),
    # Its host answers for it, or its silence tells.
    (kill_an_agent, "h2", None, "is gone: "),
    (kill_the_first_agent, "h1", None, "is gone: its connection is closed"),
)


@pytest.mark.parametrize(("kill", "host", "rank", "text"), KILLED, ids=[kill.__name__ for kill, *_ in KILLED])
def test_whoever_is_killed_all_hosts_end_and_name_it(
    trainings: Trainings, kill: Callable[[Hosts], None], host: str, rank: int | None, text: str
) -> None:
    hosts = Hosts(trainings, (2, 1, 1), *LONG)
    hosts.start_and_train()
    kill(hosts)
    codes = hosts.exit_codes()
    killed = int(host.removeprefix("h")) - 1
    assert codes[2] == OUR_FAULT
    for node in range(3):
        if codes[node] == -signal.SIGKILL:
            # It could not say so itself.
            assert node == killed and hosts.state(node).state == "running"
            continue
        failure = hosts.state(node).failure
        assert failure and (failure.host, failure.rank) == (host, rank)
        assert text in failure.text
        assert hosts.state(node).exit_code == codes[node] == OUR_FAULT
    assert (rank is None) == (-signal.SIGKILL in codes)
    if kill is not kill_the_first_agent:
        assert hosts.runs[0].summary()["status"] == "failed"


def test_an_error_of_the_user_on_one_rank_is_the_message_of_all(trainings: Trainings) -> None:
    hosts = Hosts(trainings, (1, 2), *LONG)
    trainings.change(hosts.runs[1], "train.accumulate=1000")
    hosts.start()
    assert hosts.exit_codes() == [USER, USER]
    failure = hosts.state(0).failure
    assert failure and failure.host == "h2" and failure.rank in (1, 2)
    assert failure.text.startswith("error: an epoch has ")
    assert "\nhint: use fewer --workers" in failure.text
    assert hosts.failures() == [failure, failure]


def test_the_end_of_a_traceback_is_the_message_where_it_is_our_fault(trainings: Trainings) -> None:
    hosts = Hosts(trainings, (1, 1), *LONG)
    (hosts.runs[1].events / "rank1.jsonl").mkdir()
    hosts.start()
    assert hosts.exit_codes() == [OUR_FAULT, OUR_FAULT]
    failure = hosts.state(0).failure
    assert failure and (failure.host, failure.rank) == ("h2", 1)
    assert "IsADirectoryError" in failure.text.splitlines()[-1]
    assert len(failure.text.splitlines()) <= 8
    assert hosts.failures() == [failure, failure]


def test_a_host_without_the_data_ends_it_before_any_worker_starts(trainings: Trainings, tmp_path: Path) -> None:
    hosts = Hosts(trainings, (1, 1), *LONG)
    trainings.change(hosts.runs[1], f"data.train_source={tmp_path / 'missing'}")
    hosts.start()
    assert hosts.exit_codes() == [USER, USER]
    failure = hosts.state(0).failure
    assert failure and (failure.host, failure.rank) == ("h2", None)
    assert "missing" in failure.text and "hint: konvoi cluster setup --recipe" in failure.text
    assert not any(rank_log(run.path, rank).exists() for rank, run in enumerate(hosts.runs))


def test_a_host_with_other_data_is_found_before_any_worker_starts(trainings: Trainings) -> None:
    hosts = Hosts(trainings, (1, 1), *LONG)
    trainings.change(hosts.runs[1], "data.dev_pairs=39")
    hosts.start()
    assert hosts.exit_codes() == [USER, USER]
    failure = hosts.state(0).failure
    assert failure and failure.host == "h2" and "has other data than h1" in failure.text


def test_a_run_that_is_being_trained_is_left_alone(trainings: Trainings) -> None:
    hosts = Hosts(trainings, (1,), *LONG)
    hosts.write_specs()
    command = [sys.executable, "-m", "konvoi", "node", str(hosts.runs[0].path)]
    with hosts.runs[0].locked():
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == USER
    assert "is being trained right now" in result.stderr
    assert not state_file(hosts.runs[0].path, "h1").exists()


def test_a_folder_without_a_job_says_so(trainings: Trainings, konvoi: Callable[..., object]) -> None:
    result: object = konvoi("node", trainings.new().path)
    assert getattr(result, "exit_code", None) == USER
    assert "spec.json cannot be read" in getattr(result, "stderr", "")
