"""Konvoi and pip as wheels, made of what runs here, so that hosts get exactly that."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from email import message_from_bytes
from email.message import Message
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path

import konvoi
from konvoi.errors import ClusterError

# The same sources give the same bytes, at whatever time: a second setup then has nothing to do.
EPOCH_SECONDS, EPOCH = "315532800", (1980, 1, 1, 0, 0, 0)
# Of the installation, not of what was installed.
LEFT_OUT = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
NOT_SOURCES = shutil.ignore_patterns("__pycache__", "*.egg-info")


def own_wheel(folder: Path) -> Path:
    """Built where Konvoi runs from a checkout, else put together again from its installed files."""
    root = Path(konvoi.__file__).parents[2]
    return _build(root, folder) if (root / "pyproject.toml").is_file() else installed_wheel("konvoi", folder)


def installed_wheel(name: str, folder: Path) -> Path:
    """An installed distribution as the wheel that it came from."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        hint = f"{Path(sys.executable).name} -m ensurepip brings it" if name == "pip" else f"install {name} again"
        raise ClusterError(f"{name} is not installed here, and hosts get what is here", hint=hint) from None
    files = sorted((str(file), Path(str(file.locate()))) for file in found.files or () if _belongs(file))
    info = Path(next(name for name, _ in files if name.endswith(".dist-info/METADATA"))).parent.name
    path = folder / f"{info.removesuffix('.dist-info')}-{_tag(found)}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        rows = [_add(archive, name, file.read_bytes()) for name, file in files]
        _add(archive, f"{info}/RECORD", "".join([*rows, f"{info}/RECORD,,\n"]).encode())
    return path


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def run_pip(words: Sequence[str], problem: str, **variables: str) -> None:
    """The pip of this environment; its last words where it fails."""
    command = [sys.executable, "-m", "pip", *words, "--quiet", "--no-input", "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"]
        raise ClusterError(f"{problem}: {said[-1].removeprefix('ERROR: ')}", hint=f"pip {' '.join(words)}")


def _build(root: Path, folder: Path) -> Path:
    """From a copy: setuptools would leave things in the checkout, and pack what an earlier build has left there."""
    with tempfile.TemporaryDirectory() as temporary:
        copy, made = Path(temporary, "sources"), Path(temporary, "made")
        shutil.copytree(root / "src", copy / "src", ignore=NOT_SOURCES)
        for file in root.iterdir():
            if file.is_file():
                shutil.copy(file, copy)
        # With the setuptools that is here; else pip fetches one.
        isolation = ["--no-build-isolation"] if _has_setuptools() else []
        words = ["wheel", "--no-deps", *isolation, "--wheel-dir", str(made), str(copy)]
        run_pip(words, f"no wheel could be made of {root}", SOURCE_DATE_EPOCH=EPOCH_SECONDS)
        wheel = next(made.glob("*.whl"))
        return Path(shutil.copy(wheel, folder))


def _has_setuptools() -> bool:
    """One that is new enough (see pyproject.toml)."""
    try:
        return int(distribution("setuptools").version.split(".")[0]) >= 77
    except PackageNotFoundError:
        return False


def _belongs(file: PackagePath) -> bool:
    is_of_installation = file.parent.name.endswith(".dist-info") and file.name in LEFT_OUT
    # Scripts lie outside, and are made again from the entry points.
    return not (is_of_installation or file.parts[0] == ".." or file.suffix == ".pyc")


def _tag(found: Distribution) -> str:
    """py3-none-any"""
    lines = (found.read_text("WHEEL") or "").splitlines()
    return next(line.partition(": ")[2] for line in lines if line.startswith("Tag: "))


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> str:
    """Packs a file; returns its line of RECORD."""
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    sha256 = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={sha256},{len(content)}\n"
