"""konvoi worker under mpirun and torchrun, for real; under Slurm by the variables that srun would set.

mpirun is started on the laptop, which is none of the hosts, and reaches them by ssh. Each host's home is its own, so
run directories are too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.hosts import Hosts, Machine, wait_until
from tests.processes import losses, steps

from konvoi.run_directory import RunDirectory

PATIENCE_SECONDS = 180
SHORT = ("--set", 'train.duration="6 steps"', "--set", 'evaluate.every="6 steps"', "--quiet")
LONG = ("--set", 'train.duration="5000 steps"', "--set", 'evaluate.every="5000 steps"', "--quiet")
KONVOI = (sys.executable, "-m", "konvoi")
# Workers are started in a folder that is the same on all hosts; at home they have directories of their own.
AT_HOME = ("sh", "-c", 'cd && exec "$0" "$@"', *KONVOI, "worker")
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node")

needs_mpirun = pytest.mark.skipif(not shutil.which("mpirun"), reason="needs mpirun (Debian: openmpi-bin)")
Expected = Callable[[int], dict[int, float]]


@pytest.fixture(scope="module")
def expected(tiny_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Expected:
    """The losses of konvoi train --workers N."""
    folder, known = tmp_path_factory.mktemp("expected"), {}

    def of(num_workers: int) -> dict[int, float]:
        run = folder / str(num_workers)
        if num_workers not in known:
            words = [*KONVOI, "train", str(tiny_recipe), "--run", str(run), "--workers", str(num_workers), *SHORT]
            subprocess.run(words, check=True, timeout=PATIENCE_SECONDS, stdout=subprocess.DEVNULL)
            known[num_workers] = losses(RunDirectory.open(run))
            assert len(known[num_workers]) == 6
        return known[num_workers]

    return of


@contextmanager
def started(words: Any, machine: Machine | None = None, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A program, here or on a host; it does not outlive the test."""
    start = machine.start if machine else subprocess.Popen
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with start([str(word) for word in words], **streams, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    stdout, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    return subprocess.CompletedProcess([], process.returncode, stdout, stderr)


def mpirun(hosts: Hosts, slots: str, *words: object) -> Any:
    """On the laptop: mpirun -H h0:2,h1:1 konvoi worker WORDS, each worker at home."""
    return started([*MPIRUN, "-H", slots, *AT_HOME, *words], hosts.laptop)


def run_of(host: Machine, name: str) -> RunDirectory:
    return RunDirectory(host.home / "runs" / name)


def konvoi_process_ids(host: Machine) -> list[int]:
    """Of its workers."""
    ids = host.process_ids()
    return [one for one in ids if b"konvoi\0worker" in Path(f"/proc/{one}/cmdline").read_bytes()]


def test_alone_it_names_the_launchers(konvoi: Any, tiny_recipe: Path) -> None:
    result = konvoi("worker", tiny_recipe)
    assert result.exit_code == 2
    assert "no launcher has started this one" in result.stderr
    for words in ("mpirun -n 4", "srun konvoi worker", "torchrun --nproc-per-node", "konvoi train RECIPE --workers"):
        assert words in result.stderr


@needs_mpirun
def test_mpirun_on_one_machine_trains_as_konvoi_train(tiny_recipe: Path, tmp_path: Path, expected: Expected) -> None:
    run = RunDirectory(tmp_path / "run")
    with started([*MPIRUN, "-n", 2, *KONVOI, "worker", tiny_recipe, "--run", run.path, *SHORT]) as process:
        result = ended(process)
    assert result.returncode == 0, result.stderr
    assert losses(run) == expected(2)
    # The first worker's closing lines, once.
    assert result.stdout.count("time in all") == 1
    assert run.recipe().train.workers == 2
    assert run.summary()["status"] == "finished"
    assert run.environment()["workers"] == 2


def test_torchrun_on_one_machine_trains_as_konvoi_train(tiny_recipe: Path, tmp_path: Path, expected: Expected) -> None:
    run = RunDirectory(tmp_path / "run")
    # The -- keeps torchrun from taking --run for an abbreviation of its own --run-path.
    words = [*TORCHRUN, 2, "--no-python", "--", *KONVOI, "worker", tiny_recipe, "--run", run.path, *SHORT]
    with started(words) as process:
        result = ended(process)
    assert result.returncode == 0, result.stderr
    assert losses(run) == expected(2)
    assert result.stdout.count("time in all") == 1


@needs_mpirun
def test_mpirun_over_two_hosts_trains_as_one_machine(two_hosts: Hosts, tiny_recipe: Path, expected: Expected) -> None:
    # 2 + 1 = 3 workers, started by a machine that is none of the hosts
    with mpirun(two_hosts, "h0:2,h1:1", tiny_recipe, "--run", "runs/mpi", *SHORT) as process:
        result = ended(process)
    assert result.returncode == 0, result.stderr
    first, second = (run_of(host, "mpi") for host in two_hosts)
    assert losses(first) == expected(3)
    assert (first.summary()["hosts"], first.summary()["workers"]) == (2, 3)
    # Without a shared disk, every host has the events of its own workers and the checkpoints, the first all else.
    assert {path.name for path in first.events.iterdir()} == {"rank0.jsonl", "rank1.jsonl"}
    assert {path.name for path in second.events.iterdir()} == {"rank2.jsonl"}
    saved = [sorted(path.name for path in run.checkpoints.glob("step-*")) for run in (first, second)]
    assert saved[0] == saved[1] != []
    assert not any(host.process_ids() for host in two_hosts)


@needs_mpirun
def test_the_first_rank_may_be_on_any_host_and_the_disk_shared(
    two_hosts: Hosts, tiny_recipe: Path, expected: Expected, tmp_path: Path
) -> None:
    run = RunDirectory(tmp_path / "run")
    words = [*MPIRUN, "-H", "h1:1,h0:1", *KONVOI, "worker", tiny_recipe, "--run", run.path, *SHORT]
    with started(words, two_hosts.laptop) as process:
        result = ended(process)
    assert result.returncode == 0, result.stderr
    assert run.environment()["host"] == "h1"
    assert losses(run) == expected(2)
    assert {path.name for path in run.events.iterdir()} == {"rank0.jsonl", "rank1.jsonl"}


def torchrun_words(hosts: Hosts, number: int, words: tuple[object, ...]) -> list[object]:
    place = ["--master-addr", hosts[0].address, "--master-port", 29_500]
    return [*TORCHRUN, 1, "--nnodes", 2, "--node-rank", number, *place, "--no-python", "--", *AT_HOME, *words]


@pytest.mark.long
def test_torchrun_on_two_hosts_trains_as_one_machine(two_hosts: Hosts, tiny_recipe: Path, expected: Expected) -> None:
    words = (tiny_recipe, "--run", "runs/torchrun", *SHORT)
    with (
        started(torchrun_words(two_hosts, 0, words), two_hosts[0]) as first,
        started(torchrun_words(two_hosts, 1, words), two_hosts[1]) as second,
    ):
        results = [ended(first), ended(second)]
    assert [result.returncode for result in results] == [0, 0], results
    assert losses(run_of(two_hosts[0], "torchrun")) == expected(2)
    assert run_of(two_hosts[0], "torchrun").summary()["hosts"] == 2


def srun_variables(number: int) -> dict[str, str]:
    """As srun --nodes 2 --ntasks-per-node 1 sets them; the job has more tasks than this step of it."""
    job = {"SLURM_JOB_ID": "812", "SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_JOB_NODELIST": "h[0-1]"}
    step = {"ID": "3", "NUM_TASKS": "2", "NUM_NODES": "2", "TASKS_PER_NODE": "1(x2)", "NODELIST": "h[0-1]"}
    own = {"SLURM_PROCID": str(number), "SLURM_LOCALID": "0", "SLURM_NODEID": str(number)}
    return {**job, **{f"SLURM_STEP_{name}": value for name, value in step.items()}, **own}


@pytest.mark.long
def test_slurms_variables_are_enough_for_two_hosts(two_hosts: Hosts, tiny_recipe: Path, expected: Expected) -> None:
    words = [*AT_HOME, tiny_recipe, "--run", "runs/slurm", *SHORT]
    with (
        started(words, two_hosts[0], env=srun_variables(0)) as first,
        started(words, two_hosts[1], env=srun_variables(1)) as second,
    ):
        results = [ended(first), ended(second)]
    assert [result.returncode for result in results] == [0, 0], results
    assert losses(run_of(two_hosts[0], "slurm")) == expected(2)
    assert "time in all" in results[0].stdout
    assert results[1].stdout == ""


def test_a_name_that_is_loopback_at_home_is_refused(two_hosts: Hosts, tiny_recipe: Path) -> None:
    host = two_hosts[0]
    before = host.hosts_file.read_text()
    # As Debian's installer writes it.
    host.hosts_file.write_text(f"127.0.1.1 {host.name}\n{before}")
    try:
        with started([*AT_HOME, tiny_recipe, *SHORT], host, env=srun_variables(0)) as process:
            result = ended(process)
    finally:
        host.hosts_file.write_text(before)
    assert result.returncode == 2
    assert "error: h0: h0 is loopback here (127.0.1.1), where no other host arrives" in result.stderr
    assert "MASTER_ADDR" in result.stderr


def test_a_first_rank_elsewhere_than_its_address_is_told_so(two_hosts: Hosts, tiny_recipe: Path) -> None:
    # As srun --distribution=arbitrary may have it: the first rank is not on the first node.
    with started([*AT_HOME, tiny_recipe, *SHORT], two_hosts[1], env=srun_variables(0)) as process:
        result = ended(process)
    assert result.returncode == 2
    assert "error: h1: the first worker runs here and is to be met at h0, which is no address of" in result.stderr


@needs_mpirun
def test_an_error_is_told_once_and_ends_all(tiny_recipe: Path, trained_run: Path) -> None:
    with started([*MPIRUN, "-n", 2, *KONVOI, "worker", tiny_recipe, "--run", trained_run]) as process:
        result = ended(process)
    assert result.returncode == 2
    assert result.stderr.count("error: ") == 1
    assert f"error: {trained_run} holds another run" in result.stderr
    # Nor does torch show its own stack to those whose store is gone with the first worker.
    assert not re.search("Traceback|frame #", result.stderr)


@contextmanager
def shortened(files: tuple[Path, ...], host: Machine) -> Iterator[None]:
    """On this host alone, the files have 1,500 lines."""
    for file in files:
        (host.home / file.name).write_text("".join(file.read_text().splitlines(keepends=True)[:1500]))
        host.run(["mount", "--bind", host.home / file.name, file])
    try:
        yield
    finally:
        for file in files:
            host.run(["umount", file])


@needs_mpirun
def test_other_data_on_one_host_is_refused_with_its_name(
    two_hosts: Hosts, tiny_recipe: Path, corpus: tuple[Path, Path]
) -> None:
    words = (tiny_recipe, "--run", "runs/other", *SHORT)
    with shortened(corpus, two_hosts[1]), mpirun(two_hosts, "h0:1,h1:1", *words) as process:
        result = ended(process)
    assert result.returncode == 2
    assert "error: h1: the training data is not the same as on the first worker's host" in result.stderr
    assert result.stderr.count("error: ") == 1
    wait_until(lambda: not any(host.process_ids() for host in two_hosts), "something was left behind")


@needs_mpirun
def test_nothing_is_open_to_the_world_and_nothing_outlives_a_killed_worker(two_hosts: Hosts, tiny_recipe: Path) -> None:
    with mpirun(two_hosts, "h0:1,h1:1", tiny_recipe, "--run", "runs/killed", *LONG) as process:
        wait_until(lambda: process.poll() is not None or steps(run_of(two_hosts[0], "killed")), "no step was made")
        for host in two_hosts:
            listening = [line for line in host.run(["ss", "-ltnpH"]).splitlines() if '"python' in line]
            addresses = {line.split()[3].rpartition(":")[0] for line in listening}
            assert addresses == {host.address}
        for process_id in konvoi_process_ids(two_hosts[1]):
            os.kill(process_id, signal.SIGKILL)
        result = ended(process)
    assert result.returncode != 0
    wait_until(lambda: not any(host.process_ids() for host in two_hosts), "something was left behind")
    assert "please report" not in result.stderr


@pytest.mark.long
@needs_mpirun
def test_a_training_that_is_interrupted_goes_on(two_hosts: Hosts, tiny_recipe: Path) -> None:
    first, second = (run_of(host, "interrupted") for host in two_hosts)
    words = ("h0:1,h1:1", tiny_recipe, "--run", "runs/interrupted")
    with mpirun(two_hosts, *words, *LONG) as process:
        wait_until(lambda: process.poll() is not None or steps(first), "no step was made")
        process.send_signal(signal.SIGINT)
        result = ended(process)
    assert result.returncode != 0
    assert "interrupted; to go on: the same command with --run runs/interrupted --resume" in result.stderr
    assert first.summary()["status"] == "interrupted"
    step = first.summary()["steps"]
    # Only the first host has the checkpoint.
    with mpirun(two_hosts, *words, "--resume", *LONG, "--set", f'train.duration="{step + 2} steps"') as process:
        result = ended(process)
    assert result.returncode == 0, result.stderr
    assert max(steps(first)) == max(steps(second, rank=1)) == step + 2
    assert json.loads((first.checkpoints / f"step-{step + 2:08d}" / "state.json").read_text())
