"""A folder for one case of bad input: what is put there before the command is called, and whether it is as before."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shlex
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bundle.test_classifier import made_bundle, mean_colour

from konvoi.bundle.format import Description, Variant, write_description

Content = str | bytes | Callable[[], bytes]
Put = Callable[["Place"], None]
"""Puts something bad, or something whole to be spoilt, into a place."""


@dataclass
class Place:
    """Where the command is called; `run`, `prepared`, `corpus` and `recipe` are whole ones that exist elsewhere."""

    folder: Path
    trained_run: Path
    prepared: Path
    corpus: tuple[Path, Path]
    listeners: list[socket.socket] = field(default_factory=list)

    @property
    def port(self) -> int:
        """One that somebody else listens on."""
        if not self.listeners:
            self.listeners.append(socket.create_server(("127.0.0.1", 0)))
        number: int = self.listeners[0].getsockname()[1]
        return number

    def close(self) -> None:
        for listener in self.listeners:
            listener.close()

    def words(self, command: str) -> list[str]:
        """ "train bad.toml --set 'a=b c'" as a shell would split it, without its $ and *."""
        return shlex.split(self.filled_in(command))

    def filled_in(self, text: str) -> str:
        """PORT becomes the number of one that is taken."""
        # MASTER_PORT is none of ours.
        return re.sub(r"\bPORT\b", lambda _: str(self.port), text)


def snapshot(folder: Path) -> dict[str, str]:
    """Every file and folder below, with what it holds."""
    return {str(path.relative_to(folder)): _content(path) for path in sorted(folder.rglob("*"))}


def _content(path: Path) -> str:
    if path.is_symlink():
        return f"-> {path.readlink()}"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"


def nothing(place: Place) -> None:
    """The command line itself is what is bad."""


def has(name: str, content: Content) -> Put:
    return lambda place: write(place.folder / name, content)


def folder(name: str) -> Put:
    return lambda place: (place.folder / name).mkdir(parents=True)


def write(path: Path, content: Content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content() if callable(content) else content)


def all_of(*puts: Put) -> Put:
    def put(place: Place) -> None:
        for one in puts:
            one(place)

    return put


def run(*spoils: Callable[[Path], None]) -> Put:
    """run/, trained, and then spoilt."""

    def put(place: Place) -> None:
        shutil.copytree(place.trained_run, place.folder / "run")
        for spoil in spoils:
            spoil(place.folder / "run")

    return put


def prepared(*spoils: Callable[[Path], None]) -> Put:
    """prepared/, a prepared set, and then spoilt."""

    def put(place: Place) -> None:
        shutil.copytree(place.prepared, place.folder / "prepared")
        for spoil in spoils:
            spoil(place.folder / "prepared")

    return put


def corpus(place: Place) -> None:
    """a.en and a.de"""
    for name, file in zip(("a.en", "a.de"), place.corpus, strict=True):
        shutil.copy(file, place.folder / name)


def colours(*spoils: Callable[[Path], None]) -> Put:
    """colours/, a bundle that tells colours apart, and then spoilt."""

    def put(place: Place) -> None:
        made_bundle(place.folder / "colours", {"float32": mean_colour(0.1).SerializeToString()})
        for spoil in spoils:
            spoil(place.folder / "colours")

    return put


def en_de(*spoils: Callable[[Path], None]) -> Put:
    """en-de/, the bundle of a translator with weights that are none, and then spoilt."""

    def put(place: Place) -> None:
        path = place.folder / "en-de"
        write(path / "float32" / "model.bin", b"no weights")
        shutil.copy(place.trained_run / "vocabulary.model", path)
        settings = {"source": "en", "target": "de", "beam": 5, "length_penalty": 0.6}
        variants = {"float32": Variant("float32", 10)}
        write_description(path, Description("translation", "tiny", "", "0", variants, "float32", settings))
        for spoil in spoils:
            spoil(path)

    return put


def replaced(name: str, content: Content) -> Callable[[Path], None]:
    return lambda path: write(path / name, content)


def removed(name: str) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        found = path / name
        shutil.rmtree(found) if found.is_dir() else found.unlink()

    return spoil


def cut(name: str) -> Callable[[Path], None]:
    """To its first half."""

    def spoil(path: Path) -> None:
        content = (path / name).read_bytes()
        (path / name).write_bytes(content[: len(content) // 2])

    return spoil


def flipped(name: str) -> Callable[[Path], None]:
    """One bit in its middle."""

    def spoil(path: Path) -> None:
        content = bytearray((path / name).read_bytes())
        content[len(content) // 2] ^= 1
        (path / name).write_bytes(content)

    return spoil


def edited(name: str, **changes: Any) -> Callable[[Path], None]:
    """Some keys of a JSON file."""

    def spoil(path: Path) -> None:
        file = path / name
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return spoil


def cut_gzip(text: str) -> bytes:
    packed = gzip.compress(text.encode())
    return packed[: len(packed) // 2]
