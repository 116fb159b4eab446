"""The models behind the API, each with its queue."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from konvoi.bundle.interfaces import Classifier, Guess, Translation, Translator
from konvoi.bundle.sentences import Part
from konvoi.serve.batching import Batcher, Item, Options, Result
from konvoi.serve.limits import MAX_ATTENTION, MAX_SENTENCE_ATTENTION, Limits
from konvoi.serve.messages import Alternative, ModelEntry, Sentence
from konvoi.serve.metrics import Metrics
from konvoi.serve.recent import Recent
from konvoi.serve.refusal import Refusal


@dataclass(frozen=True)
class Way:
    """How sentences are to be translated; those of one way are translated together."""

    beam: int | None
    num_best: int
    with_attention: bool


# A sentence as people write them; 256 of them are some MB.
MAX_KEPT_ATTENTION = 10_000

TranslationQueue = Recent[Way, list[Translation]]
ClassificationQueue = Batcher[bytes, int, list[Guess]]


@dataclass
class Service:
    limits: Limits
    metrics: Metrics = field(default_factory=Metrics)
    entries: dict[str, ModelEntry] = field(default_factory=dict)
    translators: dict[str, TranslationQueue] = field(default_factory=dict)
    classifiers: dict[str, ClassificationQueue] = field(default_factory=dict)
    _queues: list[Batcher[Any, Any, Any]] = field(default_factory=list)
    num_requests: int = 0
    """That are read or answered right now."""
    latest_at: float = 0.0
    """When the latest came, accepted or refused, by the monotonic clock."""
    is_ending: bool = False

    def add_translator(self, model: Translator) -> None:
        name = self._new_name(model.name)

        def compute(sentences: list[str], way: Way) -> list[list[Translation]]:
            return model.translate(sentences, beam=way.beam, num_best=way.num_best, with_attention=way.with_attention)

        self.entries[name] = ModelEntry(name=name, task="translation", source=model.source, target=model.target)
        self.translators[name] = Recent(
            self._queue(name, compute), lambda found: _num_weights(found) <= MAX_KEPT_ATTENTION
        )

    def add_classifier(self, model: Classifier) -> None:
        name = self._new_name(model.name)

        def compute(pictures: list[bytes], num_classes: int) -> list[list[Guess]]:
            return model.classify(pictures, num_classes=num_classes)

        self.entries[name] = ModelEntry(name=name, task="classification", num_classes=len(model.classes))
        self.classifiers[name] = self._queue(name, compute)

    def close(self) -> None:
        """Returns when all that was handed in is done."""
        for queue in self._queues:
            queue.close()

    async def translated(
        self, name: str, parts: Sequence[Part], way: Way, deadline_at: float
    ) -> AsyncIterator[Sentence]:
        """Each sentence as soon as it and those before it are done."""
        queue = self.translators[name]
        # Not all at once: sentences of others come in between those of a long text.
        max_ahead = 2 * self.limits.max_batch
        ahead: deque[tuple[Part, Future[list[Translation]]]] = deque()
        rest, num_weights = deque(parts), 0
        try:
            for number in range(len(parts)):
                while rest and len(ahead) < max_ahead:
                    part = rest.popleft()
                    ahead.append((part, queue.submit(part.sentence, _affordable(way, part.sentence))))
                part, future = ahead[0]
                found = await before(deadline_at, future)
                ahead.popleft()
                if num_weights + _num_weights(found) > MAX_ATTENTION:
                    found = [replace(one, attention=()) for one in found]
                num_weights += _num_weights(found)
                alternatives = [Alternative.of(one) for one in found]
                yield Sentence(number=number, source=part.sentence, space=part.space, translations=alternatives)
        finally:
            for _, future in ahead:
                future.cancel()

    async def classified(self, name: str, picture: bytes, num_classes: int, deadline_at: float) -> list[Guess]:
        return await before(deadline_at, self.classifiers[name].submit(picture, num_classes))

    def _new_name(self, name: str) -> str:
        """Two models of one name are told apart by a number."""
        numbered = (f"{name}-{number}" for number in itertools.count(2))
        return name if name not in self.entries else next(one for one in numbered if one not in self.entries)

    def _queue(
        self, name: str, compute: Callable[[list[Item], Options], list[Result]]
    ) -> Batcher[Item, Options, Result]:
        queue = Batcher(
            compute,
            max_items=self.limits.max_batch,
            wait_seconds=self.limits.batch_wait_seconds,
            observe=self.metrics.batches_of(name),
        )
        self.metrics.watch_queue(name, lambda: queue.num_waiting)
        self._queues.append(queue)
        return queue


def _affordable(way: Way, sentence: str) -> Way:
    """Attention grows with the square of a sentence: few of the longest would fill the memory."""
    most = 2 * len(sentence) ** 2 * way.num_best
    return replace(way, with_attention=way.with_attention and most <= MAX_SENTENCE_ATTENTION)


def _num_weights(found: Sequence[Translation]) -> int:
    return sum(len(row) for one in found for row in one.attention)


def chosen(name: str | None, queues: Mapping[str, object], what: str) -> str:
    """The named model, else the first."""
    if not queues:
        raise Refusal(404, f"there is no model here that {what}", hint="GET /api/models lists what there is")
    if name is not None and name not in queues:
        raise Refusal(404, f"there is no such model that {what}", hint=f"there is {', '.join(queues)}")
    return name or next(iter(queues))


async def before(deadline_at: float, future: Future[Result]) -> Result:
    """deadline_at is by the event loop's clock. What comes too late is not computed, where it has not begun."""
    try:
        async with asyncio.timeout_at(deadline_at):
            return await asyncio.wrap_future(future)
    except TimeoutError:
        raise Refusal(503, "this took too long", hint="send less at a time, or come again later") from None
