"""Gives the readers of files that others made bytes that atheris thinks up, guided by which branches they reach.

    pip install atheris
    .venv/bin/python benchmarks/faults/fuzz.py recipe|cluster|events|sgml|index [--seconds 120]

A reader may give a result or a UserError; anything else ends the run, and the bytes are left in crash-*. What it found
interesting stays in --corpus. hypothesis does the same with shaped values in tests/faults/test_readers.py.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

READ_BY = ["analysis", "cluster", "config", "data", "images", "report", "run_directory"]
with atheris.instrument_imports(include=[*(f"konvoi.{name}" for name in READ_BY), "tomllib"]):
    from konvoi.analysis.record import RunRecord
    from konvoi.cluster.hosts import read_cluster
    from konvoi.config.recipe import check, read_toml, shipped
    from konvoi.data.text import raw_lines
    from konvoi.errors import UserError
    from konvoi.images.index import Entries, write_index
    from konvoi.report.page import build

SEGMENTS = b'<refset setid="a"><doc docid="1"><seg id="1">Hello &amp; goodbye.</seg></doc></refset>\n'
EVENTS = b'{"kind": "step", "time": 1.0, "step": 1, "loss": 2.5}\n{"kind": "restart", "step": 1, "stall_seconds": 2}\n'
CLUSTER = b'folder = "~/konvoi"\n[[hosts]]\nname = "a"\nssh = "a"\naddress = "10.0.0.1"\n'


def read_recipe(folder: Path, content: bytes) -> None:
    (folder / "r.toml").write_bytes(content)
    check(read_toml(folder / "r.toml"))


def read_cluster_file(folder: Path, content: bytes) -> None:
    (folder / "cluster.toml").write_bytes(content)
    read_cluster(folder / "cluster.toml")


def read_run(folder: Path, content: bytes) -> None:
    """The whole way of an event: into the record and onto the page."""
    (folder / "events").mkdir(exist_ok=True)
    (folder / "recipe.toml").touch()
    (folder / "events" / "rank0.jsonl").write_bytes(content)
    build(RunRecord.read(folder))


def read_sgml(folder: Path, content: bytes) -> None:
    (folder / "a.sgm").write_bytes(content)
    list(raw_lines(folder / "a.sgm"))


def read_index(folder: Path, content: bytes) -> None:
    """The first byte says which of its two files is to be another."""
    path = _sound_index(folder).with_suffix((".npy", ".tsv")[content[:1] < b"\x80"])
    path.write_bytes(content[1:])
    list(Entries(folder / "train"))


def _sound_index(folder: Path) -> Path:
    lines = [f"train/cat/{number}.jpg\tcat\t100\t4\t4\t{number:032x}\n" for number in range(3)]
    write_index(folder / "train", lines, {"cat": 0})
    return folder / "train"


def index_examples() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        sound = _sound_index(Path(folder))
        return [
            first + sound.with_suffix(suffix).read_bytes() for first, suffix in ((b"\xff", ".npy"), (b"\0", ".tsv"))
        ]


READERS: dict[str, tuple[Callable[[Path, bytes], None], list[bytes]]] = {
    "recipe": (read_recipe, [file.read_bytes() for file in shipped().values()]),
    "cluster": (read_cluster_file, [CLUSTER]),
    "events": (read_run, [EVENTS]),
    "sgml": (read_sgml, [SEGMENTS]),
    "index": (read_index, index_examples()),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("reader", choices=READERS)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--corpus", type=Path)
    given = parser.parse_args()
    read, examples = READERS[given.reader]
    folder = Path(tempfile.mkdtemp())
    corpus = given.corpus or folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, example in enumerate(examples):
        (corpus / f"example-{number}").write_bytes(example)
    (folder / "at").mkdir()

    def one(content: bytes) -> None:
        with contextlib.suppress(UserError):
            read(folder / "at", content)

    atheris.Setup([sys.argv[0], f"-max_total_time={given.seconds}", "-max_len=4096", str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
