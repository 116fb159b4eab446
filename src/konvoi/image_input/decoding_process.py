"""python -m konvoi.image_input.decoding_process: takes tasks from a socket and writes pixels to shared memory.

It imports no torch, and ends when its parent does.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from konvoi.errors import DataError
from konvoi.image_input.batches import BatchFiller
from konvoi.image_input.plan import TrainPlan
from konvoi.image_input.slots import MAX_MESSAGE_BYTES, Answer, Slot, Task
from konvoi.images.image_set import ImageSet

LOOK_FOR_PARENT_SECONDS = 1.0
# Training goes first where both want a core: what is read ahead is not urgent.
NICENESS = 5


@dataclass(frozen=True)
class Setup:
    """All that a process needs to know; goes through the command line."""

    folder: str
    num_images: int
    images_per_batch: int
    plan_seed: int
    seed: int
    parent: int
    tasks: int
    """The descriptor of the socket that all processes take tasks from."""
    answers: int
    slots: list[int]

    def command(self) -> list[str]:
        # -P: what lies in the current folder must not pass for a library.
        return [sys.executable, "-P", "-m", __spec__.name, json.dumps(asdict(self))]


def main() -> None:
    # Ctrl-C is the parent's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    setup = Setup(**json.loads(sys.argv[1]))
    plan = TrainPlan(setup.num_images, setup.images_per_batch, setup.plan_seed)
    filler = BatchFiller(ImageSet.open(Path(setup.folder)), plan, setup.seed)
    slots = [Slot(descriptor) for descriptor in setup.slots]
    with socket.socket(fileno=setup.tasks) as tasks, socket.socket(fileno=setup.answers) as answers:
        tasks.settimeout(LOOK_FOR_PARENT_SECONDS)
        while message := _receive(tasks, setup.parent):
            answer = _work(filler, slots, pickle.loads(message))
            try:
                answers.sendall(pickle.dumps(answer))
            except ConnectionError:
                return


def _receive(tasks: socket.socket, parent: int) -> bytes:
    """The next task; nothing once the parent is gone. A process that it forked may keep the socket open after it."""
    while os.getppid() == parent:
        try:
            return tasks.recv(MAX_MESSAGE_BYTES)
        except TimeoutError:
            continue
    return b""


def _work(filler: BatchFiller, slots: list[Slot], task: Task) -> Answer:
    pixels_NHWC = slots[task.slot].pixels(task.num_images, task.view.size)
    part = pixels_NHWC[task.first : task.end]
    try:
        return Answer(task.ticket, task.first, filler.fill(part, task.position, task.view, task.first))
    except DataError as error:
        return Answer(task.ticket, task.first, None, error.problem, error.hint)


if __name__ == "__main__":
    main()
