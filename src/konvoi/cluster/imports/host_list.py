"""Hosts from mpirun's -H: a:2,b:2."""

from __future__ import annotations

import re

from konvoi.cluster.hosts import Host
from konvoi.cluster.imports._common import Note, no_note
from konvoi.cluster.imports._named import Named, check_destination, merged, split_slots, to_hosts
from konvoi.errors import ClusterError


def hosts(text: str, note: Note = no_note, ssh_config: str | None = None) -> list[Host]:
    return to_hosts(parse(text), note, ssh_config)


def parse(text: str) -> list[Named]:
    """Blanks after a comma, which mpirun takes for the end of the list, do no harm."""
    words = [word for word in re.split(r"[,\s]+", text) if word]
    if not words:
        raise ClusterError("-H: no host is named", hint="as in -H a:2,b:2")
    return merged(_named(word) for word in words)


def _named(word: str) -> Named:
    name, slots = split_slots(word, "-H")
    return Named(check_destination(name, "-H"), slots or 1)
