"""Sentences that were just translated are not translated again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient
from tests.serve.test_batching import sizes_of

from konvoi.bundle.interfaces import Translator
from konvoi.errors import DataError
from konvoi.serve.app import create_app
from konvoi.serve.batching import Batcher
from konvoi.serve.recent import Recent

PATIENCE_SECONDS = 60


class Shouting:
    """Writes sentences in capitals, and keeps a list of what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.queue = Batcher(self.compute, max_items=1, wait_seconds=0)
        self.recent: Recent[str, str] = Recent(self.queue, lambda answer: len(answer) < 100, max_answers=2)

    def compute(self, sentences: list[str], options: str) -> list[str]:
        self.asked += sentences
        if "bad" in sentences:
            raise DataError("bad")
        return [sentence.upper() + options for sentence in sentences]

    def __call__(self, sentence: str, options: str = "") -> str:
        return self.recent.submit(sentence, options).result(PATIENCE_SECONDS)


@pytest.fixture
def shouting() -> Iterator[Shouting]:
    shouting = Shouting()
    yield shouting
    shouting.queue.close()


def test_the_same_sentence_is_computed_once_for_each_way(shouting: Shouting) -> None:
    assert [shouting("a"), shouting("a"), shouting("a", "!"), shouting("a", "!")] == ["A", "A", "A!", "A!"]
    assert shouting.asked == ["a", "a"]


def test_what_was_not_asked_for_longest_is_forgotten(shouting: Shouting) -> None:
    for sentence in ("a", "b", "a", "c", "a", "b"):
        shouting(sentence)
    # c takes the place of b, since a was asked for again; so only b is computed twice.
    assert shouting.asked == ["a", "b", "c", "b"]


def test_neither_errors_nor_large_answers_are_kept(shouting: Shouting) -> None:
    long = "x" * 100
    for _ in range(2):
        shouting(long)
        with pytest.raises(DataError):
            shouting("bad")
    assert shouting.asked == [long, "bad", long, "bad"]


def test_who_types_on_has_only_the_new_sentence_translated(translator: Translator) -> None:
    with TestClient(create_app([translator]), "http://127.0.0.1") as client:
        text = ""
        for sentence in ("A dog runs. ", "Two men play. ", "A woman sings."):
            text += sentence
            found = client.post("/api/translate", json={"text": text, "beam": 1}).json()["sentences"]
        # Not 1 + 2 + 3.
        assert sizes_of(client.get("/metrics").text, translator.name)[1] == 3
    expected = translator.translate([one["source"] for one in found], beam=1)
    assert [one["translations"][0]["text"] for one in found] == [one[0].text for one in expected]
