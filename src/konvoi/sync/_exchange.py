"""Averages over the workers that go on while a worker computes, in as many bytes as asked for."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, distributed

from konvoi.memory import share_memory_with_new_threads
from konvoi.sync._integers import BLOCK, INT2, INT4, INT8, Integers

Result = TypeVar("Result")
Wire = Literal["fp32", "fp16", "int8", "int4", "int2"]
Steps = Generator[Sequence[Any], None, Tensor]
"""Towards a tensor that others must help with: after each, messages are under way that the next one needs."""
INTEGERS = {"int8": INT8, "int4": INT4, "int2": INT2}

# Half precision loses what is below 6e-8: a difference of weights travels multiplied by this.
FP16_SCALE = 1024.0
# An idle thread ends at once; one whose exchange never ends is left to itself.
CLOSING_SECONDS = 1.0


class Exchanger:
    """Does what it is given on a thread of its own, one after another, such as exchanges: in the same order by all.

    A daemon: a worker that fails does not wait for an exchange that will never end. On a GPU it works on a stream of
    its own, behind what the training had begun by then; that was written, but not run on any so far.
    """

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stream = torch.cuda.Stream() if torch.cuda.is_available() else None  # type: ignore[no-untyped-call]
        # It makes tensors as large as a fragment, exchange after exchange.
        share_memory_with_new_threads()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, task: Callable[[], Result]) -> Future[Result]:
        """Once it has a result, every stream may use that."""
        future: Future[Result] = Future()
        begun = torch.cuda.current_stream().record_event() if self._stream else None

        def run() -> None:
            try:
                with torch.cuda.stream(self._stream):
                    if self._stream and begun:
                        self._stream.wait_event(begun)
                    result = task()
                    if self._stream:
                        self._stream.synchronize()
                future.set_result(result)
            except BaseException as error:
                future.set_exception(error)

        self._tasks.put(run)
        return future

    def close(self) -> None:
        self._tasks.put(None)
        # It holds the process group as long as it runs (Team.close).
        self._thread.join(CLOSING_SECONDS)

    def _work(self) -> None:
        with torch.no_grad():
            while task := self._tasks.get():
                task()
                # Else what it holds would stay until the next one.
                del task


def known(result: Result) -> Future[Result]:
    """As if a thread had just found it out."""
    future: Future[Result] = Future()
    future.set_result(result)
    return future


def together(averages: Sequence[Steps]) -> list[Tensor]:
    """One packs while another travels; all workers go on with them in the same order."""
    going = deque[tuple[int, Steps, Sequence[Any]]]((number, steps, ()) for number, steps in enumerate(averages))
    found: dict[int, Tensor] = {}
    while going:
        number, steps, messages = going.popleft()
        for message in messages:
            message.wait()
        try:
            going.append((number, steps, next(steps)))
        except StopIteration as ended:
            found[number] = ended.value
    return [found[number] for number in range(len(averages))]


def alone(steps: Steps) -> Tensor:
    return together([steps])[0]


class Averager:
    """The mean of a tensor over all workers, the same bits for each.

    What rounding cost is sent along next time, where the mean is of what was added: keeps_rest.
    """

    def __init__(self, num_values: int, num_workers: int, wire: Wire, group: Any, keeps_rest: bool = True) -> None:
        self.num_values, self.num_workers, self.wire, self.group = num_values, num_workers, wire, group
        self.keeps_rest = keeps_rest
        # Each worker adds up one share of all: whole blocks.
        self.share = -(-num_values // (BLOCK * num_workers)) * BLOCK
        self.residual: Tensor | None = None
        self.share_residual: Tensor | None = None

    def __call__(self, values: Tensor) -> Steps:
        """Of fp32, flat, which may be overwritten or returned; but it stays as it is where no rest is kept."""
        if self.num_workers == 1:
            return values if self.keeps_rest else values.clone()
        if self.wire in INTEGERS:
            return (yield from self._integers(values, INTEGERS[self.wire]))
        if not self.keeps_rest:
            values, self.residual = values.clone(), None
        return (yield from self._fp16(values) if self.wire == "fp16" else self._fp32(values))

    def exactly(self, values: Tensor) -> Steps:
        """In fp32, whatever the rest travels as."""
        return (yield from self._fp32(values)) if self.num_workers > 1 else values

    def tensors(self) -> dict[str, Tensor]:
        """What rounding cost so far; this worker's own."""
        named = {"residual": self.residual, "share_residual": self.share_residual}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.residual, self.share_residual = tensors.get("residual"), tensors.get("share_residual")

    def _fp32(self, values: Tensor) -> Steps:
        yield [distributed.all_reduce(values.div_(self.num_workers), group=self.group, async_op=True)]
        return values

    def _fp16(self, values: Tensor) -> Steps:
        values = values if self.residual is None else values.add_(self.residual)
        half = (values * (FP16_SCALE / self.num_workers)).to(torch.float16)
        self.residual = values - half.float() * (self.num_workers / FP16_SCALE)
        yield [distributed.all_reduce(half, group=self.group, async_op=True)]
        return half.float().div_(FP16_SCALE)

    def _integers(self, values: Tensor, integers: Integers) -> Steps:
        """Every worker gets its share from all, adds up, and sends the sum to all: as many bytes as a ring sends."""
        if self.residual is None or self.share_residual is None:
            self.residual, self.share_residual = (values.new_zeros(n * self.share) for n in (self.num_workers, 1))
        if self.keeps_rest:
            self.residual[: self.num_values] += values
        else:
            self.residual[: self.num_values] = values
            self.share_residual.zero_()
        sent = integers.pack(self.residual.view(self.num_workers, self.share))
        self.share_residual += integers.mean((yield from self._exchanged(sent)))
        packed_mean = integers.pack(self.share_residual.view(1, self.share)).view(-1)
        gathered = packed_mean.new_empty(self.num_workers * packed_mean.numel())
        yield [distributed.all_gather_single(gathered, packed_mean, group=self.group, async_op=True)]
        return integers.unpack(gathered.view(self.num_workers, -1)).view(-1)[: self.num_values]

    def _exchanged(self, rows: Tensor) -> Steps:
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
            yield distributed.batch_isend_irecv([receive, send])
        return received


def bytes_per_value(wire: Wire) -> float:
    return INTEGERS[wire].bytes_per_value if wire in INTEGERS else {"fp32": 4.0, "fp16": 2.0}[wire]


def passes(wire: Wire) -> float:
    """How often an average goes through all values, as processor time tells, besides what is added up on the way."""
    return {"fp32": 1.0, "fp16": 8.0, "int8": 13.0, "int4": 13.5, "int2": 14.0}[wire]
