"""The real thing: all hosts add up a vector, over gloo or NCCL."""

from __future__ import annotations

from collections.abc import Iterator

from konvoi.cluster.checks import Finding
from konvoi.cluster.checks.links import rate_words
from konvoi.cluster.survey import Survey

TITLE = "all-reduce"
ORDER = 58
FIX = "the interface of each host must reach the others on any port; the lines above name what does not"


def examine(survey: Survey) -> Iterator[Finding]:
    done = survey.all_reduce
    if done is None:
        return
    if done.failed_host:
        yield Finding(done.failed_host, "error", f"{done.backend} failed: {done.problem}", FIX, "all-reduce-failed")
    else:
        megabytes, rate = f"{done.num_bytes / 1e6:.3g} MB", rate_words(done.bytes_per_second)
        yield Finding("", "ok", f"{megabytes} over {done.backend} in {done.seconds * 1e3:.3g} ms: {rate} each way")
