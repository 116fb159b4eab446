"""Averages over the workers that go on while a worker computes, in as many bytes as asked for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, distributed

Result = TypeVar("Result")
Wire = Literal["fp32", "fp16", "int8"]

# One scale for so many values: 4 bytes in 1,024 are 0.4 %.
INT8_BLOCK = 1024
# Half precision loses what is below 6e-8: a difference of weights travels multiplied by this.
FP16_SCALE = 1024.0


class Exchanger:
    """Does what it is given on a thread of its own, one after another: all workers exchange in the same order.

    A daemon: a worker that fails does not wait for an exchange that will never end.
    """

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="exchange", daemon=True).start()

    def submit(self, task: Callable[[], Result]) -> Future[Result]:
        future: Future[Result] = Future()

        def run() -> None:
            try:
                future.set_result(task())
            except BaseException as error:
                future.set_exception(error)

        self._tasks.put(run)
        return future

    def close(self) -> None:
        self._tasks.put(None)

    def _work(self) -> None:
        with torch.no_grad():
            while task := self._tasks.get():
                task()


class Averager:
    """The mean of a tensor over all workers, the same bits for each; what rounding cost is sent along next time."""

    def __init__(self, num_values: int, num_workers: int, wire: Wire, group: Any) -> None:
        self.num_values, self.num_workers, self.wire, self.group = num_values, num_workers, wire, group
        block = INT8_BLOCK * num_workers
        # Each worker adds up one share of all.
        self.share = -(-num_values // block) * INT8_BLOCK
        self.residual: Tensor | None = None
        self.share_residual: Tensor | None = None

    def __call__(self, values: Tensor) -> Tensor:
        """values is overwritten or returned; fp32, flat."""
        if self.num_workers == 1:
            return values
        return {"fp32": self._fp32, "fp16": self._fp16, "int8": self._int8}[self.wire](values)

    def exactly(self, values: Tensor) -> Tensor:
        """In fp32, whatever the rest travels as."""
        return self._fp32(values) if self.num_workers > 1 else values

    def tensors(self) -> dict[str, Tensor]:
        """What rounding cost so far; this worker's own."""
        named = {"residual": self.residual, "share_residual": self.share_residual}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def load(self, tensors: dict[str, Tensor], device: torch.device) -> None:
        self.residual, self.share_residual = (
            tensors[name].to(device) if name in tensors else None for name in ("residual", "share_residual")
        )

    def _fp32(self, values: Tensor) -> Tensor:
        distributed.all_reduce(values.div_(self.num_workers), group=self.group)
        return values

    def _fp16(self, values: Tensor) -> Tensor:
        values = values if self.residual is None else values.add_(self.residual)
        half = (values * (FP16_SCALE / self.num_workers)).to(torch.float16)
        self.residual = values - half.float() * (self.num_workers / FP16_SCALE)
        distributed.all_reduce(half, group=self.group)
        return half.float().div_(FP16_SCALE)

    def _int8(self, values: Tensor) -> Tensor:
        """Every worker gets its share from all, adds up, and sends the sum to all: as many bytes as a ring sends."""
        padded = values.new_empty(self.num_workers * self.share)
        padded[: self.num_values] = values
        padded[self.num_values :] = 0
        if self.residual is not None:
            padded += self.residual
        sent = pack(padded.view(self.num_workers, self.share))
        self.residual = padded.sub_(unpack(sent).view(-1))
        mean = unpack(self._exchanged(sent)).mean(dim=0)
        if self.share_residual is not None:
            mean += self.share_residual
        packed_mean = pack(mean.view(1, -1))
        self.share_residual = mean.sub_(unpack(packed_mean).view(-1))
        gathered = packed_mean.new_empty(self.num_workers * packed_mean.numel())
        distributed.all_gather_single(gathered, packed_mean.view(-1), group=self.group)
        return unpack(gathered.view(self.num_workers, -1)).view(-1)[: self.num_values]

    def _exchanged(self, rows: Tensor) -> Tensor:
        """Each row goes to its worker; from every worker comes one.

        In turns, in which everyone sends to one and receives from one. gloo's all_to_all sends to all at once: several
        streams meet at every link, and at 100 Mbit that took longer (docs/network.md).
        """
        received = torch.empty_like(rows)
        rank, count = distributed.get_rank(self.group), self.num_workers
        received[rank] = rows[rank]
        for distance in range(1, count):
            to, source = (rank + distance) % count, (rank - distance) % count
            receive = distributed.P2POp(distributed.irecv, received[source], group=self.group, group_peer=source)
            send = distributed.P2POp(distributed.isend, rows[to], group=self.group, group_peer=to)
            for work in distributed.batch_isend_irecv([receive, send]):
                work.wait()
        return received


def pack(rows: Tensor) -> Tensor:
    """Each row as its integers of -127 to 127, a whole number of blocks, and then the bytes of the blocks' scales."""
    blocks = rows.view(len(rows), -1, INT8_BLOCK)
    scales = blocks.abs().amax(dim=2).div_(127)
    # A block of zeros has no scale, and any will do.
    integers = blocks.div(scales.clamp(min=1e-30).unsqueeze(2)).round_().to(torch.int8)
    return torch.cat([integers.view(len(rows), -1), scales.view(torch.int8)], dim=1)


def unpack(packed: Tensor) -> Tensor:
    num_blocks = packed.shape[1] // (INT8_BLOCK + 4)
    integers, scales = packed[:, : num_blocks * INT8_BLOCK], packed[:, num_blocks * INT8_BLOCK :]
    # Floats first: integers times floats take four times as long on a processor.
    blocks = integers.float().view(len(packed), num_blocks, INT8_BLOCK)
    return blocks.mul_(scales.contiguous().view(torch.float32).unsqueeze(2)).view(len(packed), -1)


def bytes_per_value(wire: Wire) -> float:
    return {"fp32": 4.0, "fp16": 2.0, "int8": 1 + 4 / INT8_BLOCK}[wire]


def passes(wire: Wire) -> float:
    """How often an average goes through all values, besides what is added up on the way."""
    return {"fp32": 1.0, "fp16": 8.0, "int8": 15.0}[wire]
