"""1,000 lines that no corpus holds, through service and command: an answer for each, nothing but text in it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from konvoi.serve.limits import MAX_SENTENCE_CHARACTERS

NUM_LINES, NUM_LONG = 1000, 4
KINDS = (
    "😀🏳️‍🌈👩‍👩‍👧‍👦 a dog 🐕‍🦺",
    "a\x00dog\x07with\x1b[31mcolours\x7f\x85",
    "كلب يلعب في الثلج",
    "שני כלבים \u202e reversed \u202c",
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "&lt;b&gt; &amp; {{7*7}} ${7*7} %s %n '; DROP TABLE x; --",
    "\ufeff\u200b\u200d\u2060\ufffe\uffff",
    "e\u0301\u0302\u0303" * 20 + "Z\u0351\u0352" * 20,
    "两只狗在雪地里玩。 二匹の犬。",
    "\u2028\u2029 \u00a0\u3000\t\v\f",
    "▁▁ <unk> <s> </s> <pad> ⁇ @@ ￭",
    "a" * 300,
    "!?.,;:" * 40,
    "A dog. " * 30,
    '{"text": "\\ud800"}\\',
    "../../etc/passwd\r",
    "\U0001d57f\U0001d58d\U0001d58a \uff46\uff55\uff4c\uff4c ① ² ﬁ",
    "NaN -Infinity 1e999 0x00",
    "",
    "   ",
)


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return hostile_lines()


def hostile_lines() -> list[str]:
    """Each kind as it is, cut, doubled and mixed; a few lines of 100 kB. No line ends inside."""
    draw = random.Random(1)
    found = [*KINDS, *(kind[::-1] for kind in KINDS)]
    while len(found) < NUM_LINES - NUM_LONG:
        first, second = draw.choices(KINDS, k=2)
        found.append((first[: draw.randrange(40)] + second[draw.randrange(10) :])[:200])
    long = ["x" * 100_000, "dog " * 25_000, "😀" * 25_000, "<b>" * 33_334]
    return [*found, *long]


def chunks(lines: list[str], num_lines: int = 100) -> list[list[str]]:
    return [lines[start : start + num_lines] for start in range(0, len(lines), num_lines)]


def test_the_service_answers_every_line_and_refuses_the_longest_in_words(client: TestClient, lines: list[str]) -> None:
    assert len(lines) == NUM_LINES
    short = [line for line in lines if len(line) <= MAX_SENTENCE_CHARACTERS]
    assert len(short) == NUM_LINES - NUM_LONG
    for chunk in chunks(short):
        answer = client.post("/api/translate", json={"sentences": chunk, "beam": 1})
        assert answer.status_code == 200, answer.text
        found = answer.json()["sentences"]
        assert [one["source"] for one in found] == chunk
        assert all(isinstance(one["translations"][0]["text"], str) for one in found)
        assert answer.headers["Content-Type"] == "application/json"
    for line in lines[-NUM_LONG:]:
        answer = client.post("/api/translate", json={"sentences": [line]})
        assert (answer.status_code, list(answer.json())) == (422, ["error"])


def test_as_one_text_they_keep_their_white_space(client: TestClient, lines: list[str]) -> None:
    for chunk in chunks(lines[: len(KINDS) * 2], 10):
        text = "\n".join(chunk)
        answer = client.post("/api/translate/stream", json={"text": text, "beam": 1, "attention": True})
        *sentences, end = [json.loads(line) for line in answer.text.split("\n") if line]
        assert "seconds" in end
        assert "".join(one["source"] + one["space"] for one in sentences) == text


def test_half_characters_that_json_can_carry_do_no_harm(client: TestClient) -> None:
    halves = [chr(code) for code in (0xD800, 0xDBFF, 0xDC00, 0xDFFF)]
    content = json.dumps({"sentences": [half + "dog" + half for half in halves], "beam": 1}).encode()
    assert rb"\ud800" in content
    answer = client.post("/api/translate", content=content, headers={"Content-Type": "application/json"})
    assert [one["source"] for one in answer.json()["sentences"]] == ["�dog�"] * 4


def test_names_and_paths_are_text_as_well(client: TestClient) -> None:
    for hostile in KINDS:
        assert client.post("/api/translate", json={"text": "a", "model": hostile}).status_code == 404
        assert client.post("/api/classify", params={"model": hostile}, content=b"x").status_code == 404


def test_the_command_answers_every_line(
    konvoi: Callable[..., Any], bundle: Path, lines: list[str], tmp_path: Path
) -> None:
    source, target = tmp_path / "hostile.en", tmp_path / "hostile.de"
    source.write_bytes("".join(f"{line}\n" for line in lines).encode())
    result = konvoi("translate", bundle, "--input", source, "--output", target, "--beam", 1)
    assert result.exit_code == 0, result.stderr
    assert target.read_bytes().count(b"\n") == NUM_LINES
