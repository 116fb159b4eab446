"""The sets that Konvoi knows by name. One entry in the table adds one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from konvoi.data.text import PACKED_SUFFIXES
from konvoi.errors import DataError, did_you_mean

OWN = "own"
MANIFEST_FILE = "manifest.json"
SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class KnownSet:
    """A published corpus: what it is, who may use it, and the files that make it up."""

    name: str
    description: str
    source: str
    target: str
    licence: str
    citation: str
    train_pairs: int
    """Training pairs, after splitting off but before cleaning."""
    files: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Per split the names of the source and the target file, without .gz or .xz."""
    embedded: bool = False
    """Inside the package, as one tab-separated file of that name."""
    held_out: tuple[int, int] = (0, 0)
    """Sentences that an embedded set gives to dev and test: fixed here, so that scores compare."""
    addresses: tuple[str, ...] = ()

    @property
    def embedded_path(self) -> Path:
        return Path(__file__).parent / "embedded" / f"{self.name}.tsv.xz"


_TABLE = (
    KnownSet(
        name="demo-en-de",
        description="short everyday sentences, inside the package",
        source="en",
        target="de",
        licence="CC BY 2.0 FR",
        citation="www.manythings.org/anki and tatoeba.org",
        train_pairs=69_000,
        embedded=True,
        held_out=(500, 500),
        addresses=("https://www.manythings.org/anki/deu-eng.zip",),
    ),
    KnownSet(
        name="multi30k-en-de",
        description="image captions, task 1 raw, test_2016_flickr",
        source="en",
        target="de",
        licence="research only",
        citation="Elliott et al. 2016, Multi30K: Multilingual English-German Image Descriptions",
        train_pairs=29_000,
        files={
            "train": ("train.en", "train.de"),
            "dev": ("val.en", "val.de"),
            "test": ("test_2016_flickr.en", "test_2016_flickr.de"),
        },
        addresses=("https://github.com/multi30k/dataset/tree/master/data/task1/raw",),
    ),
    KnownSet(
        name="wmt16-en-de",
        description="news, parliament and web text; dev newstest2013, test newstest2014",
        source="en",
        target="de",
        licence="research only",
        citation="Bojar et al. 2016, Findings of the 2016 Conference on Machine Translation",
        train_pairs=4_524_868,
        files={
            "train": ("train.en", "train.de"),
            "dev": ("newstest2013.en", "newstest2013.de"),
            "test": ("newstest2014.en", "newstest2014.de"),
        },
        addresses=("https://www.statmt.org/wmt16/translation-task.html",),
    ),
)
KNOWN_SETS = {known.name: known for known in _TABLE}


def find_set(name: str) -> KnownSet:
    """The entry of that name; a near name is suggested where there is none."""
    if name not in KNOWN_SETS:
        raise DataError(
            f'there is no set "{name}"{did_you_mean(name, KNOWN_SETS)}',
            hint=f'known: {", ".join(KNOWN_SETS)}; or set = "{OWN}" with your own files',
        )
    return KNOWN_SETS[name]


def set_folder(known: KnownSet, home: Path) -> Path:
    """Where `konvoi data get` puts the files of a set."""
    return home / "sets" / known.name


def is_here(known: KnownSet, home: Path) -> bool:
    return known.embedded or (set_folder(known, home) / MANIFEST_FILE).is_file()


def find_file(folder: Path, name: str) -> Path | None:
    """The file of that name, plain or packed."""
    candidates = (folder / f"{name}{suffix}" for suffix in ("", *PACKED_SUFFIXES))
    return next((path for path in candidates if path.is_file()), None)


def locate(known: KnownSet, home: Path, from_folder: Path | None = None) -> dict[str, tuple[Path, Path]]:
    """The files of a set that isn't embedded, from the folder given or from home; says which are missing."""
    folder = from_folder if from_folder is not None else set_folder(known, home)
    found = {name: find_file(folder, name) for pair in known.files.values() for name in pair}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise DataError(
            f"{known.name}: {', '.join(missing)} (plain, .gz or .xz) not found in {folder}",
            hint=f"put the files of {known.addresses[0]} into a folder DIR, then: "
            f"konvoi data get {known.name} --from DIR",
        )
    paths = {name: path for name, path in found.items() if path is not None}
    return {split: (paths[source], paths[target]) for split, (source, target) in known.files.items()}
