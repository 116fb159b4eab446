"""Whether the shared folder is mounted everywhere, and is one and the same."""

from __future__ import annotations

from collections.abc import Iterator

from konvoi.cluster.checks import Finding
from konvoi.cluster.checks._hosts import seen
from konvoi.cluster.survey import Survey

TITLE = "shared folder"
ORDER = 90


def examine(survey: Survey) -> Iterator[Finding]:
    shared = survey.cluster.shared
    if shared is None:
        yield Finding("", "ok", "none in cluster.toml")
        return
    for host, facts in seen(survey):
        if not facts.is_shared_mounted:
            found = f"{shared.source} is not mounted on {shared.target}"
            yield Finding(host.name, "error", found, "konvoi cluster setup mounts it", "shared-not-mounted")
        elif not survey.shared.get(host.name, True):
            found = f"what another host writes to {shared.target} is not seen here"
            fix = f"is something else mounted there? findmnt {shared.target}"
            yield Finding(host.name, "error", found, fix, "shared-differs")
        else:
            yield Finding(host.name, "ok", f"{shared.target} is mounted")
