"""Micro-batches read ahead by processes of their own, which write the pixels to memory that all share.

Tasks are parts of micro-batches. All processes take them from one socket, whoever is free, and answer on another;
each message is whole (SOCK_SEQPACKET), and only messages are copied, never pixels.
"""

from __future__ import annotations

import itertools
import os
import pickle
import socket
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from konvoi.errors import DataError, MachineError
from konvoi.image_input.augment import Pixels, View
from konvoi.image_input.batches import Damaged, Filled
from konvoi.image_input.decoding_process import Setup
from konvoi.image_input.plan import Indices, TrainPlan
from konvoi.image_input.slots import MAX_MESSAGE_BYTES, Answer, Slot, Task
from konvoi.images.image_set import ImageSet

# Several parts a process: none waits long for the slowest. Few enough that all messages fit into a socket's buffer.
PARTS_PER_PROCESS = 4
MIN_IMAGES_PER_PART = 8
LOOK_FOR_PROCESSES_SECONDS = 1.0
END_SECONDS = 5.0


@dataclass
class Job:
    """A micro-batch under way."""

    slot: int
    pixels: Pixels
    indices: Indices
    num_left: int
    """Parts that are still to come."""
    is_wanted: bool = True
    damaged: list[Damaged] = field(default_factory=list)
    error: DataError | None = None

    def take(self, answer: Answer) -> None:
        self.num_left -= 1
        if answer.filled is None:
            self.error = DataError(answer.problem, answer.hint)
            return
        indices, damaged = answer.filled
        self.indices[answer.first : answer.first + len(indices)] = indices
        self.damaged += damaged


class ReadAhead:
    """Serves any position, and meanwhile reads those that a rank will ask for next: stride positions apart."""

    def __init__(
        self,
        image_set: ImageSet,
        plan: TrainPlan,
        view_of: Callable[[int], View],
        seed: int,
        *,
        stride: int,
        num_processes: int,
        num_ahead: int,
    ) -> None:
        self.plan, self.view_of, self.stride, self.num_ahead = plan, view_of, stride, num_ahead
        # Those ahead, the one that is asked for, and the one before it, which may still be in use.
        self._slots = [Slot.new() for _ in range(num_ahead + 2)]
        self._free = list(range(len(self._slots)))
        self._given: deque[int] = deque()
        self._tickets = itertools.count()
        self._jobs: dict[int, Job] = {}
        self._under_way: dict[int, int] = {}
        self._start(image_set, seed, num_processes)

    def _start(self, image_set: ImageSet, seed: int, num_processes: int) -> None:
        self._tasks, their_tasks = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._answers, their_answers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._answers.settimeout(LOOK_FOR_PROCESSES_SECONDS)
        plan = self.plan
        setup = Setup(
            folder=str(image_set.folder.absolute()),
            num_images=plan.num_all_images,
            images_per_batch=plan.images_per_batch,
            plan_seed=plan.seed,
            seed=seed,
            parent=os.getpid(),
            tasks=their_tasks.fileno(),
            answers=their_answers.fileno(),
            slots=[slot.descriptor for slot in self._slots],
        )
        # Only this process may hold these ends, so that each side learns of the other's end.
        with their_tasks, their_answers:
            self._processes = [_process(setup) for _ in range(num_processes)]
        self._parts = PARTS_PER_PROCESS * num_processes
        sockets = [self._tasks, self._answers]
        self.close = weakref.finalize(self, _end, self._processes, sockets, self._slots, self._jobs)

    def get(self, position: int) -> tuple[Pixels, Filled]:
        """The pixels [N, size, size, RGB] stay as they are until the next get but one."""
        if len(self._given) == 2:
            self._free.append(self._given.popleft())
        wanted = [position + number * self.stride for number in range(1 + self.num_ahead)]
        self._abandon_all_but(wanted)
        for one in wanted:
            self._submit(one)
        job = self._jobs[self._under_way[position]]
        while job.num_left:
            self._receive()
        del self._jobs[self._under_way.pop(position)]
        self._given.append(job.slot)
        if job.error:
            raise job.error
        return job.pixels, Filled(job.indices, job.damaged)

    def _abandon_all_but(self, wanted: list[int]) -> None:
        """After a jump. What is under way cannot be called back, so its memory is free only when it is done."""
        for position in self._under_way.keys() - set(wanted):
            ticket = self._under_way.pop(position)
            self._jobs[ticket].is_wanted = False
            self._drop_if_done(ticket)

    def _submit(self, position: int) -> None:
        if position in self._under_way:
            return
        while not self._free:
            self._receive()
        view, num_images = self.view_of(self.plan.start(position)[0]), self.plan.num_images(position)
        ticket, slot = next(self._tickets), self._free.pop()
        images_per_part = max(MIN_IMAGES_PER_PART, -(-num_images // self._parts))
        starts = range(0, num_images, images_per_part)
        pixels = self._slots[slot].pixels(num_images, view.size)
        self._jobs[ticket] = Job(slot, pixels, np.empty(num_images, np.int64), len(starts))
        self._under_way[position] = ticket
        for first in starts:
            end = min(first + images_per_part, num_images)
            self._send(Task(ticket, position, view, slot, num_images, first, end))

    def _send(self, task: Task) -> None:
        try:
            self._tasks.sendall(pickle.dumps(task))
        except ConnectionError:
            raise self._ended() from None

    def _receive(self) -> None:
        """Waits for one answer."""
        try:
            message = self._answers.recv(MAX_MESSAGE_BYTES)
        except TimeoutError:
            if any(process.poll() is not None for process in self._processes):
                raise self._ended() from None
            return
        if not message:
            raise self._ended()
        answer: Answer = pickle.loads(message)
        self._jobs[answer.ticket].take(answer)
        self._drop_if_done(answer.ticket)

    def _drop_if_done(self, ticket: int) -> None:
        job = self._jobs[ticket]
        if not job.is_wanted and not job.num_left:
            self._free.append(job.slot)
            del self._jobs[ticket]

    def _ended(self) -> MachineError:
        self.close()
        codes = ", ".join(str(process.returncode) for process in self._processes)
        return MachineError(
            f"a process that decodes pictures ended (exit codes: {codes})",
            hint="most likely the memory ran out: use fewer processes or smaller batches",
        )


def _process(setup: Setup) -> subprocess.Popen[bytes]:
    """A fresh interpreter: a fork would take torch and its threads along, and multiprocessing the main module."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    descriptors = (setup.tasks, setup.answers, *setup.slots)
    # A process group of its own: Ctrl-C in a terminal goes to the parent alone.
    return subprocess.Popen(
        setup.command(), stdin=subprocess.DEVNULL, env=environment, pass_fds=descriptors, process_group=0
    )


def _end(
    processes: list[subprocess.Popen[bytes]], sockets: list[socket.socket], slots: list[Slot], jobs: dict[int, Job]
) -> None:
    for end in sockets:
        end.close()
    # They hold memory.
    jobs.clear()
    for slot in slots:
        slot.close()
    for process in processes:
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
