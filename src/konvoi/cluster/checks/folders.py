"""Whether a run and the data can be written where they shall lie."""

from __future__ import annotations

from collections.abc import Iterator

from konvoi.cluster.checks import Finding
from konvoi.cluster.checks._hosts import judged, seen
from konvoi.cluster.survey import Survey

TITLE = "folders"
ORDER = 85


def examine(survey: Survey) -> Iterator[Finding]:
    return judged(_problems(survey), {host.name: "writable" for host, _ in seen(survey)})


def _problems(survey: Survey) -> Iterator[Finding]:
    for host, facts in seen(survey):
        if problem := facts.folder.problem:
            found = f"cannot write to {facts.folder.path}: {problem}"
            fix = "mend that, or name another one: folder = in cluster.toml"
            yield Finding(host.name, "error", found, fix, "folder-not-writable")
        if problem := facts.home.problem:
            found = f"cannot write to {facts.home.path}: {problem}"
            fix = "enough if all data is prepared already; else name another one: home = in cluster.toml"
            yield Finding(host.name, "warning", found, fix, "home-not-writable")
