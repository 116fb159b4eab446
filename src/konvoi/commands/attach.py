"""konvoi attach: follows a training that goes on elsewhere, on the hosts of a cluster or in the background here."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shlex
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import typer
from rich.console import Console as RichConsole

from konvoi import exit_codes
from konvoi.analysis.diagnosis import diagnose
from konvoi.cluster.follow import Followers, bring_words_of, catch_up, following
from konvoi.cluster.hosts import DEFAULT_FILE
from konvoi.cluster.job import Job, cluster_file, log_of, outcome, speaker
from konvoi.cluster.job_spec import Outcome, host_log, rank_log
from konvoi.cluster.session import Session
from konvoi.cluster.transfer import pull
from konvoi.commands.detach import LocalJob, further_commands
from konvoi.commands.output import progress_display
from konvoi.commands.train import Request, train_and_close
from konvoi.errors import HostError, RunError
from konvoi.run_directory import RunDirectory
from konvoi.telemetry.console import Console
from konvoi.telemetry.units import SPEEDS
from konvoi.watch.live import LiveRun
from konvoi.watch.tail import Tail

LOOK_SECONDS = 0.3
NUM_LINES_BEFORE = 3
# When a rank fails, all others soon complain of the lost connection: by then it is known who was the first.
HOLD_SECONDS = 2.0
TIME_WIDTH = len("2026-11-15 20:45:12 ")
PROGRESS_LINE = re.compile(r"step [\d,]+  loss .* s/step")


class FollowedError(RunError):
    """Another process brings the files here."""


@dataclass(frozen=True)
class ClusterRequest(Request):
    cluster: Path = DEFAULT_FILE

    def resume_command(self, run: RunDirectory) -> str:
        return f"{super().resume_command(run)} {shlex.join(['--cluster', str(self.cluster)])}"


def attach(path: Path) -> int:
    """Returns what the training ended with; Ctrl-C leaves it alone."""
    run = RunDirectory.open(path)
    if local := LocalJob.of(path):
        return _attach_here(run, local)
    job = Job.open(path)
    with mirrored(run):
        ending = follow(job, View(run, printed_by(job), skip_old=True), CtrlC.leave)
    return close(job, ending, ClusterRequest(str(run.recipe_file), [], path, cluster=cluster_file(path)))


def close(job: Job, ending: Outcome | None, request: Request) -> int:
    """What there is to say after the training, or after leaving it."""
    if ending is None:
        typer.echo(f"the training goes on\n{further_commands(job.run)}", err=True)
        return exit_codes.DONE
    return train_and_close(RunDirectory.open(job.run), request, lambda: _tell(job, ending))


def bring_rest(job: Job) -> dict[str, HostError]:
    """What the hosts have written and is not here; whoever follows the run does that already."""
    with contextlib.suppress(FollowedError), mirrored(RunDirectory(job.run)):
        return catch_up(job)
    return {}


@contextlib.contextmanager
def mirrored(run: RunDirectory) -> Iterator[None]:
    """One at a time brings files here; while it does, the run counts as going on."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(run.locked())
        except RunError:
            hint = f"konvoi watch {run.path} shows it here too"
            raise FollowedError(f"{run.path} is followed already", hint) from None
        yield


def printed_by(job: Job) -> dict[Path, str]:
    """The files of what workers and agents print, and whose each is."""
    agents = {host_log(job.run, host.name): host.name for host in job.hosts}
    return agents | {rank_log(job.run, rank): job.name_of_rank(rank) for rank in range(job.spec.num_workers)}


class View:
    """What a local training would show, from the files of its run: a bar or lines, and what else was printed."""

    def __init__(
        self, run: RunDirectory, printed: dict[Path, str], quiet: bool = False, skip_old: bool = False
    ) -> None:
        # The run's own log has these lines already.
        self._console = Console(Path(os.devnull), is_first=True, quiet=quiet)
        self._log = Tail(run.log_file)
        self._printed = {name: Tail(file) for file, name in printed.items()}
        self._held: deque[tuple[float, str]] = deque()
        self._live = LiveRun(run.path, diagnose) if RichConsole(stderr=True).is_terminal and not quiet else None
        self._has_bar = False
        if skip_old:
            self._skip()

    def say(self, line: str) -> None:
        self._console.say(line)

    def refresh(self) -> None:
        for line in self._log.lines():
            text = _text(line)[TIME_WIDTH:]
            if not (self._live and PROGRESS_LINE.match(text)):
                self.say(text)
        now = time.monotonic()
        for name, tail in self._printed.items():
            self._held.extend((now, f"{name} | {_text(line)}") for line in tail.lines())
        while self._held and now - self._held[0][0] > HOLD_SECONDS:
            self.say(self._held.popleft()[1])
        if self._live:
            self._move_bar(self._live)

    def close(self, has_failed: bool) -> None:
        """Who failed says why in a message of its own."""
        if not has_failed:
            for _, line in self._held:
                self.say(line)
        self._console.close()

    def _skip(self) -> None:
        for line in deque(self._log.lines(), NUM_LINES_BEFORE):
            self.say(_text(line)[TIME_WIDTH:])
        for tail in self._printed.values():
            deque(tail.lines(), 0)

    def _move_bar(self, live: LiveRun) -> None:
        view = live.refresh()
        if not len(view.run.steps):
            return
        done = 100 * (view.progress.share or 0.0)
        if not self._has_bar:
            self._has_bar = True
            self._console.start_bar(100, done)
        last = view.run.steps.last(1)
        values = {key: float(last[key][0]) for key in ("loss", *SPEEDS) if last.has(key)}
        self._console.step({"step": view.progress.step, "loss": float("nan"), **values}, done, line_due=False)


class CtrlC:
    """Counts Ctrl-C instead of raising in the midst of something, and acts at the next look."""

    def __init__(self, job: Job, view: View) -> None:
        self.job, self.view = job, view
        self.count = self._acted = 0
        self.has_left = self.has_stopped = False
        self._not_stopped: queue.Queue[HostError] = queue.Queue()

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        def add(number: int, frame: FrameType | None) -> None:
            self.count += 1

        before = signal.signal(signal.SIGINT, add)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def act(self, react: Callable[[CtrlC], None]) -> None:
        while self._acted < self.count:
            self._acted += 1
            react(self)
        while not self._not_stopped.empty():
            self.view.say(f"not stopped: {self._not_stopped.get().problem}")

    def leave(self) -> None:
        self.has_left = True

    def stop(self) -> None:
        """First in good order, then at once; whoever still asks is let go."""
        num_hosts = len(self.job.hosts)
        self.has_stopped = True
        if self._acted == 1:
            self.view.say(f"stopping on {num_hosts} hosts; again to end at once")
        elif self._acted == 2:
            self.view.say(f"ending every process on {num_hosts} hosts")
        else:
            self.has_left = True
            return
        threading.Thread(target=self._stop, args=(self._acted == 2,), daemon=True).start()

    def _stop(self, now: bool) -> None:
        for problem in self.job.stop(now).values():
            if isinstance(problem, HostError):
                self._not_stopped.put(problem)


def follow(
    job: Job, view: View, on_ctrl_c: Callable[[CtrlC], None], is_enough: Callable[[], bool] = lambda: False
) -> Outcome | None:
    """Until the job has ended on all hosts; None where it goes on and we do not."""
    ctrl_c, told_lost = CtrlC(job, view), set[str]()
    with following(job) as followers, ctrl_c.counted():
        while not followers.have_ended:
            followers.check()
            _end_stragglers(job, followers)
            view.refresh()
            _tell_lost(view, followers, told_lost)
            ctrl_c.act(on_ctrl_c)
            if ctrl_c.has_left or is_enough():
                view.close(has_failed=False)
                return None
            time.sleep(LOOK_SECONDS)
        followers.check()
        view.refresh()
        problems = followers.problems()
    ending = Outcome(exit_codes.INTERRUPTED) if ctrl_c.has_stopped else outcome(job)
    if (host := speaker(job)) is not job.hosts[0]:
        bring_words_of(job, host)
    view.close(has_failed=bool(ending.failure))
    for problem in problems.values():
        typer.echo(f"{problem.problem}; whether it has ended there, konvoi stop {job.run} tells", err=True)
    return ending


def _end_stragglers(job: Job, followers: Followers) -> None:
    """A host that came back after the others had finished waits for them in vain."""
    left = [one for one in followers.each if not one.has_ended]
    states = job.states()
    is_done = any(state and state.exit_code == exit_codes.DONE for state in states.values())
    if (
        is_done
        and left
        and all(not one.problem and (state := states[one.host.name]) and state.state == "waiting" for one in left)
    ):
        job.stop(now=True)


def _tell_lost(view: View, followers: Followers, told: set[str]) -> None:
    """Once when a host is lost, once when it is back."""
    problems = followers.problems()
    for name in problems.keys() - told:
        view.say(f"{problems[name].problem}; the training goes on there, trying again")
    for name in told - problems.keys():
        view.say(f"{name}: connected again")
    told.clear()
    told.update(problems)


def _tell(job: Job, ending: Outcome) -> int:
    """The first failure in its own words, or the best checkpoint brought here; returns the exit code."""
    if ending.failure:
        failure = ending.failure
        who = failure.host if failure.rank is None else job.name_of_rank(failure.rank)
        words = failure.text.strip().removeprefix("error: ").removeprefix(f"{failure.host}: ")
        typer.echo(f"error: {who}: {words}", err=True)
        typer.echo(f"all that it printed is in {log_of(job, failure)}", err=True)
    elif ending.exit_code == exit_codes.DONE:
        _pull_best(job)
    return ending.exit_code


def _pull_best(job: Job) -> None:
    """So that the trained model can be used here."""
    run = RunDirectory(job.run)
    name = (run.summary().get("best") or {}).get("checkpoint")
    if not name:
        return
    first = speaker(job)
    folder = f"{job.cluster.folder}/runs/{job.place['run']}/checkpoints/{name}"
    try:
        with Session(job.cluster, first) as session, progress_display() as report:
            pull(session, folder, run.checkpoints / name, report=report, stage=f"fetching {name}")
    except HostError as error:
        typer.echo(f"{error.problem}; the best checkpoint stays there: konvoi cluster pull {job.run}", err=True)
        return
    typer.echo(f"brought {name}, the best, from {first.name}; for all: konvoi cluster pull {job.run}", err=True)


def _attach_here(run: RunDirectory, local: LocalJob) -> int:
    # Raises where it is trained elsewhere, before the view opens anything.
    local.process_ids()
    try:
        _show_until_its_end(run, local)
    except KeyboardInterrupt:
        typer.echo(f"the training goes on\n{further_commands(run.path)}", err=True)
        return exit_codes.DONE
    # Without its progress: what it ended with.
    typer.echo(local.log.read_text(encoding="utf-8", errors="replace"), nl=False)
    codes = {"finished": exit_codes.DONE, "interrupted": exit_codes.INTERRUPTED}
    return codes.get(run.summary().get("status", ""), exit_codes.OUR_FAULT)


def _show_until_its_end(run: RunDirectory, local: LocalJob) -> None:
    view = View(run, {}, skip_old=True)
    try:
        while local.is_alive():
            view.refresh()
            time.sleep(LOOK_SECONDS)
        view.refresh()
    finally:
        view.close(has_failed=False)


def _text(line: bytes) -> str:
    return line.decode("utf-8", errors="replace").rstrip("\r\n")
