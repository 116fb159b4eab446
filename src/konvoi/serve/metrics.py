"""What the service counts, for Prometheus. Paths and names of models only: nothing of what users send."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter("konvoi_requests", "Requests answered.", ["path", "status"], registry=registry)
        asked = "From the head of a request to its end."
        self._seconds = Histogram("konvoi_request_seconds", asked, ["path"], buckets=SECONDS, registry=registry)
        together = "Sentences or pictures computed in one call."
        self._batches = Histogram("konvoi_batch_size", together, ["model"], buckets=SIZES, registry=registry)
        self._waiting = Gauge("konvoi_waiting", "Sentences or pictures in the queue.", ["model"], registry=registry)

    def answered(self, path: str, status: int, seconds: float) -> None:
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def batches_of(self, model: str) -> Callable[[float], None]:
        return self._batches.labels(model).observe

    def watch_queue(self, model: str, num_waiting: Callable[[], float]) -> None:
        self._waiting.labels(model).set_function(num_waiting)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)
