"""The sets that Konvoi knows by name. One entry in the table adds one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import konvoi
from konvoi.errors import DataError, did_you_mean

OWN = "own"
MANIFEST_FILE = "manifest.json"
SPLITS = ("train", "dev", "test")
PACKED_SUFFIXES = (".gz", ".xz", ".zst")
# Text in these forms is as welcome without its tags.
TAGGED_SUFFIXES = (".sgm", ".xml")

Part = tuple[str, ...]
"""One name (both sides in one .tsv file), or the source's and the target's; without .gz, .xz or .zst."""


@dataclass(frozen=True)
class Archive:
    """One thing to download."""

    name: str
    """Its file name: kept under it, and looked for under it in a folder that holds it already."""
    addresses: tuple[str, ...]
    """In the order to try; plain http only where a checksum is known."""
    num_bytes: int | None = None
    sha256: str | None = None
    members: dict[str, str] = field(default_factory=dict)
    """Path inside it -> the name that the file gets; without any, the file itself is wanted."""

    @property
    def files(self) -> dict[str, str]:
        """The name of each file that it gives -> where that lies in it."""
        return {name: path for path, name in self.members.items()} or {unpacked_name(self.name): self.name}


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
    archives: tuple[Archive, ...] = ()
    splits: dict[str, tuple[Part, ...]] = field(default_factory=dict)
    """The parts of a split are read one after another. Splits besides train, dev and test may be missing."""
    embedded: bool = False
    """Inside the package, as one tab-separated file of that name."""
    held_out: tuple[int, int] = (0, 0)
    """Sentences to split off for dev and test where the set has no files for them: fixed, so that scores compare."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What its [data] table says unless the recipe says otherwise."""

    @property
    def embedded_path(self) -> Path:
        return Path(konvoi.__file__).parent / "data" / "embedded" / f"{self.name}.tsv.xz"

    @property
    def required_names(self) -> list[str]:
        """The files without which it is not whole."""
        return [name for split in SPLITS for part in self.splits.get(split, ()) for name in part]


def _statmt(path: str, *, is_checked: bool) -> tuple[str, ...]:
    """The names of the server that has WMT's files; without a checksum only what a certificate vouches for."""
    encrypted = (f"https://www.statmt.org/{path}", f"https://statmt.org/{path}")
    return (*encrypted, f"http://www.statmt.org/{path}") if is_checked else encrypted


def _data_statmt(path: str) -> tuple[str, ...]:
    return f"https://data.statmt.org/{path}", f"http://data.statmt.org/{path}"


def _multi30k(name: str, num_bytes: int, sha256: str) -> Archive:
    folder = "data/task1/raw"
    addresses = (
        f"https://raw.githubusercontent.com/multi30k/dataset/master/{folder}/{name}",
        f"https://github.com/multi30k/dataset/raw/master/{folder}/{name}",
    )
    return Archive(name, addresses, num_bytes, sha256)


def _sides(stem: str, languages: Iterable[str] = ("en", "de"), suffix: str = "") -> Part:
    return tuple(f"{stem}.{language}{suffix}" for language in languages)


def _iwslt14_part(stem: str) -> Part:
    return _sides(f"IWSLT14.{stem}.de-en", ("de", "en"), ".xml")


# In the order in which fairseq's recipe joins them: 6,750 sentences together.
_IWSLT14_TEST = tuple(map(_iwslt14_part, ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")))
_IWSLT14_TRAIN = _sides("train.tags.de-en", ("de", "en"))

# Sizes and SHA-256 of WMT's files: tensorflow/datasets, url_checksums/wmt16_translate.txt (the first two also in
# stagedml). Of Multi30k: the files in the repository multi30k/dataset. Others are published nowhere, or change.
_WMT_EUROPARL = Archive(
    name="training-parallel-europarl-v7.tgz",
    addresses=_statmt("wmt13/training-parallel-europarl-v7.tgz", is_checked=True),
    num_bytes=657_632_379,
    sha256="0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
    members={f"training/europarl-v7.de-en.{side}": f"europarl-v7.de-en.{side}" for side in ("en", "de")},
)
_WMT_COMMON_CRAWL = Archive(
    name="training-parallel-commoncrawl.tgz",
    addresses=_statmt("wmt13/training-parallel-commoncrawl.tgz", is_checked=True),
    num_bytes=918_311_367,
    sha256="c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
    members={f"commoncrawl.de-en.{side}": f"commoncrawl.de-en.{side}" for side in ("en", "de")},
)
_WMT_NEWS_COMMENTARY = Archive(
    name="training-parallel-nc-v11.tgz",
    addresses=_data_statmt("wmt16/translation-task/training-parallel-nc-v11.tgz"),
    num_bytes=75_178_032,
    sha256="cfe8ab047e05043476e498ee765c98e939c7b7d6d294e856344c84476b619d6a",
    members={
        f"training-parallel-nc-v11/news-commentary-v11.de-en.{side}": f"news-commentary-v11.de-en.{side}"
        for side in ("en", "de")
    },
)
# WMT19's, not WMT16's own: it holds newstest2016 as well, and its checksum is known.
_WMT_DEV = Archive(
    name="dev.tgz",
    addresses=_data_statmt("wmt19/translation-task/dev.tgz"),
    num_bytes=38_654_961,
    sha256="7a7deccf82ebb05ba508dba5eb21356492224e8f630ec4f992132b029b4b25e7",
    members={
        "dev/newstest2013.en": "newstest2013.en",
        "dev/newstest2013.de": "newstest2013.de",
        "dev/newstest2015-ende-src.en.sgm": "newstest2015.en.sgm",
        "dev/newstest2015-ende-ref.de.sgm": "newstest2015.de.sgm",
        "dev/newstest2016-ende-src.en.sgm": "newstest2016.en.sgm",
        "dev/newstest2016-ende-ref.de.sgm": "newstest2016.de.sgm",
    },
)
# The 2,737 sentences of the official evaluation, as in `sacrebleu -t wmt14`; dev.tgz has all 3,003 (wmt14/full).
_WMT_TEST_2014 = Archive(
    name="test-filtered.tgz",
    addresses=_statmt("wmt14/test-filtered.tgz", is_checked=False),
    members={
        "test/newstest2014-deen-src.en.sgm": "newstest2014.en.sgm",
        "test/newstest2014-deen-ref.de.sgm": "newstest2014.de.sgm",
    },
)

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
        settings={"vocabulary_size": 3000},
    ),
    KnownSet(
        name="multi30k-en-de",
        description="image captions, task 1 raw, test_2016_flickr",
        source="en",
        target="de",
        licence="research only",
        citation="Elliott et al. 2016, Multi30K: Multilingual English-German Image Descriptions",
        train_pairs=29_000,
        archives=(
            _multi30k("train.en.gz", 568_929, "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"),
            _multi30k("train.de.gz", 637_044, "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6"),
            _multi30k("val.en.gz", 21_650, "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"),
            _multi30k("val.de.gz", 24_681, "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a"),
            _multi30k(
                "test_2016_flickr.en.gz", 21_077, "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9"
            ),
            _multi30k(
                "test_2016_flickr.de.gz", 22_890, "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8"
            ),
        ),
        splits={"train": (_sides("train"),), "dev": (_sides("val"),), "test": (_sides("test_2016_flickr"),)},
        settings={"vocabulary_size": 5000, "lowercase": True},
    ),
    KnownSet(
        name="tatoeba-en-de",
        description="short everyday sentences, all of them",
        source="en",
        target="de",
        licence="CC BY 2.0 FR",
        citation="www.manythings.org/anki and tatoeba.org",
        train_pairs=165_000,
        archives=(
            Archive("deu-eng.zip", ("https://www.manythings.org/anki/deu-eng.zip",), members={"deu.txt": "deu.tsv"}),
        ),
        splits={"train": (("deu.tsv",),)},
        held_out=(2000, 2000),
        settings={"vocabulary_size": 8000},
    ),
    KnownSet(
        name="europarl-en-de",
        description="speeches of the European Parliament, release 7",
        source="en",
        target="de",
        licence="no known restrictions",
        citation="Koehn 2005, Europarl: A Parallel Corpus for Statistical Machine Translation",
        train_pairs=1_914_209,
        archives=(
            Archive(
                name="de-en.tgz",
                addresses=_statmt("europarl/v7/de-en.tgz", is_checked=False),
                members={f"europarl-v7.de-en.{side}": f"europarl-v7.de-en.{side}" for side in ("en", "de")},
            ),
        ),
        splits={"train": (_sides("europarl-v7.de-en"),)},
        held_out=(3000, 3000),
        settings={"vocabulary_size": 32_000},
    ),
    KnownSet(
        name="iwslt14-de-en",
        description="talks (TED); test put together as in fairseq's recipe",
        source="de",
        target="en",
        licence="CC BY-NC-ND",
        citation="Cettolo et al. 2014, Report on the 11th IWSLT Evaluation Campaign",
        # 174,443 lines less 7,000
        train_pairs=167_443,
        archives=(
            Archive(
                name="de-en.tgz",
                addresses=("https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz",),
                members={f"de-en/{name}": name for part in (_IWSLT14_TRAIN, *_IWSLT14_TEST) for name in part},
            ),
        ),
        splits={"train": (_IWSLT14_TRAIN,), "test": _IWSLT14_TEST},
        held_out=(7000, 0),
        settings={"vocabulary_size": 10_000},
    ),
    KnownSet(
        name="wmt16-en-de",
        description="news, parliament and web text; dev newstest2013, test newstest2014",
        source="en",
        target="de",
        licence="research only",
        citation="Bojar et al. 2016, Findings of the 2016 Conference on Machine Translation",
        # 1,920,209 + 2,399,123 + 242,770
        train_pairs=4_562_102,
        archives=(_WMT_EUROPARL, _WMT_COMMON_CRAWL, _WMT_NEWS_COMMENTARY, _WMT_DEV, _WMT_TEST_2014),
        splits={
            "train": (
                _sides("europarl-v7.de-en"),
                _sides("commoncrawl.de-en"),
                _sides("news-commentary-v11.de-en"),
            ),
            "dev": (_sides("newstest2013"),),
            "test": (_sides("newstest2014", suffix=".sgm"),),
            "newstest2015": (_sides("newstest2015", suffix=".sgm"),),
            "newstest2016": (_sides("newstest2016", suffix=".sgm"),),
        },
        # As the reference runs: 1 to 80 tokens (and Moses' ratio of 9), nothing else.
        settings={
            "vocabulary_size": 32_768,
            "max_words": 80,
            "max_ratio": 9.0,
            "remove_duplicates": False,
            "remove_copies": False,
            "remove_leaks": False,
        },
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


def unpacked_name(name: str) -> str:
    """train.en.gz -> train.en"""
    return next((name.removesuffix(suffix) for suffix in PACKED_SUFFIXES if name.endswith(suffix)), name)


def file_names(name: str) -> Iterator[str]:
    """Under what names a wanted file may lie: as it is, packed, without its tags."""
    untagged = next((name.removesuffix(suffix) for suffix in TAGGED_SUFFIXES if name.endswith(suffix)), name)
    for plain in dict.fromkeys((name, untagged)):
        yield from (f"{plain}{suffix}" for suffix in ("", *PACKED_SUFFIXES))


def find_file(folder: Path, name: str) -> Path | None:
    """The file of that name in a folder, plain or packed."""
    return next((path for each in file_names(name) if (path := folder / each).is_file()), None)


def locate(known: KnownSet, home: Path, from_folder: Path | None = None) -> dict[str, list[tuple[Path, ...]]]:
    """The files of every part of every split, from below the folder given or from home; says which are missing."""
    if known.embedded:
        return {"train": [(known.embedded_path,)]}
    found = _found_at_home(known, home) if from_folder is None else Shelf(from_folder).find_all(known)
    folder = from_folder if from_folder is not None else set_folder(known, home)
    wanted = {split: parts for split, parts in known.splits.items() if split in SPLITS or _is_any_here(parts, found)}
    missing = [name for parts in wanted.values() for part in parts for name in part if name not in found]
    if missing:
        raise missing_files(known, missing, folder)
    return {split: [tuple(found[name] for name in part) for part in parts] for split, parts in wanted.items()}


def missing_files(known: KnownSet, missing: list[str], folder: Path) -> DataError:
    """Names every file that is missing, and the archives that would give them."""
    archives = [archive for archive in known.archives if archive.files.keys() & set(missing)]
    sources = ", ".join(archive.name for archive in archives)
    return DataError(
        f"{known.name}: {', '.join(missing)} not found in {folder} (plain, .gz, .xz or .zst)",
        hint=f"konvoi data get {known.name} downloads them; without network, put them or {sources} "
        f"into a folder DIR, then: konvoi data get {known.name} --from DIR",
    )


def _found_at_home(known: KnownSet, home: Path) -> dict[str, Path]:
    folder = set_folder(known, home)
    names = [name for parts in known.splits.values() for part in parts for name in part]
    return {name: path for name in names if (path := find_file(folder, name)) is not None}


def _is_any_here(parts: tuple[Part, ...], found: dict[str, Path]) -> bool:
    return any(name in found for part in parts for name in part)


class Shelf:
    """The files anywhere below a folder, by their names."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise DataError(f"{folder} is no folder", hint="name the folder that holds the files of the set")
        self.folder = folder
        self._paths: dict[str, list[Path]] = {}
        for root, _, names in os.walk(folder):
            for name in names:
                self._paths.setdefault(name, []).append(Path(root, name))

    def find_all(self, known: KnownSet) -> dict[str, Path]:
        """All files of a set that are there, by the names that the set has for them."""
        wanted = [item for archive in known.archives for item in archive.files.items()]
        return {name: path for name, inside in wanted if (path := self.find(name, inside)) is not None}

    def find(self, name: str, inside: str) -> Path | None:
        """A wanted file: where its archive has it, under its own name, or under the one in the archive."""
        unpacked = self.named(inside.rpartition("/")[2])
        return (
            self._only([path for path in unpacked if path.as_posix().endswith(f"/{inside}")])
            or next((path for each in file_names(name) if (path := self._only(self.named(each)))), None)
            or self._only(unpacked)
        )

    def named(self, name: str) -> list[Path]:
        return [path for path in self._paths.get(name, []) if path.is_file()]

    def _only(self, paths: list[Path]) -> Path | None:
        if len(paths) > 1:
            raise DataError(
                f"{self.folder} holds {paths[0].name} {len(paths)} times: {', '.join(map(str, sorted(paths)))}",
                hint="name the folder that holds the right one",
            )
        return paths[0] if paths else None
