"""konvoi cluster check: what would make a training fail, hang or crawl; also what `train --cluster` looks at first."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

from konvoi import registry
from konvoi.cluster import checks
from konvoi.cluster.all_reduce import AllReduce
from konvoi.cluster.checks import Finding
from konvoi.cluster.dataset import needed
from konvoi.cluster.hosts import Cluster, read_cluster
from konvoi.cluster.survey import Survey, Wanted, content_digest, survey
from konvoi.cluster.transfer import digests_here
from konvoi.commands.output import aligned, print_json
from konvoi.config.recipe import Recipe, read
from konvoi.errors import ClusterError
from konvoi.exit_codes import DONE, USER
from konvoi.fetch.sets import KNOWN_SETS
from konvoi.folder import write_whole
from konvoi.images.sets import DEMO_IMAGES

Judged = tuple[str, Finding]
"""A check's title with one of its findings."""


def check(cluster_file: Path, recipe: str | None, quick: bool, as_json: bool) -> int:
    cluster = read_cluster(cluster_file)
    found = survey(cluster, wanted_by(read(recipe), recipe) if recipe else None, quick)
    judged = judge(found)
    if not quick:
        write_whole(measured_file(cluster_file), json.dumps(_measured(found), indent=2))
    if as_json:
        print_json({"findings": [_as_dict(*each) for each in judged], **_measured(found), "seconds": found.seconds})
    else:
        typer.echo(_table(judged, cluster))
    return USER if _errors(judged) else DONE


def preflight(cluster: Cluster, recipe: Recipe | None = None, quick: bool = True, name: str = "RECIPE") -> Survey:
    """What a training does first: errors end it, all of them at once; warnings are said.

    The recipe goes by this name in what is said.
    """
    found = survey(cluster, wanted_by(recipe, name) if recipe else None, quick)
    judged = judge(found)
    for title, finding in judged:
        if finding.level == "warning":
            typer.echo(f"warning: {_place(title, finding)}: {finding.found}", err=True)
    if errors := _errors(judged):
        lines = "\n".join(f"  {_place(title, finding)}: {finding.found}" for title, finding in errors)
        fixes = "\n".join(dict.fromkeys(finding.fix for _, finding in errors if finding.fix))
        raise ClusterError(f"the cluster is not ready: {_problems(len(errors))}\n{lines}", hint=fixes)
    return found


def wanted_by(recipe: Recipe, name: str) -> Wanted:
    """What the hosts should have; nothing is prepared for it."""
    prepared = registry.find("task", recipe.name_of("task")).find(recipe)
    if prepared is None:
        return Wanted(name, is_here=_is_embedded(getattr(recipe.data, "set", "")))
    files = needed(prepared)
    return Wanted(name, files=files, digest=(files and content_digest(digests_here(files.files))) or "")


def _is_embedded(set_name: str) -> bool:
    """Comes with the package, so every host can make it."""
    known = KNOWN_SETS.get(set_name)
    return set_name == DEMO_IMAGES or (known is not None and known.embedded)


def judge(found: Survey) -> list[Judged]:
    """What all checks say, in their order."""
    return [(module.TITLE, finding) for module in all_checks() for finding in module.examine(found)]


def all_checks() -> list[ModuleType]:
    names = [entry.name for entry in pkgutil.iter_modules(checks.__path__) if not entry.name.startswith("_")]
    modules = [importlib.import_module(f"{checks.__name__}.{name}") for name in names]
    return sorted(modules, key=lambda module: int(module.ORDER))


def measured_file(cluster_file: Path) -> Path:
    """Beside the cluster file: what was measured last."""
    return cluster_file.with_name(f"{cluster_file.stem}.check.json")


def _measured(found: Survey) -> dict[str, Any]:
    return {
        "links": [asdict(link) for link in found.links],
        "all_reduce": _all_reduce(found.all_reduce),
        "clocks": {name: asdict(clock) for name, clock in found.clocks.items()},
    }


def _all_reduce(done: AllReduce | None) -> dict[str, Any] | None:
    return None if done is None or done.failed_host else {**asdict(done), "bytes_per_second": done.bytes_per_second}


def _as_dict(title: str, finding: Finding) -> dict[str, str]:
    return {"check": title, **asdict(finding)}


def _errors(judged: list[Judged]) -> list[Judged]:
    return [(title, finding) for title, finding in judged if finding.level == "error"]


def _table(judged: list[Judged], cluster: Cluster) -> str:
    rows = [("check", "host", "", "found")]
    rows += [(title, finding.host or "all", finding.level, finding.found) for title, finding in judged]
    return "\n\n".join([aligned(rows), *_fixes(judged), _verdict(judged, cluster)])


def _fixes(judged: list[Judged]) -> Iterator[str]:
    """A remedy once, with all that it is for."""
    places: dict[str, list[str]] = {}
    for title, finding in judged:
        if finding.level != "ok" and finding.fix:
            places.setdefault(finding.fix, []).append(_place(title, finding))
    for fix, whose in places.items():
        yield f"{', '.join(dict.fromkeys(whose))}:\n" + "\n".join(f"  {line}" for line in fix.splitlines())


def _place(title: str, finding: Finding) -> str:
    return f"{title}, {finding.host}" if finding.host else title


def _verdict(judged: list[Judged], cluster: Cluster) -> str:
    levels = Counter(finding.level for _, finding in judged)
    warnings = f", {levels['warning']} warning{'s' * (levels['warning'] != 1)}" if levels["warning"] else ""
    if levels["error"]:
        return _problems(levels["error"]) + warnings
    hosts, workers = len(cluster.hosts), cluster.num_workers
    return f"ready: {hosts} host{'s' * (hosts != 1)}, {workers} worker{'s' * (workers != 1)}{warnings}"


def _problems(count: int) -> str:
    return "1 problem" if count == 1 else f"{count} problems"
