"""What every host is given: our wheel, pip, and the versions of all that Konvoi needs, as they are here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from konvoi.cluster.setup.wheel import installed_wheel, metadata_of, own_wheel
from konvoi.folder import write_whole

PINS_FILE = "pins.txt"
# For those who work on Konvoi; other extras that are installed here the hosts get too.
EXTRA_LEFT_OUT = "dev"


@dataclass(frozen=True)
class Kit:
    wheel: Path
    pip_wheel: Path
    extras: tuple[str, ...]
    pins: tuple[str, ...]
    """name==version, sorted."""
    pins_file: Path

    @property
    def files(self) -> dict[str, Path]:
        return {path.name: path for path in (self.wheel, self.pip_wheel, self.pins_file)}

    def key(self, python: str) -> str:
        """Changes with anything that an environment is made of."""
        parts = (self.wheel.read_bytes(), *(text.encode() for text in (*self.extras, *self.pins, python)))
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def make_kit(folder: Path) -> Kit:
    """Of the Konvoi that runs here."""
    return kit_of(own_wheel(folder), folder)


def kit_of(wheel: Path, folder: Path) -> Kit:
    """Of any wheel."""
    metadata = metadata_of(wheel)
    requirements = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    extras = [extra for extra in metadata.get_all("Provides-Extra", []) if _is_installed(extra, requirements)]
    pins = pins_of(requirements, extras)
    write_whole(folder / PINS_FILE, "".join(f"{pin}\n" for pin in pins))
    return Kit(wheel, installed_wheel("pip", folder), tuple(extras), tuple(pins), folder / PINS_FILE)


def pins_of(requirements: Iterable[Requirement], extras: Iterable[str] = ()) -> list[str]:
    """The versions here of all that is required, directly or by what is required."""
    versions: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = _that_apply(requirements, extras)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if (name, frozenset(requirement.extras)) in seen:
            continue
        seen.add((name, frozenset(requirement.extras)))
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue  # of use elsewhere only, or not missed so far
        # Without what follows +: "+cpu" here must not keep a host with GPUs from another build of the same version.
        versions[name] = Version(found.version).public
        waiting += _that_apply(map(Requirement, found.requires or ()), requirement.extras)
    return sorted(f"{name}=={version}" for name, version in versions.items())


def _that_apply(requirements: Iterable[Requirement], extras: Iterable[str]) -> list[Requirement]:
    chosen = ("", *extras)
    return [one for one in requirements if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in chosen)]


def _is_installed(extra: str, requirements: list[Requirement]) -> bool:
    """All that the extra adds is here."""
    plain = _that_apply(requirements, ())
    added = [one for one in _that_apply(requirements, [extra]) if one not in plain]
    return extra != EXTRA_LEFT_OUT and all(_is_here(one.name) for one in added)


def _is_here(name: str) -> bool:
    try:
        return bool(distribution(name).version)
    except PackageNotFoundError:
        return False
