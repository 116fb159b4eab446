"""konvoi train --cluster on real hosts: three workers on two of them, started from a third machine."""

from __future__ import annotations

import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hosts import Hosts, Machine

from konvoi.cluster.follow import SILENCE_SECONDS
from konvoi.cluster.job import Job
from konvoi.run_directory import RunDirectory

# Only against a hang: nothing here takes as long when all is well.
PATIENCE_SECONDS = 120
WORKERS = {"h0": 2, "h1": 1}
# Names that would do harm if a shell saw them unquoted.
RECIPE_NAME, RUN_NAME = "tiny 'quoted'; touch harm.toml", 'a run; $(touch harm) "b"'
ENDLESS = ("--set", 'train.duration="100000 steps"', "--set", 'evaluate.every="100000 steps"')
# As it ends when nobody may go on; tests/faults has the rest.
ENDLESS += ("--set", "faults.max_restarts=0")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with Hosts(2, tmp_path_factory.mktemp("hosts")) as hosts:
        addresses = {host.name: host.address for host in hosts}
        hosts.write(
            hosts=[{"name": n, "ssh": n, "address": addresses[n], "workers": count} for n, count in WORKERS.items()]
        )
        yield hosts


@pytest.fixture(scope="module")
def recipe(hosts: Hosts, tiny_recipe: Path) -> Path:
    path = hosts.laptop.home / RECIPE_NAME
    path.write_bytes(tiny_recipe.read_bytes())
    return path


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """On any host, after each test; what follows a run has its second to see that nobody listens."""
    yield
    if "hosts" in request.fixturenames:
        hosts: Hosts = request.getfixturevalue("hosts")
        wait_until(lambda: not any(host.process_ids() for host in hosts))


def wait_until(is_so: Callable[[], Any]) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.1)


def start(hosts: Hosts, *words: object) -> subprocess.Popen[str]:
    """konvoi train WORDS --cluster on the laptop."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return hosts.launcher(["train", *map(str, words), "--cluster", hosts.file], **pipes)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Its exit code, what it printed, what it complained of."""
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, output, errors


def num_steps(run: Path) -> int:
    return max((event["step"] for event in RunDirectory(run).events_of() if event["kind"] == "step"), default=0)


def losses(run: Path) -> list[float]:
    by_step = {event["step"]: event["loss"] for event in RunDirectory(run).events_of() if event["kind"] == "step"}
    return [by_step[step] for step in sorted(by_step)]


@pytest.fixture(scope="module")
def training(hosts: Hosts, recipe: Path) -> tuple[Path, str, str]:
    """A run of 20 steps to its end, and what was said."""
    run = hosts.laptop.home / RUN_NAME
    code, output, errors = finish(start(hosts, recipe, "--run", run))
    assert code == 0, output + errors
    return run, output, errors


def test_the_losses_are_those_of_one_host_with_as_many_workers(hosts, recipe, training):
    alone = hosts.laptop.home / "alone"
    # 2 + 1 workers
    hosts.konvoi("train", recipe, "--run", alone, "--workers", "3", "--quiet")
    assert len(losses(alone)) == 20
    assert losses(training[0]) == losses(alone)


def test_the_run_is_here_as_if_it_had_been_trained_here(hosts, training):
    path, output, errors = training
    run = RunDirectory.open(path)
    assert run.summary()["status"] == "finished"
    assert (run.summary()["hosts"], run.summary()["workers"], run.recipe().train.workers) == (2, 3, 3)
    assert {file.name for file in run.events.iterdir()} == {f"rank{rank}.jsonl" for rank in range(3)}
    assert {file.name for file in run.hosts.iterdir()} == {"h0.jsonl", "h1.jsonl"}
    assert list(run.tensorboard.iterdir())
    assert "evaluation" in run.log_file.read_text()
    # The same words as a local training says, and its progress.
    assert "time per step" in output
    assert "step 20  evaluation: loss" in errors
    translated = hosts.konvoi("translate", path, "Good morning.")
    assert len(translated.stdout.splitlines()) == 1


def test_names_with_quotes_and_semicolons_do_no_harm(hosts, training):
    for machine in (*hosts, hosts.laptop):
        assert not list(machine.home.rglob("harm")), machine.name
    assert (hosts[0].home / "konvoi" / "runs" / RUN_NAME / "summary.json").is_file()


def test_pull_brings_the_other_checkpoints(hosts, training):
    run = RunDirectory.open(training[0])
    there = hosts[0].home / "konvoi" / "runs" / RUN_NAME / "checkpoints"
    best = run.summary()["best"]["checkpoint"]
    assert {path.name for path in run.checkpoints.glob("step-*")} == {best}
    hosts.konvoi("cluster", "pull", run.path)
    assert {path.name for path in run.checkpoints.glob("step-*")} == {path.name for path in there.glob("step-*")}
    for file in there.rglob("*.safetensors"):
        assert (run.checkpoints / file.relative_to(there)).read_bytes() == file.read_bytes()


def test_a_finished_run_is_attached_to_and_stopped_in_vain(hosts, training):
    attached = hosts.konvoi("attach", training[0])
    assert "time per step" in attached.stdout
    assert "had ended before" in hosts.konvoi("stop", training[0]).stdout


@pytest.fixture
def endless(hosts: Hosts, recipe: Path, tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A training that would take hours and has taken its first steps, and the command that follows it."""
    # The hosts know it by this name.
    run = tmp_path / tmp_path.name
    process = start(hosts, recipe, "--run", run, *ENDLESS)
    try:
        wait_until(lambda: num_steps(run) >= 2 or process.poll() is not None)
        assert process.poll() is None, finish(process)
        yield run, process
    finally:
        process.kill()
        process.wait()
        Job.open(run).stop(now=True)


def test_a_run_outlives_its_starter_and_is_attached_to_stopped_and_resumed(hosts, recipe, endless):
    run, process = endless
    process.kill()
    finish(process)
    attached = hosts.launcher(["attach", run], stderr=subprocess.PIPE, text=True)
    before = num_steps(run)
    wait_until(lambda: num_steps(run) > before)
    # Another command that follows it would write the same files.
    second = hosts.konvoi("attach", run, check=False)
    assert (second.returncode, "is followed already" in second.stderr) == (2, True)
    attached.send_signal(signal.SIGINT)
    assert "the training goes on" in attached.communicate(timeout=PATIENCE_SECONDS)[1]
    assert attached.returncode == 0
    again = hosts.konvoi("train", recipe, "--run", run, "--resume", "--cluster", hosts.file, *ENDLESS, check=False)
    assert again.returncode == 2
    assert "right now" in again.stderr
    assert all(host.process_ids() for host in hosts)

    assert f"no process of {run} is left" in hosts.konvoi("stop", run).stdout
    assert not any(host.process_ids() for host in hosts)
    assert RunDirectory(run).summary()["status"] == "interrupted"
    stopped_after = num_steps(run)

    longer = (*ENDLESS, "--set", f'train.duration="{stopped_after + 2} steps"')
    hosts.konvoi("train", recipe, "--run", run, "--resume", "--cluster", hosts.file, *longer)
    assert len(losses(run)) == stopped_after + 2
    restarts = [event["step"] for event in RunDirectory(run).events_of() if event["kind"] == "restart"]
    assert restarts == [stopped_after]


def test_ctrl_c_ends_it_everywhere_in_good_order(hosts, endless):
    run, process = endless
    process.send_signal(signal.SIGINT)
    code, _, errors = finish(process)
    assert code == 130, errors
    assert "stopping on 2 hosts; again to end at once" in errors
    last_line = shlex.split(errors.splitlines()[-1])
    assert last_line[:4] == ["interrupted;", "to", "go", "on:"]
    assert {"--resume", "--cluster", str(hosts.file)} <= set(last_line)
    assert RunDirectory(run).summary()["status"] == "interrupted"
    assert list((hosts[0].home / "konvoi" / "runs" / run.name / "checkpoints").glob("step-*"))


def test_a_killed_worker_ends_all_and_is_named(hosts, endless):
    run, process = endless
    # Rank 2 is the only one of h1; numbers as h1 sees them.
    started = next(event for event in RunDirectory(run).events_of(2) if event["kind"] == "started")
    hosts[1].run(["kill", "-KILL", str(started["process_id"])])
    code, _, errors = finish(process)
    assert code == 1
    assert [line for line in errors.splitlines() if "error: " in line] == [
        "error: h1 rank 2: was ended by SIGKILL; the system does that when memory runs out"
    ]
    assert str(run / "logs" / "rank2.txt") in errors
    assert RunDirectory(run).summary()["status"] == "failed"


def trains(host: Machine) -> bool:
    """Not merely tells of a training, as the far end of a cut connection does for minutes."""
    words = [Path(f"/proc/{process_id}/cmdline").read_bytes().split(b"\0") for process_id in host.process_ids()]
    return any(b"node" in each for each in words)


def test_a_link_that_is_cut_for_good_is_named_and_all_hosts_end(hosts, endless):
    run, process = endless
    hosts[1].cut()
    try:
        code, _, errors = finish(process)
        # On its own, since nobody can tell it.
        wait_until(lambda: not trains(hosts[1]))
        assert not hosts[0].process_ids()
    finally:
        hosts[1].mend()
    assert code == 1, errors
    lines = errors.splitlines()
    assert f"h1: no answer for {SILENCE_SECONDS} s; the training goes on there, trying again" in lines
    assert [line[:32] for line in lines if line.startswith("error: ")] == ["error: h1: is gone: no word for "]
    assert f"whether it has ended there, konvoi stop {run} tells" in errors
    assert RunDirectory(run).summary()["status"] == "failed"


def test_a_detached_training_is_at_work_when_the_command_returns(hosts, recipe, tmp_path):
    run = tmp_path / "detached"
    code, _, errors = finish(start(hosts, recipe, "--run", run, "--detach", *ENDLESS))
    assert code == 0, errors
    for verb in ("attach", "stop", "watch"):
        assert f"konvoi {verb} {run}" in errors
    # An agent on each host, and the workers: 2 and 1.
    assert [len(host.process_ids()) >= 1 + WORKERS[host.name] for host in hosts] == [True, True]
    assert f"no process of {run} is left" in hosts.konvoi("stop", run, "--now").stdout
    assert not any(host.process_ids() for host in hosts)


def test_a_host_that_cannot_start_leaves_nothing_on_the_others_nor_here(hosts, recipe, tmp_path):
    run = tmp_path / "new"
    taken = hosts[1].home / "konvoi" / "runs" / "new" / "events"
    taken.mkdir(parents=True)
    (taken / "rank0.jsonl").write_text("{}\n")
    code, _, errors = finish(start(hosts, recipe, "--run", run))
    assert code == 2
    assert "error: h1: " in errors
    assert "holds another run" in errors
    assert not run.exists()


def test_a_command_on_all_hosts_names_each_and_ends_with_the_worst_code(hosts):
    # The second argument has to arrive as one word.
    program = 'echo "$1"; echo complaint >&2; test "$(hostname)" = h0 || exit 7'
    words = ("cluster", "exec", "--cluster", hosts.file, "--", "sh", "-c", program, "sh", "two  blanks; 'x'")
    done = hosts.konvoi(*words, check=False)
    assert done.returncode == 7
    assert sorted(done.stdout.splitlines()) == ["h0 | two  blanks; 'x'", "h1 | two  blanks; 'x'"]
    assert sorted(done.stderr.splitlines()) == ["h0 | complaint", "h1 | complaint"]
    only = hosts.konvoi("cluster", "exec", "--cluster", hosts.file, "--on", "0", "--", "hostname")
    assert only.stdout == "h0 | h0\n"


def test_a_shell_on_a_host_by_its_number(hosts):
    shell = hosts.launcher(
        ["cluster", "ssh", "1", "--cluster", hosts.file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert shell.communicate("hostname\n", timeout=PATIENCE_SECONDS)[0].splitlines()[-1] == "h1"
