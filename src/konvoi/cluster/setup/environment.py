"""Brings a host's virtual environment to what the kit says: made, mended, or left alone where nothing is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from packaging.version import Version

from konvoi.cluster.hosts import Cluster
from konvoi.cluster.session import Session
from konvoi.cluster.setup.kit import Kit
from konvoi.cluster.setup.wheels import Platform, wheels_for
from konvoi.cluster.transfer import push
from konvoi.errors import HostError
from konvoi.stages import Report, silent

# Installing torch is minutes without a word on a slow disk; a lost connection is noticed by ssh, not by this.
INSTALL_SECONDS = 1800.0
LEAST_PYTHON = (3, 11)
WHEELS_FOLDER = "wheels"
# What a prebuilt environment must have as it is here.
MUST_BE_EQUAL = ("konvoi", "torch")
MAX_NAMED = 4


def bring(session: Session, cluster: Cluster, kit: Kit, *, offline: bool = False, report: Report = silent) -> str:
    """Says what was done."""
    report("looking at the environment")
    seen = session.ask("environment.look", venv=cluster.venv)
    _check_python(session, seen)
    key = kit.key(seen["python"])
    what_for = _why_not_ready(seen, key)
    if not what_for:
        return "unchanged"
    if seen["venv_python"] != seen["python"]:
        report("making the environment")
        session.ask("environment.make", venv=cluster.venv)
    session.ask("environment.unmark", venv=cluster.venv)
    _install(session, cluster, kit, seen, offline, report)
    session.ask("environment.mark", venv=cluster.venv, key=key)
    return what_for


def verify_prebuilt(session: Session, cluster: Cluster) -> str:
    """An environment that others made is looked at, never touched."""
    seen = session.ask("environment.look", venv=cluster.venv)
    hint = f"rebuild it, or remove environment = {cluster.venv!r} from the cluster file: setup then makes one"
    if seen["venv_python"] is None:
        raise HostError(session.host.name, f"no Python runs in {cluster.venv}", hint)
    wrong = [
        f"{name} {seen['versions'].get(name, 'is missing')} (here {version(name)})"
        for name in MUST_BE_EQUAL
        if not _is_same(seen["versions"].get(name), version(name))
    ]
    if wrong:
        raise HostError(session.host.name, f"{cluster.venv} has {', '.join(wrong)}", hint)
    return ", ".join(["prebuilt", *(f"{name} {seen['versions'][name]}" for name in MUST_BE_EQUAL)])


def _check_python(session: Session, seen: Mapping[str, Any]) -> None:
    if tuple(int(part) for part in seen["python"].split(".")[:2]) < LEAST_PYTHON:
        least = ".".join(map(str, LEAST_PYTHON))
        raise HostError(
            session.host.name,
            f"its Python is {seen['python']}; Konvoi needs {least} or later",
            hint=f'install one and name it in the cluster file: python = "python{least}"',
        )


def _why_not_ready(seen: Mapping[str, Any], key: str) -> str:
    """What there is to do; nothing where the environment is as it was left, and that is right."""
    if not seen["is_there"]:
        return "made"
    if seen["venv_python"] != seen["python"] or not seen["mark"]:
        return "made anew"
    if seen["mark"]["key"] != key:
        return "brought up to date"
    found = seen["versions"]
    altered = [name for name, version in seen["mark"]["versions"].items() if found.get(name) != version]
    more = ", ..." if len(altered) > MAX_NAMED else ""
    return f"mended: {', '.join(sorted(altered)[:MAX_NAMED])}{more}" if altered else ""


def _install(
    session: Session, cluster: Cluster, kit: Kit, seen: Mapping[str, Any], offline: bool, report: Report
) -> None:
    folder = f"{cluster.folder}/{WHEELS_FOLDER}"
    push(session, kit.files, folder, report=report, stage="sending Konvoi")
    session.ask(
        "environment.install_pip", timeout=INSTALL_SECONDS, venv=cluster.venv, wheel=f"{folder}/{kit.pip_wheel.name}"
    )
    if offline or not _reaches_index(session, cluster, kit, report):
        offline = True
        push(session, wheels_for(kit, Platform.of(seen), report), folder, report=report, stage="sending wheels")
    report("installing")
    lines = session.stream(
        "environment.install",
        timeout=INSTALL_SECONDS,
        venv=cluster.venv,
        wheel=f"{folder}/{kit.wheel.name}",
        extras=f"[{','.join(kit.extras)}]" if kit.extras else "",
        pins=f"{folder}/{kit.pins_file.name}",
        links=folder if offline else None,
    )
    for line in lines:
        if line.startswith(("Collecting", "Installing")):
            report(f"installing: {line[:60]}")


def _reaches_index(session: Session, cluster: Cluster, kit: Kit, report: Report) -> bool:
    report("asking for the index")
    return not kit.pins or bool(
        session.ask("environment.reaches_index", timeout=INSTALL_SECONDS, venv=cluster.venv, pin=kit.pins[0])
    )


def _is_same(found: str | None, wanted: str) -> bool:
    """But for the build: 2.13.0+cpu is 2.13.0."""
    return found is not None and Version(found).public == Version(wanted).public
