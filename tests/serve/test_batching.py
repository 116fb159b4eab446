"""Items that wait together are computed together, and each has its own answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from tests.serve.conftest import picture_of

from konvoi.bundle.interfaces import Classifier, Translator
from konvoi.errors import DataError
from konvoi.serve.app import create_app
from konvoi.serve.batching import Batcher
from konvoi.serve.limits import Limits

PATIENCE_SECONDS = 60


class Doubling:
    """Doubles numbers; waits at the first call until it may go on."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], str]] = []
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    def __call__(self, numbers: list[int], options: str) -> list[int]:
        self.calls.append((numbers, options))
        self.has_begun.set()
        assert self.may_go_on.wait(PATIENCE_SECONDS)
        if any(number < 0 for number in numbers):
            raise DataError("negative")
        if 0 in numbers:
            raise ZeroDivisionError
        return [2 * number for number in numbers]


@contextmanager
def busy(max_items: int = 64) -> Iterator[tuple[Doubling, Batcher[int, str, int]]]:
    """A batcher that computes 1000 while others come; goes on at the end of the block."""
    compute = Doubling()
    batcher = Batcher(compute, max_items=max_items, wait_seconds=0)
    batcher.submit(1000, "first")
    assert compute.has_begun.wait(PATIENCE_SECONDS)
    yield compute, batcher
    compute.may_go_on.set()
    batcher.close()
    assert compute.calls.pop(0) == ([1000], "first")


def test_what_came_while_the_model_was_busy_is_one_call_and_each_gets_its_own():
    with busy() as (compute, batcher):
        futures = [batcher.submit(number, "a") for number in (1, 2, 3)]
        assert batcher.num_waiting == 3
    assert compute.calls == [([1, 2, 3], "a")]
    assert [future.result() for future in futures] == [2, 4, 6]


def test_a_call_has_no_more_than_it_may():
    with busy(max_items=2) as (compute, batcher):
        futures = [batcher.submit(number, "a") for number in (1, 2, 3, 4, 5)]
    assert [numbers for numbers, _ in compute.calls] == [[1, 2], [3, 4], [5]]
    assert [future.result() for future in futures] == [2, 4, 6, 8, 10]


def test_a_call_has_one_set_of_options():
    with busy() as (compute, batcher):
        futures = [batcher.submit(number, options) for number, options in ((1, "a"), (2, "b"), (3, "a"))]
    assert compute.calls == [([1, 3], "a"), ([2], "b")]
    assert [future.result() for future in futures] == [2, 4, 6]


def test_an_idle_model_waits_for_a_second_item():
    compute = Doubling()
    compute.may_go_on.set()
    batcher = Batcher(compute, max_items=2, wait_seconds=PATIENCE_SECONDS)
    futures = [batcher.submit(number, "a") for number in (1, 2)]
    # Two are as many as it takes: it does not wait for the time to pass.
    assert [future.result(PATIENCE_SECONDS) for future in futures] == [2, 4]
    assert compute.calls == [([1, 2], "a")]
    batcher.close()


def test_who_is_at_fault_is_alone_with_it():
    with busy() as (_, batcher):
        good, bad, also_good = (batcher.submit(number, "a") for number in (1, -2, 3))
    assert (good.result(), also_good.result()) == (2, 6)
    with pytest.raises(DataError, match="negative"):
        bad.result()


def test_it_is_found_in_few_calls():
    with busy() as (compute, batcher):
        futures = [batcher.submit(number, "a") for number in (*range(1, 8), -8)]
    assert [future.result() for future in futures[:-1]] == [2, 4, 6, 8, 10, 12, 14]
    # All 8 fail, the first 4 do not, nor the next 2, nor the next; not 1 + 8 calls.
    assert [len(numbers) for numbers, _ in compute.calls] == [8, 4, 4, 2, 2, 1, 1]


def test_a_fault_of_ours_is_told_to_all_of_the_batch_and_the_next_is_computed():
    with busy(max_items=2) as (_, batcher):
        first, second, next_one = (batcher.submit(number, "a") for number in (0, 1, 2))
    assert isinstance(first.exception(), ZeroDivisionError) and isinstance(second.exception(), ZeroDivisionError)
    assert next_one.result() == 4


def test_what_nobody_waits_for_is_not_computed():
    with busy() as (compute, batcher):
        kept, dropped = batcher.submit(1, "a"), batcher.submit(2, "a")
        assert dropped.cancel()
    assert compute.calls == [([1], "a")]
    assert kept.result() == 2


def test_sizes_of_batches_are_told():
    sizes: list[int] = []
    batcher = Batcher(lambda numbers, _: numbers, max_items=4, wait_seconds=PATIENCE_SECONDS, observe=sizes.append)
    futures = [batcher.submit(number, "a") for number in range(4)]
    batcher.close()
    assert [future.result() for future in futures] == [0, 1, 2, 3]
    assert sizes == [4]


def sizes_of(metrics: str, model: str) -> tuple[int, int]:
    """Calls, and sentences in all of them."""
    values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    return tuple(int(float(values[f'konvoi_batch_size_{what}{{model="{model}"}}'])) for what in ("count", "sum"))  # type: ignore[return-value]


@pytest.mark.parametrize("max_batch", [1, 64])
def test_requests_that_come_together_are_translated_together_and_as_if_alone(translator: Translator, max_batch):
    sentences = [f"The {number} small dogs play." for number in range(12)]
    # So long that all are there: the twelfth, or the time, ends the waiting.
    app = create_app([translator], limits=Limits(max_batch=max_batch, batch_wait_seconds=2))

    async def ask() -> tuple[list[str], str]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            asked = [client.post("/api/translate", json={"text": one, "beam": 1}) for one in sentences]
            answers = await asyncio.gather(*asked)
            return [answer.json()["text"] for answer in answers], (await client.get("/metrics")).text

    texts, metrics = asyncio.run(ask())
    app.state.service.close()
    calls, num_sentences = sizes_of(metrics, translator.name)
    assert num_sentences == 12
    assert calls == 12 if max_batch == 1 else calls < 12
    assert texts == [found[0].text for found in translator.translate(sentences, beam=1)]


def test_a_bad_picture_does_not_fail_the_others_that_came_with_it(classifier: Classifier):
    pictures = [picture_of(10), b"no picture", picture_of(200)]
    app = create_app([], [classifier], limits=Limits(max_batch=len(pictures), batch_wait_seconds=PATIENCE_SECONDS))

    async def ask() -> tuple[list[int], str]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            answers = await asyncio.gather(*(client.post("/api/classify", content=one) for one in pictures))
            return [answer.status_code for answer in answers], (await client.get("/metrics")).text

    statuses, metrics = asyncio.run(ask())
    app.state.service.close()
    assert statuses == [200, 422, 200]
    # The batcher was given all three at once.
    assert sizes_of(metrics, classifier.name) == (1, 3)
