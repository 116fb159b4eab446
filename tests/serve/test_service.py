"""The API as a client sees it: answers, limits, who may ask, what is told to nobody."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient
from tests.serve.conftest import ADDRESS, picture_of

from konvoi.bundle.interfaces import Translation, Translator
from konvoi.bundle.sentences import split
from konvoi.serve import gate, limits
from konvoi.serve.app import create_app
from konvoi.serve.limits import Limits

TEXT = "  Two dogs play in the snow. A man waits!\n\nWhere is the station?\t"
TOKEN = "a token of more than sixteen characters"
PATIENCE_SECONDS = 60


def test_the_models_are_listed_with_what_they_do_and_how_much_may_be_asked(client, translator):
    answer = client.get("/api/models").json()
    dogs, greys = answer["models"]
    assert dogs == {"name": translator.name, "task": "translation", "source": "en", "target": "de", "num_classes": None}
    assert (greys["task"], greys["num_classes"], greys["source"]) == ("classification", 2, None)
    assert answer["limits"]["max_sentences"] == limits.MAX_SENTENCES


def test_two_models_of_one_name_are_told_apart(translator):
    with TestClient(create_app([translator, translator, translator]), ADDRESS) as client:
        names = [model["name"] for model in client.get("/api/models").json()["models"]]
        assert names == [translator.name, f"{translator.name}-2", f"{translator.name}-3"]
        answer = client.post("/api/translate", json={"model": names[2], "text": "A dog."})
        assert answer.json()["model"] == names[2]


def test_a_text_comes_back_with_its_white_space(client, translator):
    answer = client.post("/api/translate", json={"text": TEXT}).json()
    parts = split(TEXT)
    assert [(one["source"], one["space"]) for one in answer["sentences"]] == parts
    best = [found[0].text for found in translator.translate([part.sentence for part in parts])]
    assert answer["text"] == "".join(text + part.space for text, part in zip(best, parts, strict=True))
    assert answer["text"].startswith("  ") and answer["text"].endswith("\t") and "\n\n" in answer["text"]
    assert answer["seconds"] > 0


def test_as_many_sentences_come_back_as_were_sent(client, translator):
    sentences = ["A dog.", "", "Two men. They wait.", "A dog."]
    answer = client.post("/api/translate", json={"sentences": sentences}).json()
    best = [found[0].text for found in translator.translate(sentences)]
    assert [one["source"] for one in answer["sentences"]] == sentences
    assert [one["translations"][0]["text"] for one in answer["sentences"]] == best
    assert answer["text"] == "\n".join(best)


def test_an_empty_text_is_an_empty_text(client):
    assert client.post("/api/translate", json={"text": ""}).json()["text"] == ""
    assert client.post("/api/translate", json={"text": " \n "}).json()["text"] == " \n "
    assert client.post("/api/translate", json={"sentences": []}).json()["sentences"] == []


def test_alternatives_and_attention_come_where_they_are_asked_for(client):
    (plain,) = client.post("/api/translate", json={"text": "A small dog."}).json()["sentences"]
    assert [one["attention"] for one in plain["translations"]] == [[]]
    question = {"text": "A small dog.", "beam": 4, "num_best": 3, "attention": True}
    (found,) = client.post("/api/translate", json=question).json()["sentences"]
    scores = [one["score"] for one in found["translations"]]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)
    for one in found["translations"]:
        assert len(one["attention"]) == len(one["target_pieces"])
        assert all(len(row) == len(one["source_pieces"]) > 0 for row in one["attention"])


def test_attention_that_would_fill_the_memory_is_left_out(client, monkeypatch):
    """Not the translation: a page shows all of a long text, and which words belong together while there are few."""

    def has_attention(sentences: list[str], **more: object) -> list[bool]:
        question = {"sentences": sentences, "beam": 1, "attention": True, **more}
        found = client.post("/api/translate", json=question).json()["sentences"]
        assert all(one["translations"] for one in found)
        return [any(way["attention"] for way in one["translations"]) for one in found]

    assert has_attention(["A dog.", "A dog " * 100]) == [True, False]
    assert has_attention(["A dog " * 30], beam=3, num_best=3) == [True]
    assert has_attention(["A dog " * 60], beam=3, num_best=3) == [False]
    monkeypatch.setattr("konvoi.serve.service.MAX_ATTENTION", 1_000)
    found = has_attention(["A small dog."] * 200)
    assert found[0] and not found[-1]


def test_a_stream_has_the_same_sentences_a_line_each_and_an_end(client):
    whole = client.post("/api/translate", json={"text": TEXT}).json()
    answer = client.post("/api/translate/stream", json={"text": TEXT})
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    *sentences, end = [json.loads(line) for line in answer.text.splitlines()]
    assert sentences == whole["sentences"]
    assert end["model"] == whole["model"] and end["seconds"] > 0


def test_a_long_text_does_not_fill_the_queue_and_comes_in_order(translator):
    sentences = [f"{number} dogs." for number in range(30)]
    with TestClient(create_app([translator], limits=Limits(max_batch=4)), ADDRESS) as client:
        answer = client.post("/api/translate/stream", json={"sentences": sentences, "beam": 1})
        *lines, _ = [json.loads(line) for line in answer.text.splitlines()]
        assert [line["source"] for line in lines] == sentences
        assert [line["number"] for line in lines] == list(range(30))


@pytest.mark.parametrize(
    ("question", "problem"),
    [
        ({}, "text: Field required"),
        ({"text": "a", "sentences": ["a"]}, "sentences: Extra inputs are not permitted"),
        ({"txt": "a", "text": "b"}, "txt: Extra inputs are not permitted"),
        ({"text": "a", "beam": 0}, "beam: Input should be greater than or equal to 1"),
        ({"text": "a", "num_best": 11}, "num_best: Input should be less than or equal to 10"),
        ({"text": 7}, "text: Input should be a valid string"),
        ({"text": "a" * 50_001}, "text: String should have at most 50000 characters"),
        ({"text": "Oh! " * 1_001}, "the text has 1,001 sentences"),
        ({"text": "a" * 5_005}, "the text has a sentence of 5,005 characters"),
        ({"sentences": ["a"] * 1_001}, "sentences: List should have at most 1000 items"),
        ({"sentences": ["a", "b" * 5_001]}, "sentences.1: String should have at most 5000 characters"),
        ([1, 2], "body: "),
    ],
)
def test_what_is_not_understood_or_too_much_is_refused_in_words(client, question, problem):
    for path in ("/api/translate", "/api/translate/stream"):
        answer = client.post(path, json=question)
        assert answer.status_code == 422
        assert problem in answer.json()["error"]["problem"]


def test_what_is_no_json_is_refused(client):
    for content in (b"{nope", b'{"text": "\xff"}', b"", b"[" * 100_000):
        answer = client.post("/api/translate", content=content, headers={"Content-Type": "application/json"})
        assert (answer.status_code, list(answer.json())) == (422, ["error"])


def test_an_unknown_model_is_refused_with_those_that_there_are(client, translator):
    answer = client.post("/api/translate", json={"text": "a", "model": "<b>"})
    assert answer.status_code == 404
    assert translator.name in answer.json()["error"]["hint"]


def test_a_service_without_classifiers_says_so(translator):
    with TestClient(create_app([translator]), ADDRESS) as client:
        answer = client.post("/api/classify", content=picture_of(200))
        assert answer.status_code == 404
        assert "no model here that knows pictures" in answer.json()["error"]["problem"]


def test_half_a_character_becomes_a_sign_for_it(client):
    content = rb'{"sentences": ["\ud83d", "\ud83d\ude00 dog"]}'
    answer = client.post("/api/translate", content=content, headers={"Content-Type": "application/json"})
    assert [one["source"] for one in answer.json()["sentences"]] == ["�", "😀 dog"]


def test_a_picture_is_a_body_or_a_field_of_a_form(client, classifier):
    picture = picture_of(230)
    expected = [
        {"name": guess.name, "probability": pytest.approx(guess.probability, rel=1e-4)}
        for guess in classifier.classify([picture])[0]
    ]
    assert {guess["name"] for guess in expected} == {"bright", "dark"}
    raw = client.post("/api/classify", content=picture, headers={"Content-Type": "image/png"})
    form = client.post("/api/classify", files={"picture": ("dog.png", picture, "image/png")})
    assert raw.json()["guesses"] == form.json()["guesses"] == expected
    assert len(client.post("/api/classify?num_classes=1", content=picture).json()["guesses"]) == 1


@pytest.mark.parametrize(
    "request_of",
    [
        {"content": b"no picture"},
        {"content": b""},
        {"content": picture_of(200)[:40]},
        {"files": {"image": ("a.png", picture_of(200), "image/png")}},
        {"data": {"picture": "text"}, "files": {"other": b"x"}},
        {"content": b"--x\r\nnonsense", "headers": {"Content-Type": "multipart/form-data; boundary=x"}},
        {"content": b"nonsense", "headers": {"Content-Type": "multipart/form-data"}},
    ],
)
def test_what_is_no_picture_is_refused_in_words(client, request_of):
    answer = client.post("/api/classify", **request_of)
    assert answer.status_code == 422
    assert answer.json()["error"]["problem"]


def test_a_picture_that_is_none_does_not_spoil_one_that_came_with_it(classifier):
    app = create_app((), [classifier], limits=Limits(max_batch=2, batch_wait_seconds=PATIENCE_SECONDS))

    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        pictures = (b"no picture", picture_of(200))
        return await asyncio.gather(*(client.post("/api/classify", content=picture) for picture in pictures))

    assert [answer.status_code for answer in in_process(app, ask)] == [422, 200]


@pytest.mark.parametrize(("path", "num_bytes"), [("translate", 1_000_001), ("classify", 20_000_001)])
def test_a_body_that_is_too_large_is_refused(client, path, num_bytes):
    answer = client.post(f"/api/{path}", content=b" " * num_bytes)
    assert answer.status_code == 413
    assert "more than" in answer.json()["error"]["problem"]


def test_a_body_without_end_is_not_read_for_ever(client):
    """Its length is not told beforehand."""
    num_read = 0

    def endless() -> Iterator[bytes]:
        nonlocal num_read
        while num_read <= 2 * gate.MAX_DROPPED_BYTES:
            num_read += 1_000_000
            yield b" " * 1_000_000

    assert client.post("/api/translate", content=endless()).status_code == 413


class Waiting:
    """The real translator, once it may go on; counts what it was asked."""

    def __init__(self, translator: Translator) -> None:
        self.translator, self.asked = translator, list[str]()
        self.source, self.target, self.name = translator.source, translator.target, "waiting"
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    def translate(self, sentences: Sequence[str], **settings: Any) -> list[list[Translation]]:
        self.asked += sentences
        self.has_begun.set()
        assert self.may_go_on.wait(PATIENCE_SECONDS)
        return self.translator.translate(sentences, **settings)

    def close(self) -> None: ...


@pytest.fixture
def waiting(translator: Translator) -> Iterator[Waiting]:
    waiting = Waiting(translator)
    yield waiting
    waiting.may_go_on.set()


def in_process(app: Any, ask: Any) -> Any:
    """What ask(client) returns, with a client whose requests run at the same time."""

    async def run() -> Any:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=ADDRESS, timeout=PATIENCE_SECONDS) as client:
            return await ask(client)

    try:
        return asyncio.run(run())
    finally:
        app.state.service.close()


async def until(is_so: Any) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_so():
            await asyncio.sleep(0.01)


def test_one_request_too_many_is_told_to_come_again(waiting):
    app = create_app([waiting], limits=Limits(max_requests=2))

    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        accepted = [asyncio.ensure_future(client.post("/api/translate", json={"text": "A dog."})) for _ in range(2)]
        await until(lambda: app.state.service.num_requests == 2)
        refused = await client.post("/api/translate", json={"text": "A dog."})
        models = await client.get("/api/models")
        waiting.may_go_on.set()
        return [
            refused,
            models,
            *await asyncio.gather(*accepted),
            await client.post("/api/translate", json={"text": ""}),
        ]

    refused, models, *others = in_process(app, ask)
    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) >= 1
    assert "2 requests" in refused.json()["error"]["problem"]
    # What costs nothing is answered, those that were accepted are, and then there is room again.
    assert [answer.status_code for answer in (models, *others)] == [200] * 4


def test_what_takes_too_long_is_ended_and_what_had_not_begun_is_not_computed(waiting):
    app = create_app([waiting], limits=Limits(request_seconds=1, stream_seconds=0.2, max_batch=1))

    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        begun = asyncio.ensure_future(client.post("/api/translate", json={"text": "Begun."}))
        await until(waiting.has_begun.is_set)
        answers = [await client.post("/api/translate/stream", json={"text": "Streamed."}), await begun]
        waiting.may_go_on.set()
        return answers

    streamed, begun = in_process(app, ask)
    assert begun.status_code == 503
    assert begun.json()["error"]["problem"] == "this took too long"
    # Its head was sent before: the last line tells.
    assert json.loads(streamed.text) == begun.json()
    assert waiting.asked == ["Begun."]


def test_who_left_is_not_translated_for(waiting):
    app = create_app([waiting], limits=Limits(max_batch=1))

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        first = asyncio.ensure_future(client.post("/api/translate", json={"text": "Who stays."}))
        await until(waiting.has_begun.is_set)
        await until_refused_or_left(app, b'{"text": "Who leaves."}')
        waiting.may_go_on.set()
        return await first

    assert in_process(app, ask).status_code == 200
    assert waiting.asked == ["Who stays."]


async def until_refused_or_left(app: Any, body: bytes) -> None:
    """A request whose client is gone as soon as the sentence is in the queue."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    queue = app.state.service.translators["waiting"]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await until(lambda: queue.num_waiting == 1)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise AssertionError("nobody is there to be answered")

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/api/translate", "query_string": b"", "headers": headers}
    async with asyncio.timeout(PATIENCE_SECONDS):
        await app(scope, receive, send)


def test_a_request_that_does_not_arrive_is_given_up(translator):
    app = create_app([translator], limits=Limits(request_seconds=0.2))
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.sleep(PATIENCE_SECONDS)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/api/translate", "headers": [(b"host", b"localhost")]}
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 408
    assert app.state.service.num_requests == 0
    app.state.service.close()


def test_a_service_that_ends_finishes_what_it_has_and_refuses_the_rest(waiting):
    app = create_app([waiting])

    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        accepted = asyncio.ensure_future(client.post("/api/translate", json={"text": "A dog."}))
        await until(waiting.has_begun.is_set)
        app.state.service.is_ending = True
        refused = await client.post("/api/translate", json={"text": "A dog."})
        others = [await client.get("/ready"), await client.get("/health")]
        waiting.may_go_on.set()
        return [refused, *others, await accepted]

    refused, ready, health, accepted = in_process(app, ask)
    assert (refused.status_code, ready.status_code, health.status_code, accepted.status_code) == (503, 503, 200, 200)
    # What was accepted is answered, and then its connection ends as well.
    assert refused.headers["Connection"] == accepted.headers["Connection"] == "close"
    assert refused.json()["error"]["problem"] == "the service is ending"


def test_it_says_that_it_lives_and_is_ready(client):
    assert client.get("/health").json() == client.get("/ready").json() == {"status": "ok"}


def test_it_counts_for_prometheus(client, translator):
    client.post("/api/translate", json={"sentences": ["A dog.", "A man."]})
    client.post("/api/translate", json={"sentence": "a"})
    client.get("/a/path/that/somebody/tries")
    text = client.get("/metrics").text
    assert 'konvoi_requests_total{path="/api/translate",status="200"} 1.0' in text
    assert 'konvoi_requests_total{path="/api/translate",status="422"} 1.0' in text
    assert 'konvoi_requests_total{path="other",status="404"} 1.0' in text
    assert 'konvoi_request_seconds_count{path="/api/translate"} 2.0' in text
    assert f'konvoi_batch_size_sum{{model="{translator.name}"}} 2.0' in text
    assert f'konvoi_waiting{{model="{translator.name}"}} 0.0' in text
    assert "somebody" not in text


def test_every_answer_tells_browsers_to_load_nothing_from_elsewhere(client):
    for path in ("/", "/docs", "/docs.css", "/api/models", "/nothing", "/static/nothing", "/health", "/openapi.json"):
        headers = client.get(path).headers
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none';") and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "http" not in policy and "*" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert "Access-Control-Allow-Origin" not in headers


def test_answers_are_not_kept_and_the_page_is_asked_for_anew(client):
    assert client.get("/api/models").headers["Cache-Control"] == "no-store"
    page = client.get("/")
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert page.headers["Cache-Control"] == "no-cache"
    script = client.get("/static/page.js")
    assert "javascript" in script.headers["Content-Type"]
    assert client.get("/static/page.js", headers={"If-None-Match": script.headers["ETag"]}).status_code == 304
    assert client.get("/static/page.css").headers["Content-Type"].startswith("text/css")


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd"]
)
def test_nothing_but_the_page_is_served(client, path):
    assert client.get(path).status_code == 404


def test_the_description_is_a_page_without_scripts(client):
    text = client.get("/docs").text
    for path in client.get("/openapi.json").json()["paths"]:
        assert path in text
    assert '<a href="#TranslateAnswer">' in text and 'id="TranslateAnswer"' in text
    assert "at most 50,000 characters" in text
    assert "<script" not in text and "style=" not in text and "://" not in text


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1:8080", "[::1]", "[::1]:8080", "LOCALHOST:1"])
def test_it_answers_under_its_own_names(client, name):
    assert client.get("/api/models", headers={"Host": name}).status_code == 200


def test_it_answers_under_the_name_that_it_was_given(translator):
    with TestClient(create_app([translator], names=["my-laptop"]), "http://127.0.0.1") as client:
        codes = [client.get("/", headers={"Host": f"{name}:8000"}).status_code for name in ("My-Laptop", "yours")]
    assert codes == [200, 421]


@pytest.mark.parametrize(
    "name", ["evil.example", "evil.example:8080", "localhost.evil.example", "", "[::1].evil.example"]
)
def test_it_answers_under_no_other_name(client, name):
    answer = client.get("/", headers={"Host": name})
    assert (answer.status_code, list(answer.json())) == (421, ["error"])


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_cannot_ask(client, site):
    headers = {"Sec-Fetch-Site": site, "Origin": "http://evil.example"}
    assert client.post("/api/translate", json={"text": "A dog."}, headers=headers).status_code == 403
    # A link to the page is no question.
    assert client.get("/", headers=headers).status_code == 200
    assert client.get("/api/models", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


@pytest.fixture
def guarded(translator: Translator) -> Iterator[TestClient]:
    with TestClient(create_app([translator], token=TOKEN), "http://models.example:8080") as client:
        yield client


@pytest.mark.parametrize("given", [None, "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN])
def test_without_the_token_nothing_is_answered(guarded, given):
    headers = {"Authorization": given} if given else {}
    for answer in (
        guarded.get("/api/models", headers=headers),
        guarded.post("/api/translate", json={"text": "A dog."}, headers=headers),
        guarded.post("/api/classify", content=b"x" * 30_000_000, headers=headers),
        guarded.get("/metrics", headers=headers),
    ):
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert TOKEN not in answer.text


def test_with_the_token_all_is_answered_under_any_name(guarded):
    headers = {"Authorization": f"bearer {TOKEN}"}
    assert guarded.get("/api/models", headers=headers).status_code == 200
    assert guarded.post("/api/translate", json={"text": "A dog."}, headers=headers).status_code == 200


def test_the_page_loads_without_the_token_that_is_entered_there(guarded):
    for path in ("/", "/static/page.js", "/health", "/ready"):
        assert guarded.get(path).status_code == 200


def test_nothing_of_what_users_type_is_logged_not_even_after_a_fault(waiting, caplog, capfd):
    secret = "my secret sentence"

    def fails(sentences: Sequence[str], **settings: Any) -> Any:
        raise ValueError(sentences[0])

    waiting.translate = fails
    caplog.set_level(logging.DEBUG)
    with TestClient(create_app([waiting]), ADDRESS) as client:
        answer = client.post("/api/translate", json={"text": secret})
        assert answer.status_code == 500
        assert "a fault of the service" in answer.json()["error"]["problem"]
        assert client.post(f"/api/{secret}", json={secret: secret}).status_code == 404
    assert "ValueError" in caplog.text and "fails" in caplog.text
    said = capfd.readouterr()
    # The client of these tests logs the paths that it asks for.
    own = "".join(record.getMessage() for record in caplog.records if record.name.startswith(("konvoi", "uvicorn")))
    assert secret not in own + said.out + said.err
