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
    def __init__(self) -> None:
        self._exchanger = Exchanger("exchange")

    def __call__(
        self, exchange: Callable[[], Tensor], device: torch.device, ended: Callable[[], None]
    ) -> Future[Tensor]:
        """What DDP waits for, with the result."""
        done: Future[Tensor] = Future(devices=[device] if device.type == "cuda" else [])

        def run() -> None:
            try:
                result = exchange()
                ended()
                done.set_result(result)
            except Exception as error:
                done.set_exception(error)  # type: ignore[arg-type]

        self._exchanger.submit(run)
        # DDP itself would take an error for a result.
        return done.then(lambda future: future.value())

    def close(self) -> None:
        self._exchanger.close()
