"""One replica of the training that engines.py disturbs, under torchrun or torchft.

    torchrun ... engine_worker.py torchrun OUT HOST STEPS

OUT/h<host>.jsonl gets a line for each start and step, OUT/h<host>.sha256 the weights' digest at the end.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from konvoi.models.transformer import Config, Model

NUM_PIECES, NUM_SENTENCES, LENGTH = 600, 8, 16
CHECKPOINT_EVERY, LOCAL_STEPS = 10, 10
# A step of a tiny model takes a few milliseconds: without a pause the run would be over before a host is back.
PAUSE_SECONDS = 0.2
# A collective that takes longer has failed; torch's own limit is 30 minutes.
COLLECTIVE_TIME = timedelta(seconds=5)


class Training:
    """The model and its optimiser, alike on all replicas at the start."""

    def __init__(self, out: Path, host: int) -> None:
        torch.manual_seed(1)
        torch.set_num_threads(1)
        self.out, self.host = out, host
        shape = Config(size="tiny", width=32, ffn_width=64, heads=2, encoder_layers=1, decoder_layers=1)
        self.model = Model(shape, NUM_PIECES)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.tell("started", process=os.getpid())

    def backward(self, model: Callable[..., torch.Tensor]) -> None:
        time.sleep(PAUSE_SECONDS)
        pieces = torch.randint(4, NUM_PIECES, (NUM_SENTENCES, LENGTH))
        model(pieces, pieces.flip(1)).logsumexp(dim=-1).mean().backward()

    def tell(self, kind: str, **more: int) -> None:
        with (self.out / f"h{self.host}.jsonl").open("a") as file:
            file.write(json.dumps({"kind": kind, "time": time.time(), **more}) + "\n")

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def finish(self) -> None:
        digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in self.model.parameters()))
        (self.out / f"h{self.host}.sha256").write_text(digest.hexdigest())


def under_torchrun(training: Training, num_steps: int) -> None:
    distributed.init_process_group("gloo")
    step = _newest_of_all(training)
    model = torch.nn.parallel.DistributedDataParallel(training.model)
    while step < num_steps:
        training.optimizer.zero_grad()
        training.backward(model)
        training.optimizer.step()
        step += 1
        training.tell("step", step=step)
        if step % CHECKPOINT_EVERY == 0:
            _save(training, step)
    training.finish()


def _newest_of_all(training: Training) -> int:
    """Each host has checkpoints of its own: all take the newest of any."""
    file = training.out / f"h{training.host}.pt"
    own = torch.load(file) if file.exists() else {"step": 0, **training.state()}
    steps: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(steps, own["step"])
    loaded = [own]
    distributed.broadcast_object_list(loaded, src=steps.index(max(steps)))
    training.load(loaded[0])
    return int(loaded[0]["step"])


def _save(training: Training, step: int) -> None:
    file = training.out / f"h{training.host}.pt"
    torch.save({"step": step, **training.state()}, file.with_suffix(".new"))
    file.with_suffix(".new").rename(file)


def under_torchft(training: Training, num_steps: int, lighthouse: str) -> None:
    """Without its DistributedDataParallel, which ends a survivor with an AssertionError when gloo fails (0.2.0)."""
    manager = _manager(training, lighthouse, use_async_quorum=True)
    while manager.current_step() < num_steps:
        manager.start_quorum()
        training.optimizer.zero_grad()
        training.backward(training.model)
        gradients = [p.grad for p in training.model.parameters() if p.grad is not None]
        flat = torch._utils._flatten_dense_tensors(gradients)
        manager.allreduce(flat).wait()
        for gradient, mean in zip(gradients, torch._utils._unflatten_dense_tensors(flat, gradients), strict=True):
            gradient.copy_(mean)
        # Otherwise an exchange has failed, and the step is given up.
        if manager.should_commit():
            training.optimizer.step()
            training.tell("step", step=manager.current_step())
    training.finish()
    manager.shutdown(wait=False)


def under_torchft_diloco(training: Training, num_steps: int, lighthouse: str) -> None:
    from torchft.local_sgd import DiLoCo

    manager = _manager(training, lighthouse, use_async_quorum=False)
    outer = torch.optim.SGD(training.model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    with DiLoCo(manager, [training.model], training.optimizer, outer, sync_every=LOCAL_STEPS):
        for step in itertools.count(1):
            training.optimizer.zero_grad()
            training.backward(training.model)
            training.optimizer.step()
            training.tell("step", step=step)
            if manager.current_step() * LOCAL_STEPS >= num_steps:
                break
    training.finish()
    manager.shutdown(wait=False)


def _manager(training: Training, lighthouse: str, use_async_quorum: bool) -> Any:
    from torchft import Manager, ProcessGroupGloo

    # A replica is one worker here: its store is its own. Our host's name is its address (engines.py).
    store = TCPStore(socket.gethostname(), 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=COLLECTIVE_TIME),
        load_state_dict=training.load,
        state_dict=training.state,
        min_replica_size=1,
        use_async_quorum=use_async_quorum,
        timeout=COLLECTIVE_TIME,
        rank=0,
        world_size=1,
        store_addr=socket.gethostname(),
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=f"h{training.host}",
        hostname=socket.gethostname(),
        # Otherwise the first question that its lighthouse does not answer ends a replica.
        quorum_retries=1000,
    )
    manager.own_store = store
    return manager


def train(engine: str, out: Path, host: int, num_steps: int, *lighthouse: str) -> None:
    run = {"torchrun": under_torchrun, "torchft": under_torchft, "torchft-diloco": under_torchft_diloco}[engine]
    run(Training(out, host), num_steps, *lighthouse)


if __name__ == "__main__":
    engine, out, host, num_steps = sys.argv[1:]
    train(engine, Path(out), int(host), int(num_steps))
