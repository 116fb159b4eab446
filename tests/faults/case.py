"""One case of bad input, and what several of them are made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tests.faults.place import Put, all_of, has, nothing

Kind = Literal[
    "command line",
    "recipe",
    "override",
    "text",
    "vocabulary",
    "archive",
    "picture",
    "checkpoint",
    "run directory",
    "prepared set",
    "bundle",
    "cluster file",
    "list of hosts",
    "address",
    "profile",
    "disk",
]


@dataclass(frozen=True)
class Case:
    kind: Kind
    command: str
    """What follows "konvoi", as in a shell; PORT is one that is taken."""
    what: str
    """What is bad, in words for the list."""
    says: str
    """Part of the answer."""
    put: Put = nothing
    environment: dict[str, str] = field(default_factory=dict)
    standard_input: bytes = b""
    disk: Literal["", "full", "read-only"] = ""
    """What kind of disk it happens on."""

    @property
    def name(self) -> str:
        """konvoi data prepare ... -> data prepare"""
        words = self.command.split()
        return " ".join(words[:2]) if words[0] in ("data", "recipes", "cluster") else words[0]

    def __str__(self) -> str:
        return f"{self.command[:60]} ({self.what})"


DEEP = "a = " + "[" * 3000
LATIN = "caf\xe9\n".encode("latin-1")
NUL = "one\0two\n"
LONG_LINE = "x" * 10_000_000 + "\n"
MANY_DIGITS = "9" * 400
LONG_NAME = "x" * 300
HOST = '[[hosts]]\nname = "a"\nssh = "a"\naddress = "10.0.0.1"\n'
OTHER = '[[hosts]]\nname = "b"\nssh = "b"\naddress = "10.0.0.2"\n'
SPEC = "job/spec.json"
OWN = '[task]\nsource = "en"\ntarget = "de"\n[data]\nset = "own"\ntrain_source = "a.en"\ntrain_target = "a.de"\n'
TRAIN = '[train]\nduration = "2 steps"\n[schedule]\nname = "constant"\nlearning_rate = 0.1\n'


def recipe(text: str) -> Put:
    return has("bad.toml", text)


def own(source: str | bytes, target: str | bytes = "eins\nzwei\n", more: str = "") -> Put:
    return all_of(has("own.toml", OWN + more + TRAIN), has("a.en", source), has("a.de", target))


def cluster(text: str) -> Put:
    return has("cluster.toml", text)
