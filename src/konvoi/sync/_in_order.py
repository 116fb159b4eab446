"""Exchanges of several messages each, one after another: for DDP's buckets, which would get in each other's way.

All workers must begin the collectives of a group in the same order. A message that is sent when another has arrived
would be sent sooner on one worker than on the next, before or after the next bucket's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.futures import Future

from konvoi.sync._exchange import Exchanger


class InOrder:
    """On a GPU the work is put in order on a stream of its own; that was written, but not run on any so far."""

    def __init__(self) -> None:
        self._exchanger = Exchanger()
        self._stream: torch.cuda.Stream | None = None

    def __call__(
        self, exchange: Callable[[], Tensor], device: torch.device, ended: Callable[[], None]
    ) -> Future[Tensor]:
        """What DDP waits for, with the result."""
        done: Future[Tensor] = Future(devices=[device] if device.type == "cuda" else [])
        ready = self._mark(device)

        def run() -> None:
            try:
                with torch.cuda.stream(self._stream):
                    if self._stream and ready:
                        self._stream.wait_event(ready)
                    result = exchange()
                    ended()
                    done.set_result(result)
            except Exception as error:
                done.set_exception(error)  # type: ignore[arg-type]

        self._exchanger.submit(run)
        # DDP itself would take an error for a result.
        return done.then(lambda future: future.value())

    def _mark(self, device: torch.device) -> torch.cuda.Event | None:
        """When the gradients are there."""
        if device.type != "cuda":
            return None
        self._stream = self._stream or torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        ready: torch.cuda.Event = torch.cuda.current_stream(device).record_event()
        return ready

    def close(self) -> None:
        self._exchanger.close()
