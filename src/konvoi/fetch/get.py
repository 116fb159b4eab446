"""Brings the files of a known set into Konvoi's home: downloaded and unpacked, or taken from a folder."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from konvoi.errors import DataError
from konvoi.fetch.download import download, origin_of, sha256_of, what_is_wrong
from konvoi.fetch.sets import (
    MANIFEST_FILE,
    PACKED_SUFFIXES,
    Archive,
    KnownSet,
    Shelf,
    file_names,
    is_here,
    missing_files,
    set_folder,
)
from konvoi.fetch.unpack import unpack
from konvoi.folder import make_once, read_json, write_json
from konvoi.stages import Report, silent

# Archives and what comes out of them, both on the disk for a while: text grows about threefold.
DISK_FACTOR = 4

Record = dict[str, Any]


@dataclass(frozen=True)
class Offer:
    """What a folder has of one archive: itself, or the files that it would give."""

    archive: Archive
    path: Path | None
    files: dict[str, Path]
    """The name that the set has for each file -> where it lies."""

    @property
    def names(self) -> set[str]:
        """The files of the set that come from it."""
        return {*(self.archive.files if self.path else self.files)}

    @property
    def copies(self) -> dict[str, Path]:
        """The name under which each single file is kept -> where it lies."""
        return {_name_of(path, name): path for name, path in self.files.items()}

    @property
    def num_bytes(self) -> int:
        return sum(path.stat().st_size for path in ((self.path,) if self.path else self.files.values()))


def get(
    known: KnownSet,
    *,
    home: Path,
    from_folder: Path | None = None,
    mirror: str | None = None,
    report: Report = silent,
) -> Path:
    """The folder home/sets/NAME with the files of a set and a manifest; an embedded set is there already.

    What is downloaded stays beside until the set is whole, so that the next try goes on from there.
    """
    if known.embedded:
        return known.embedded_path
    final = set_folder(known, home)
    offers = None if from_folder is None else find_offers(known, from_folder)
    if is_here(known, home):
        _check_same(final, offers or [], report)
        return final
    if final.exists() and not is_here(known, home):
        raise DataError(f"{final} was not made by konvoi data get", hint="move it away, then start again")
    making = _Making(known, final.with_name(f".{final.name}.downloads"), offers, mirror, report)
    make_once(final, making.fill, needed_bytes=making.needed_bytes, report=report)
    shutil.rmtree(making.downloads, ignore_errors=True)
    return final


def find_offers(known: KnownSet, folder: Path) -> list[Offer]:
    """What a folder has of a set; names everything that is missing."""
    shelf = Shelf(folder)
    offers = [_offer(shelf, archive) for archive in known.archives]
    offered = {name for offer in offers for name in offer.names}
    if missing := [name for name in known.required_names if name not in offered]:
        raise missing_files(known, missing, folder)
    return offers


def _offer(shelf: Shelf, archive: Archive) -> Offer:
    path = _find_archive(shelf, archive) if archive.members else None
    if path is not None:
        return Offer(archive, path, {})
    found = {name: shelf.find(name, inside) for name, inside in archive.files.items()}
    return Offer(archive, None, {name: path for name, path in found.items() if path is not None})


def _find_archive(shelf: Shelf, archive: Archive) -> Path | None:
    """The archive, told by its size from others of that name."""
    paths = shelf.named(archive.name)
    fitting = [path for path in paths if archive.num_bytes in (None, path.stat().st_size)]
    if len(fitting) > 1:
        raise DataError(
            f"{shelf.folder} holds {archive.name} {len(fitting)} times: {', '.join(map(str, sorted(fitting)))}",
            hint="name the folder that holds the right one",
        )
    return next(iter(fitting or paths), None)


def _name_of(path: Path, name: str) -> str:
    """Under what name a file is kept: the one that the set has for it, packed as it is."""
    if path.name in file_names(name):
        return path.name
    return name + (path.suffix if path.suffix in PACKED_SUFFIXES else "")


def _check_same(final: Path, offers: list[Offer], report: Report) -> None:
    """A folder that offers other files than those here would be ignored without a word."""
    manifest = read_json(final / MANIFEST_FILE)
    here = {record["name"]: record["sha256"] for record in (*manifest.get("files", ()), *manifest.get("archives", ()))}
    offered = {offer.archive.name: offer.path for offer in offers if offer.path}
    offered |= {name: path for offer in offers for name, path in offer.copies.items()}
    for name, path in offered.items():
        report(f"comparing {name}")
        if here.get(name) != sha256_of(path):
            raise DataError(
                f"{final} holds other files of this set than {path}", hint=f"to replace them, first remove {final}"
            )


class _Making:
    """Fills the folder of one set."""

    def __init__(
        self, known: KnownSet, downloads: Path, offers: list[Offer] | None, mirror: str | None, report: Report
    ) -> None:
        self.known, self.downloads, self.offers, self.mirror, self.report = known, downloads, offers, mirror, report

    @property
    def needed_bytes(self) -> int:
        if self.offers is not None:
            return DISK_FACTOR * sum(offer.num_bytes for offer in self.offers)
        return DISK_FACTOR * sum(archive.num_bytes or 0 for archive in self.known.archives)

    def fill(self, work: Path) -> None:
        """Begins with an empty folder: what was unpacked before may have come from elsewhere."""
        shutil.rmtree(work)
        work.mkdir()
        archives = self._from_network(work) if self.offers is None else self._from_folder(work, self.offers)
        files = [self._record(path) for path in sorted(work.iterdir())]
        facts = {"set": self.known.name, "licence": self.known.licence, "citation": self.known.citation}
        write_json(work / MANIFEST_FILE, {**facts, "files": files, "archives": archives})

    def _from_network(self, work: Path) -> list[Record]:
        """Everything is downloaded before anything is unpacked, so that no archive is ever downloaded twice."""
        archives = self.known.archives
        paths = [download(one, self.downloads, report=self.report, mirror=self.mirror) for one in archives]
        for archive, path in zip(archives, paths, strict=True):
            self._unpack_download(archive, path, work)
        return [_archive_record(path, origin_of(path).address, origin_of(path).sha256) for path in paths]

    def _unpack_download(self, archive: Archive, path: Path, work: Path) -> None:
        if not archive.members:
            shutil.copyfile(path, work / path.name)
            return
        try:
            unpack(path, archive.members, work, report=self.report)
        except DataError:
            # It was not known what it should be: the next try downloads it again.
            path.unlink()
            raise

    def _from_folder(self, work: Path, offers: list[Offer]) -> list[Record]:
        records = []
        for offer in offers:
            if offer.path:
                records.append(self._checked(offer.archive, offer.path))
                unpack(offer.path, offer.archive.members, work, report=self.report)
            for name, path in offer.copies.items():
                # As it was published, it can be checked; unpacked or packed in another way, it is taken as it is.
                if path.name == offer.archive.name:
                    self._checked(offer.archive, path)
                self.report(f"copying {path.name}")
                shutil.copyfile(path, work / name)
        return records

    def _checked(self, archive: Archive, path: Path) -> Record:
        self.report(f"checking {archive.name}")
        sha256 = sha256_of(path)
        if problem := what_is_wrong(archive, path.stat().st_size, sha256):
            raise DataError(
                f"{path} is not {archive.addresses[0]}: {problem}",
                hint="get it again; or unpack what you have and name that folder: single files are taken as they are",
            )
        return _archive_record(path, str(path.absolute()), sha256)

    def _record(self, path: Path) -> Record:
        self.report(f"checking {path.name}")
        return {"name": path.name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}


def _archive_record(path: Path, address: str, sha256: str) -> Record:
    return {"name": path.name, "address": address, "bytes": path.stat().st_size, "sha256": sha256}
