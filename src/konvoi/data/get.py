"""Takes the files of a known set into Konvoi's home, after checking them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import chain
from pathlib import Path

from konvoi.data.fingerprint import fingerprint
from konvoi.data.folder import whole_folder
from konvoi.data.sets import MANIFEST_FILE, KnownSet, is_here, locate, set_folder
from konvoi.data.text import read_pairs
from konvoi.errors import DataError

REPORT_EVERY_LINES = 50_000
Report = Callable[[str, int], None]


def silent(stage: str, num_lines: int) -> None:
    """Reports to nobody."""


def get(known: KnownSet, *, home: Path, from_folder: Path | None = None, report: Report = silent) -> Path:
    """Copies the files of a set into home/sets/NAME with a manifest; an embedded set is there already."""
    if known.embedded:
        return known.embedded_path
    final = set_folder(known, home)
    if is_here(known, home) and from_folder is None:
        return final
    splits = locate(known, home, _checked_folder(from_folder))
    files = list(chain.from_iterable(splits.values()))
    if is_here(known, home):
        _check_same(final, files)
        return final
    lines = {split: _count_pairs(split, paths, report) for split, paths in splits.items()}
    with whole_folder(final, needed_bytes=sum(path.stat().st_size for path in files)) as temporary:
        for path in files:
            shutil.copy2(path, temporary / path.name)
        (temporary / MANIFEST_FILE).write_text(json.dumps(_manifest(known, lines, files), indent=2) + "\n")
    return final


def _checked_folder(folder: Path | None) -> Path | None:
    if folder is not None and not folder.is_dir():
        raise DataError(f"{folder} is no folder", hint="name the folder that holds the files of the set")
    return folder


def _check_same(final: Path, files: list[Path]) -> None:
    manifest = json.loads((final / MANIFEST_FILE).read_text(encoding="utf-8"))
    if manifest["files"] != [fingerprint(path) for path in files]:
        raise DataError(f"{final} holds other files of this set", hint=f"to replace them, first remove {final}")


def _count_pairs(split: str, paths: tuple[Path, Path], report: Report) -> int:
    """Reads everything once: a damaged or unequal file shows now, not after hours."""
    number = 0
    for number, _ in enumerate(read_pairs(*paths), start=1):
        if number % REPORT_EVERY_LINES == 0:
            report(f"checking {split}", number)
    report(f"checking {split}", number)
    return number


def _manifest(known: KnownSet, lines: dict[str, int], files: list[Path]) -> dict[str, object]:
    return {
        "set": known.name,
        "licence": known.licence,
        "citation": known.citation,
        "lines": lines,
        "files": [fingerprint(path) for path in files],
    }
