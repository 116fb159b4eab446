"""Trainings that are over in a moment, in this process or in several, for every test that needs a run directory."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from konvoi.config.recipe import Recipe, check
from konvoi.data.text import Pair, read_tsv_pairs
from konvoi.engine.setup import Run, build, close
from konvoi.engine.worker import work
from konvoi.fetch.sets import KNOWN_SETS
from konvoi.folder import write_json, write_whole
from konvoi.run_directory import RunDirectory
from konvoi.world import World

NUM_PAIRS = 1500
# Only against a hang: nothing here takes as long when all is well.
PATIENCE_SECONDS = 240

SMALL: dict[str, dict[str, Any]] = {
    "task": {"name": "translation", "source": "en", "target": "de"},
    "data": {"set": "own", "vocabulary_size": 600, "dev_pairs": 40, "test_pairs": 0},
    "model": {"size": "tiny", "width": 32, "ffn_width": 64, "heads": 2, "encoder_layers": 1, "decoder_layers": 1},
    "batching": {"max_tokens": 256},
    "optim": {"name": "adam", "clip_norm": 1.0},
    "schedule": {"name": "constant", "learning_rate": 0.003},
    "train": {"duration": "12 steps", "precision": "fp32", "threads": 1},
    "evaluate": {"every": "1000 steps", "metric": "loss", "beam": 1, "max_sentences": 4},
    "checkpoint": {"every": "5 steps", "keep": 10},
}


def write_corpus(folder: Path, pairs: list[Pair]) -> None:
    folder.mkdir(parents=True)
    for number, side in enumerate(("source", "target")):
        (folder / side).write_text("".join(f"{pair[number]}\n" for pair in pairs), encoding="utf-8")


class Trainings:
    """Makes runs of one small recipe over one small corpus, and trains them."""

    def __init__(self, folder: Path, pairs: list[Pair]) -> None:
        self.folder = folder
        self._numbers = itertools.count()
        write_corpus(folder / "corpus", pairs)

    def recipe(self, *overrides: str) -> Recipe:
        files = {f"train_{side}": str(self.folder / "corpus" / side) for side in ("source", "target")}
        return check({**SMALL, "data": {**SMALL["data"], **files}}, overrides)

    def new(self, *overrides: str) -> RunDirectory:
        path = self.folder / "runs" / str(next(self._numbers))
        return RunDirectory.create(path, self.recipe(*overrides))

    def change(self, run: RunDirectory, *overrides: str) -> None:
        """As konvoi train --resume --set does."""
        tables = run.recipe().model_dump(mode="json", exclude_none=True)
        write_whole(run.recipe_file, check(tables, overrides).to_toml())

    def killed_after(self, run: RunDirectory, step: int, *overrides: str) -> RunDirectory:
        """A copy as if the run had been killed later on, when this checkpoint was its last."""
        path = self.folder / "runs" / str(next(self._numbers))
        shutil.copytree(run.path, path)
        copy = RunDirectory.open(path)
        for folder in copy.checkpoints.glob("step-*"):
            if int(folder.name.removeprefix("step-")) > step:
                shutil.rmtree(folder)
        kept = sorted(folder.name for folder in copy.checkpoints.glob("step-*"))
        assert kept and kept[-1] == f"step-{step:08d}"
        write_json(copy.checkpoints / "index.json", {"last": kept, "best": []})
        self.change(copy, *overrides)
        return copy

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Our own data home; signal handlers, threads and environment are afterwards as before."""
        environment, threads = dict(os.environ), torch.get_num_threads()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        os.environ.update(self.environment())
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(environment)
            torch.set_num_threads(threads)
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def environment(self) -> dict[str, str]:
        return {"KONVOI_HOME": str(self.folder / "home"), "OMP_NUM_THREADS": "1"}

    def train(self, run: RunDirectory, resume: bool = False, checkpoint: str = "last") -> str:
        """Alone, in this process; returns how it ended."""
        with self.surroundings():
            return work(run.path, World(), resume, quiet=True, checkpoint=checkpoint)

    @contextmanager
    def built(self, run: RunDirectory, resume: bool = False, checkpoint: str = "last") -> Iterator[Run]:
        """Ready for its first step, in this process."""
        with self.surroundings():
            built = build(run, World(), resume, quiet=True, checkpoint=checkpoint)
            try:
                yield built
            finally:
                close(built)

    def trained(self, *overrides: str) -> RunDirectory:
        run = self.new(*overrides)
        assert self.train(run) == "finished"
        return run

    def train_together(self, run: RunDirectory, num_workers: int, resume: bool = False) -> list[int]:
        """A process for each worker; returns their exit codes."""
        return self.run_together(worker_program(run, resume), num_workers)

    def run_together(self, program: str, num_workers: int) -> list[int]:
        """The same for any program, with the variables that torchrun would set."""
        port = free_port()
        workers = [self._start(program, torchrun_variables(rank, num_workers, port)) for rank in range(num_workers)]
        return [ended(worker) for worker in workers]

    def start(self, run: RunDirectory) -> BaseProcess:
        """A worker alone in a process of its own, to send signals to."""
        return self._start(worker_program(run, resume=False))

    def launch(self, run: RunDirectory, num_workers: int, max_restarts: int = 0) -> BaseProcess:
        """Our agent in a process of its own, its workers in theirs."""
        call = f"launch_local(main, [{str(run.path)!r}, '--quiet'], {num_workers}, {max_restarts})"
        imports = "import sys; from konvoi.cluster.local import launch_local; from konvoi.engine.worker import main"
        return self._start(f"{imports}; sys.exit({call})")

    def _start(self, program: str, variables: dict[str, str] | None = None) -> BaseProcess:
        return start_process(program, {**self.environment(), **(variables or {})})


def start_process(program: str, environment: dict[str, str]) -> BaseProcess:
    """Forked from a server that has imported torch once: a fresh interpreter takes seconds for that."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["konvoi.engine.worker", "torch._dynamo", "konvoi.tasks.translation"])
    # The environment is the server's, of the time when it began.
    process = context.Process(target=exec, args=(f"import os; os.environ.update({environment!r}); {program}", {}))
    process.start()
    return process


def torchrun_variables(rank: int, num_workers: int, port: int) -> dict[str, str]:
    ranks = {"RANK": rank, "WORLD_SIZE": num_workers, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": num_workers}
    variables = {**ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    return {name: str(value) for name, value in variables.items()}


def worker_program(run: RunDirectory, resume: bool) -> str:
    """python -m konvoi.engine.worker RUN, as Python."""
    arguments = ["worker", str(run.path), "--quiet", *(["--resume"] if resume else [])]
    return f"import sys; sys.argv = {arguments!r}; from konvoi.engine.worker import main; sys.exit(main())"


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def ended(process: BaseProcess) -> int:
    """Its exit code."""
    process.join(PATIENCE_SECONDS)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join()
        pytest.fail("waited in vain for the end of a process")
    process.close()
    return code


def steps(run: RunDirectory, rank: int = 0) -> dict[int, dict[str, Any]]:
    """By number; one that was repeated after a resume as it went the last time."""
    return {event["step"]: event for event in run.events_of(rank) if event["kind"] == "step"}


def losses(run: RunDirectory, after: int = 0) -> dict[int, float]:
    return {step: event["loss"] for step, event in steps(run).items() if step > after}


def events(run: RunDirectory, kind: str) -> list[dict[str, Any]]:
    return [event for event in run.events_of() if event["kind"] == kind]


def checkpoint_steps(run: RunDirectory) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in run.checkpoints.glob("step-*"))


def tensors(run: RunDirectory, file: str = "model", step: int | None = None) -> dict[str, Tensor]:
    """Of a checkpoint, the last one unless told."""
    step = checkpoint_steps(run)[-1] if step is None else step
    return load_file(run.checkpoints / f"step-{step:08d}" / f"{file}.safetensors")


def same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and len(one) > 0 and all(torch.equal(one[name], other[name]) for name in one)


def assert_went_on_exactly(whole: RunDirectory, resumed: RunDirectory, after: int) -> None:
    """Bit for bit."""
    expected = losses(whole, after)
    assert len(expected) > 0
    assert losses(resumed, after) == expected
    for key in ("gradient_norm", "learning_rate", "target_tokens"):
        assert [event[key] for event in steps(resumed).values()] == [event[key] for event in steps(whole).values()]
    files = {path.stem for path in whole.checkpoints.glob("*/*.safetensors")}
    assert {"model", "optimizer"} <= files
    last = checkpoint_steps(whole)[-1]
    assert all(same_bits(tensors(whole, file, last), tensors(resumed, file, last)) for file in files)


def state(run: RunDirectory) -> dict[str, Any]:
    path = run.checkpoints / f"step-{checkpoint_steps(run)[-1]:08d}" / "state.json"
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def wait_until(is_so: Callable[[], bool], process: BaseProcess) -> None:
    """Until something is so that the process brings about."""
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        if not process.is_alive():
            pytest.fail(f"ended too early with {process.exitcode}")
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.02)


def workers_of(process: BaseProcess) -> list[int]:
    """Process ids of its children."""
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(number) for number in text.split()]


def is_alive(process_id: int) -> bool:
    try:
        state_letter = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state_letter != "Z"


@pytest.fixture(scope="session")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    pairs = list(itertools.islice(read_tsv_pairs(KNOWN_SETS["demo-en-de"].embedded_path), NUM_PAIRS))
    assert len(pairs) == NUM_PAIRS
    return Trainings(tmp_path_factory.mktemp("trainings"), pairs)
