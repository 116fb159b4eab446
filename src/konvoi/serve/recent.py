"""The latest answers of a model: who types on sends the sentences before over and over."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic

from konvoi.serve.batching import Batcher, Options, Result

MAX_ANSWERS = 256


class Recent(Generic[Options, Result]):
    """A Batcher of sentences that remembers, in memory alone, answers that are not too large."""

    def __init__(
        self,
        queue: Batcher[str, Options, Result],
        is_small: Callable[[Result], bool] = lambda _: True,
        max_answers: int = MAX_ANSWERS,
    ) -> None:
        self._queue, self._is_small, self._max_answers = queue, is_small, max_answers
        self._answers: OrderedDict[tuple[str, Options], Result] = OrderedDict()
        self._lock = threading.Lock()

    def submit(self, sentence: str, options: Options) -> Future[Result]:
        """See Batcher.submit()."""
        key = (sentence, options)
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                known: Future[Result] = Future()
                known.set_result(self._answers[key])
                return known
        future = self._queue.submit(sentence, options)
        future.add_done_callback(lambda done: self._keep(key, done))
        return future

    def _keep(self, key: tuple[str, Options], done: Future[Result]) -> None:
        if done.cancelled() or done.exception() or not self._is_small(done.result()):
            return
        with self._lock:
            self._answers[key] = done.result()
            if len(self._answers) > self._max_answers:
                self._answers.popitem(last=False)
