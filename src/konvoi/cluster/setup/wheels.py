"""The wheels of a kit for hosts that can't fetch them: downloaded here, once for each kind of host."""

from __future__ import annotations

import platform
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from konvoi.cluster.setup.kit import Kit
from konvoi.cluster.setup.wheel import run_pip
from konvoi.data.fingerprint import key_of
from konvoi.data.home import konvoi_home
from konvoi.folder import make_once
from konvoi.stages import Report

# glibc 2.17 and 2.12, 2.5 had names of their own before wheels named the version.
OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
OLDEST_GLIBC = 5
TYPICAL_BYTES = 3_000_000_000

_DOWNLOADING = threading.Lock()


@dataclass(frozen=True)
class Platform:
    """What decides which wheels fit."""

    python: str
    """3.11"""
    machine: str
    """x86_64"""
    glibc: str
    """2.36; empty where there is another C library."""

    @classmethod
    def here(cls) -> Platform:
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        return cls(python, platform.machine(), platform.libc_ver()[1] if sys.platform == "linux" else "")

    @classmethod
    def of(cls, seen: Mapping[str, Any]) -> Platform:
        """From what far/environment.look() says."""
        return cls(".".join(str(seen["python"]).split(".")[:2]), str(seen["machine"]), str(seen["glibc"]))

    def words(self) -> list[str]:
        """What pip must be told to take wheels for another machine than this."""
        abi = f"cp{self.python.replace('.', '')}"
        words = ["--python-version", self.python, "--implementation", "cp", "--abi", abi]
        words += ["--abi", "abi3", "--abi", "none"]
        for tag in (*self._tags(), "any"):
            words += ["--platform", tag]
        return words

    def _tags(self) -> Iterator[str]:
        """The newest C library first; a wheel for an older one runs on a newer."""
        if self.glibc:
            for minor in range(int(self.glibc.split(".")[1]), OLDEST_GLIBC - 1, -1):
                yield f"manylinux_2_{minor}_{self.machine}"
                if minor in OLD_NAMES:
                    yield f"{OLD_NAMES[minor]}_{self.machine}"
        yield f"linux_{self.machine}"


def wheels_for(kit: Kit, host: Platform, report: Report) -> dict[str, Path]:
    """All that the kit needs besides itself, by name."""
    final = konvoi_home() / "wheels" / key_of([kit.pins, asdict(host)])

    def make(folder: Path) -> None:
        report("downloading wheels here")
        words = ["download", "--only-binary", ":all:", "--dest", str(folder), "--requirement", str(kit.pins_file)]
        words += [] if host == Platform.here() else host.words()
        run_pip(words, f"no wheels for Python {host.python} on {host.machine}")

    if not kit.pins:
        return {}
    # The hosts' threads; make_once() keeps other processes out.
    with _DOWNLOADING:
        make_once(final, make, needed_bytes=TYPICAL_BYTES, report=report)
    return {path.name: path for path in sorted(final.glob("*.whl"))}
