"""konvoi data as a user meets it: from an address to a table, and every mistake answered in words."""

from __future__ import annotations

import io
import itertools
import json
import zipfile
from pathlib import Path

import pytest
from tests.fetch.server import Served, running_server

from konvoi.data.text import read_tsv_pairs
from konvoi.fetch.sets import KNOWN_SETS

NUM_PAIRS = 9000


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KONVOI_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def tatoeba_zip() -> bytes:
    """The layout of the real archive, made from the embedded corpus."""
    pairs = itertools.islice(read_tsv_pairs(KNOWN_SETS["demo-en-de"].embedded_path), NUM_PAIRS)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("_about.txt", "about")
        archive.writestr("deu.txt", "".join(f"{source}\t{target}\tCC-BY 2.0\n" for source, target in pairs))
    return content.getvalue()


def test_from_an_address_to_a_table(konvoi, own_home):
    content = tatoeba_zip()
    with running_server() as server:
        # the connection breaks once half-way
        server.serve("deu-eng.zip", Served(content, cut_at=len(content) // 2), Served(content))
        got = konvoi("data", "get", "tatoeba-en-de", "--mirror", server.root, "--processes", 1)
        assert got.exit_code == 0, got.stderr
        assert server.ranges == ["all", f"bytes={len(content) // 2}-"]
    assert [line.split()[0] for line in got.stdout.splitlines() if line][:3] == ["tatoeba-en-de:", "training", "as"]
    # 9,000 pairs, of which 2,000 + 2,000 sentences are split off
    assert "9,000" in got.stdout and "split off" in got.stdout
    assert "CC BY 2.0 FR" in got.stdout
    assert konvoi("data", "info", "tatoeba-en-de").stdout == got.stdout
    # a second time needs neither network nor work
    again = konvoi("data", "get", "tatoeba-en-de", "--mirror", "http://127.0.0.1:1", "--json")
    assert json.loads(again.stdout)["pairs"]["dev"] == 2000


def test_a_server_without_the_file_is_named_with_what_to_do(konvoi, own_home):
    with running_server() as server:
        result = konvoi("data", "get", "tatoeba-en-de", "--mirror", server.root)
    assert result.exit_code == 2
    assert "404" in result.stderr and "--from DIR" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["get", "wmt16"], 'did you mean "wmt16-en-de"'),
        (["prepare", "--source", "a.en"], "train_target: missing"),
        (["prepare", "--file", "a.tsv", "--set", "max_word=3"], 'did you mean "max_words"'),
        (["prepare", "--file", "a.tsv", "--set", "max_words"], "must be key=value"),
        (["prepare", "--file", "none.tsv"], "cannot read data.train_file"),
        (["prepare", "imagenet"], "no folder given"),
        (["prepare", "--file", "a.tsv", "--from", "."], "--from has no effect on your own text"),
        (["prepare", "demo-en-de", "--dev-pairs", "5"], "--dev-pairs has no effect on demo-en-de"),
        (["prepare", "--set", "set=[1]"], "data.set"),
        (["get", "imagenette"], "is a set of pictures"),
        (["get", "own"], "need not be got"),
        (["info", "nothing"], "neither a prepared set nor a folder"),
    ],
)
def test_a_mistake_is_one_clear_line(konvoi, own_home, arguments, words):
    result = konvoi("data", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_one_side_shorter_than_the_other(konvoi, own_home, tmp_path):
    (tmp_path / "a.en").write_text("one\ntwo\nthree\n")
    (tmp_path / "a.de").write_text("eins\nzwei\n")
    result = konvoi("data", "prepare", "--source", tmp_path / "a.en", "--target", tmp_path / "a.de")
    assert result.exit_code == 2
    assert "a.en has 3 lines but" in result.stderr


def test_a_run_carries_what_it_was_trained_on(trained_run):
    data = json.loads((trained_run / "data.json").read_text())
    assert data["pairs"]["dev"] == 40
    assert data["filters"][0]["filter"] == "read"


def test_preparing_a_known_set_from_a_folder_is_enough_to_train_on_it(konvoi, own_home, tmp_path):
    (tmp_path / "deu-eng.zip").write_bytes(tatoeba_zip())
    prepared = konvoi("data", "prepare", "tatoeba-en-de", "--from", tmp_path, "--json")
    assert prepared.exit_code == 0, prepared.stderr
    recipe = konvoi("info", "demo", "--set", "data.set=tatoeba-en-de", "--set", "data.vocabulary_size=8000", "--json")
    assert json.loads(recipe.stdout)["data"]["folder"] == json.loads(prepared.stdout)["folder"]
