"""konvoi translate with a bundle: lines, documents, n-best lists, hostile files."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from konvoi.cli import main; main()"
HOSTILE = [
    "🦄 👩‍👩‍👧 \U0001f3f4",
    "\x00\x01\x07\x1b[31mred\x1b[0m",
    "\u202eright to left\u202c",
    "مرحبا بالعالم",
    "<script>alert('x')</script>",
    "{{7*7}} $(reboot) `id` ; DROP TABLE x;",
    "e" + "\u0301" * 50,
    "\ufeff\u200b\u2028\x85",
    "Tom is here. Where is Tom?\r",
    "▁▁ <unk> </s> ⁇",
    "a\t\t|||\tb",
    "",
]


@pytest.fixture(scope="module")
def bundle(konvoi, trained_run, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "tiny"
    result = konvoi("export", trained_run, "--to", path, "--precision", "float32")
    assert result.exit_code == 0, result.stderr
    return path


def test_a_bundle_answers_like_its_run(konvoi, bundle, trained_run):
    lines = "Hello.\n\n  \nWhere is Tom?\n"
    expected = konvoi("translate", trained_run, input=lines).stdout
    assert konvoi("translate", bundle, input=lines).stdout == expected
    assert konvoi("translate", bundle, "--variant", "float32", input=lines).stdout == expected


def test_it_runs_where_torch_is_not_installed(bundle):
    command = [sys.executable, "-c", WITHOUT_TORCH, "translate", str(bundle), "Where is Tom?"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") == 1


def test_the_best_translations_are_numbered_and_scored(konvoi, bundle, monkeypatch):
    monkeypatch.setattr("konvoi.commands.translate.CHUNK_LINES", 1)
    rows = konvoi("translate", bundle, "Hello.", "Where is Tom?", "--num-best", 3, "--beam", 4).stdout.splitlines()
    fields = [row.split(" ||| ") for row in rows]
    assert [number for number, _, _ in fields] == ["0", "0", "0", "1", "1", "1"]
    scores = [float(score) for _, _, score in fields]
    assert scores[:3] == sorted(scores[:3], reverse=True)


def test_a_document_keeps_its_white_space(konvoi, bundle, tmp_path):
    one, two = konvoi("translate", bundle, "Tom is here.", "Where is he?").stdout.splitlines()
    (tmp_path / "in").write_text("  Tom is here.  Where is he?\n\n\tWhere\nis he? Tom is here.\n")
    result = konvoi("translate", bundle, "--documents", "--input", tmp_path / "in", "--output", tmp_path / "out")
    assert result.exit_code == 0
    assert (tmp_path / "out").read_text() == f"  {one}  {two}\n\n\t{two} {one}\n"


def test_a_document_is_the_same_in_pieces(konvoi, bundle, monkeypatch):
    text = "Tom is here. Go.\n\nWhere\nis he?\n" * 3
    expected = konvoi("translate", bundle, "--documents", input=text).stdout
    monkeypatch.setattr("konvoi.commands.translate.CHUNK_LINES", 3)
    assert konvoi("translate", bundle, "--documents", input=text).stdout == expected


def test_documents_have_no_lists_and_runs_no_variants(konvoi, bundle, trained_run):
    result = konvoi("translate", bundle, "Go.", "--documents", "--num-best", 2)
    assert (result.exit_code, "either --documents or --num-best" in result.stderr) == (2, True)
    result = konvoi("translate", trained_run, "Go.", "--variant", "int8")
    assert (result.exit_code, "is a run" in result.stderr) == (2, True)


def test_a_hostile_file_comes_back_line_by_line(konvoi, bundle, tmp_path):
    lines = [random.Random(number).choice(HOSTILE) for number in range(996)]
    # 100 kB each: letters, words, sentences, dots
    lines += ["x" * 100_000, "Tom " * 25_000, "Go. " * 2_000 + "y" * 92_000, "." * 100_000]
    (tmp_path / "in").write_bytes("".join(f"{line}\n" for line in lines).encode())
    result = konvoi("translate", bundle, "--input", tmp_path / "in", "--output", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    translations = (tmp_path / "out").read_bytes().decode().split("\n")
    assert len(translations) == 1000 + 1
    assert all(translation == "" for line, translation in zip(lines, translations, strict=False) if not line)
    assert "\u2047" not in "".join(translations)


def test_a_line_that_is_too_long_is_named_and_nothing_is_written(konvoi, bundle, tmp_path):
    (tmp_path / "in").write_text("Tom is here.\n" + "Go. " * 300_000 + "\n")
    for given in (("--input", tmp_path / "in"), ()):
        text = None if given else (tmp_path / "in").read_text()
        result = konvoi("translate", bundle, *given, "--output", tmp_path / "out", input=text)
        assert (result.exit_code, "line 2 is longer than 1,048,576 bytes" in result.stderr) == (2, True)
    assert not (tmp_path / "out").exists()


def test_a_pipe_is_written_to_and_a_link_followed(konvoi, bundle, tmp_path):
    expected = konvoi("translate", bundle, "Tom is here.").stdout
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE, text=True) as reader:
        assert konvoi("translate", bundle, "Tom is here.", "--output", tmp_path / "pipe").exit_code == 0
        assert reader.stdout and reader.stdout.read() == expected
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert konvoi("translate", bundle, "Tom is here.", "--output", tmp_path / "link").exit_code == 0
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == expected


def test_a_translation_has_letters_that_the_locale_may_lack(bundle):
    command = [sys.executable, "-m", "konvoi", "translate", str(bundle), "Ünïcødé 🦄"]
    result = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (result.returncode, b"Traceback" in result.stderr) == (0, False)
    assert result.stdout.decode("utf-8")
