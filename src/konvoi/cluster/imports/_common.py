"""What all sources share: names that may stand in cluster.toml, and hosts from whatever was found."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator

from pydantic import ValidationError

from konvoi.cluster.hosts import TAKEN, Host, explain_problems
from konvoi.errors import ClusterError

Note = Callable[[str], None]
NAME_LENGTH = 50


def no_note(sentence: str) -> None:
    pass


def valid_name(text: str) -> str:
    """GPU node #1 -> GPU-node-1; empty where nothing is left."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("._-")[:NAME_LENGTH]
    return f"host-{name}" if re.fullmatch(TAKEN, name) else name


def unique(names: Iterable[str]) -> Iterator[str]:
    """worker, worker -> worker, worker-2"""
    taken: set[str] = set()
    for name in names:
        candidates = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        free = next(candidate for candidate in candidates if candidate.lower() not in taken)
        taken.add(free.lower())
        yield free


def make_host(origin: str, **keys: object) -> Host:
    """A host of cluster.toml, or why it cannot be one; `origin` is what the source calls it."""
    try:
        return Host.model_validate({key: value for key, value in keys.items() if value is not None})
    except ValidationError as error:
        raise ClusterError(f"{origin}: {'; '.join(explain_problems(error))}") from None
