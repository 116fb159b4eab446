"""Hosts from names of ~/.ssh/config."""

from __future__ import annotations

import re
from collections.abc import Sequence

from konvoi.cluster.hosts import Host
from konvoi.cluster.imports._common import Note, no_note
from konvoi.cluster.imports._named import Named, check_destination, to_hosts
from konvoi.errors import ClusterError


def hosts(names: Sequence[str], note: Note = no_note, ssh_config: str | None = None) -> list[Host]:
    """User, port, key and jump host stay in ~/.ssh/config, where ssh finds them."""
    made = to_hosts(parse(names), note, ssh_config)
    note("each has one worker: where there are more GPUs than that, set workers")
    return made


def parse(names: Sequence[str]) -> list[Named]:
    words = [word for name in names for word in re.split(r"[,\s]+", name) if word]
    for word in words:
        if re.search(r"[*?!]", word):
            raise ClusterError(f'--ssh: "{word}" is a pattern of many names', hint="name each host")
    if not words:
        raise ClusterError("--ssh: no host is named", hint="as in --ssh gpu-1 --ssh gpu-2")
    return [Named(check_destination(word, "--ssh")) for word in dict.fromkeys(words)]
