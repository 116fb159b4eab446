"""Whether ssh gets to every host, and knows it by its key."""

from __future__ import annotations

from collections.abc import Iterator

from konvoi.cluster.checks import Finding
from konvoi.cluster.survey import Survey

TITLE = "ssh"
ORDER = 10
# Parts of the problems in ssh.py.
KINDS = {
    "host key has changed": "host-key-changed",
    "host key is not known": "host-key-unknown",
    "does not accept your ssh key": "key-refused",
    "others may read your ssh key": "key-unprotected",
    "its name is unknown": "name-unknown",
    "nothing answers on its ssh port": "ssh-refused",
    "ssh configuration has a mistake": "ssh-configuration",
    "no such program": "no-python",
}


def examine(survey: Survey) -> Iterator[Finding]:
    for host in survey.cluster.hosts:
        if error := survey.unreachable.get(host.name):
            problem = error.problem.removeprefix(f"{host.name}: ")
            kind = next((kind for words, kind in KINDS.items() if words in problem), "unreachable")
            yield Finding(host.name, "error", problem, error.hint, kind)
        else:
            yield Finding(host.name, "ok", "reachable, its host key known")
