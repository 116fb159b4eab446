"""What the recipe reads is on every host, and the same as here."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from konvoi.cluster.checks import Finding
from konvoi.cluster.survey import Survey

TITLE = "data"
ORDER = 92


def examine(survey: Survey) -> Iterator[Finding]:
    wanted = survey.wanted
    if wanted is None:
        return
    fix = f"konvoi cluster setup --recipe {shlex.quote(wanted.recipe)}"
    if not wanted.is_here:
        yield Finding("", "ok", "not prepared on this machine: each host makes its own, and a training compares them")
    elif wanted.files is None:
        yield Finding("", "ok", "part of Konvoi: the hosts make it themselves")
    for host, digest in survey.data.items():
        if digest is None:
            found = "not there, or not whole: the host would have to make it from files of its own"
            yield Finding(host, "warning", found, fix, "data-missing")
        elif digest != wanted.digest:
            yield Finding(host, "error", "other data than on this machine", fix, "data-differs")
        else:
            yield Finding(host, "ok", f"as on this machine: {digest[:12]}")
