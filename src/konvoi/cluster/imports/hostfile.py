"""Hosts from a host file of mpirun: a line each, as in `a slots=2`, `a:2` or just `a`."""

from __future__ import annotations

import re

from konvoi.cluster.hosts import Host
from konvoi.cluster.imports._common import Note, no_note
from konvoi.cluster.imports._named import Named, check_destination, merged, parse_slots, split_slots, to_hosts
from konvoi.errors import ClusterError, did_you_mean

# Of Open MPI, MPICH and their forebears.
SLOTS = ("slots", "count", "cpu")
USER = ("user", "username", "user_name")
INTERFACE = "ifname"
# How many a host takes at most is mpirun's affair.
IGNORED = ("max_slots", "slots_max")
KEYS = (*SLOTS, *USER, INTERFACE, *IGNORED)


def hosts(text: str, note: Note = no_note, ssh_config: str | None = None) -> list[Host]:
    return to_hosts(parse(text), note, ssh_config)


def parse(text: str) -> list[Named]:
    lines = ((number, line.partition("#")[0].strip()) for number, line in enumerate(text.splitlines(), start=1))
    named = [_named(line, f"line {number}") for number, line in lines if line]
    if not named:
        raise ClusterError("the host file names no host", hint="a line each, as in: gpu-1 slots=2")
    return merged(named)


def _named(line: str, place: str) -> Named:
    # mpirun takes `slots = 2`, too.
    word, *settings = re.sub(r"\s*=\s*", "=", line).split()
    if word[0] in "+^":
        raise ClusterError(f'{place}: "{word}" chooses among hosts; name each one', hint="as in: gpu-1 slots=2")
    name, slots = split_slots(word, place)
    values = dict(_setting(setting, place) for setting in settings)
    given = next((parse_slots(values[key], place) for key in SLOTS if key in values), None)
    user = next((values[key] for key in USER if key in values), "")
    destination = check_destination(f"{user}@{name}" if user else name, place)
    return Named(destination, given or slots or 1, values.get(INTERFACE))


def _setting(word: str, place: str) -> tuple[str, str]:
    key, _, value = word.partition("=")
    key = key.lower().replace("-", "_")
    if key not in KEYS:
        raise ClusterError(f'{place}: "{word}" is not known{did_you_mean(key, KEYS)}', hint="as in: gpu-1 slots=2")
    return key, value.strip("\"'")
