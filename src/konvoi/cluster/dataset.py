"""The prepared set that a recipe needs, as files for the hosts: where under KONVOI_HOME, and whether it is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from konvoi.cluster.far.files import digest_of_digests
from konvoi.cluster.hosts import Cluster
from konvoi.cluster.session import Session
from konvoi.cluster.transfer import HASH_SECONDS, Moved, digests_here, push
from konvoi.data.home import PREPARED_VARIABLE
from konvoi.data.prepared import INFO_FILE, PreparedSet
from konvoi.fetch.sets import KNOWN_SETS
from konvoi.folder import write_json
from konvoi.images.image_set import IMAGES_FOLDER, ImageSet
from konvoi.images.pictures import TRAIN, VAL
from konvoi.images.sets import DEMO_IMAGES
from konvoi.stages import Report, silent

DATA_FOLDER = "data"
# Of a set whose pictures were left in their place: on the hosts they lie in the set's own folder.
MOVED_INFO_FILE = ".info-for-hosts.json"


@dataclass(frozen=True)
class DataSet:
    folder: str
    """Under KONVOI_HOME, as in data/multi30k-1a2b3c."""
    files: dict[str, Path]
    """What lies there, by name, and where it is here."""

    @property
    def environment(self) -> dict[str, str]:
        """For workers on a host: the set is there, whatever else the recipe would look for."""
        return {PREPARED_VARIABLE: self.folder}

    def digest(self) -> str:
        """Over all names and contents."""
        return digest_of_digests({name: list(digest) for name, digest in digests_here(self.files).items()})

    def folder_on(self, cluster: Cluster) -> str:
        return f"{cluster.data_home}/{self.folder}"


def needed(prepared: PreparedSet | ImageSet) -> DataSet | None:
    """What a task's prepare() or find() returned; nothing where the hosts make it from the package itself."""
    if isinstance(prepared, ImageSet):
        return None if prepared.info["set"] == DEMO_IMAGES else _pictures(prepared)
    known = KNOWN_SETS.get(prepared.info["set"])
    if known is not None and known.embedded:
        return None
    return DataSet(f"{DATA_FOLDER}/{prepared.folder.name}", _whole_last(_files_of(prepared.folder)))


def push_data(session: Session, cluster: Cluster, data: DataSet, report: Report = silent) -> Moved:
    return push(session, data.files, data.folder_on(cluster), report=report, stage="sending data")


def digest_on(session: Session, cluster: Cluster, data: DataSet) -> str | None:
    """To compare with DataSet.digest(); None where the host has nothing of it."""
    num_files, _, digest = session.ask("files.fingerprint", timeout=HASH_SECONDS, folder=data.folder_on(cluster))
    return str(digest) if num_files else None


def _pictures(prepared: ImageSet) -> DataSet:
    """The index and the pictures that it names, wherever they lie."""
    files = _files_of(prepared.folder)
    if prepared.info["root"]:
        files |= {name: prepared.root / name for name in _pictures_of(prepared)}
        files[INFO_FILE] = prepared.folder / MOVED_INFO_FILE
        info = {key: value for key, value in prepared.info.items() if key != "folder"}
        write_json(files[INFO_FILE], {**info, "root": None})
    return DataSet(f"{IMAGES_FOLDER}/{prepared.info['set']}-{prepared.info['key']}", _whole_last(files))


def _pictures_of(prepared: ImageSet) -> Iterator[str]:
    for split in (TRAIN, VAL):
        entries = prepared.entries(split)
        yield from (entries.path(number) for number in range(len(entries)))


def _files_of(folder: Path) -> dict[str, Path]:
    """As far/files.py counts them: no hidden ones."""
    found = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path for name, path in found.items() if not any(part.startswith(".") for part in name.split("/"))}


def _whole_last(files: dict[str, Path]) -> dict[str, Path]:
    """With info.json at the end: where it is, all else is there."""
    return {**{name: path for name, path in files.items() if name != INFO_FILE}, INFO_FILE: files[INFO_FILE]}
