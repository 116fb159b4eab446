"""The table of known sets, and finding their files in a folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from konvoi.errors import DataError
from konvoi.fetch.sets import KNOWN_SETS, KnownSet, find_file, find_set, locate, set_folder

FETCHED = [known for known in KNOWN_SETS.values() if not known.embedded]
WMT16, MULTI30K, IWSLT14 = KNOWN_SETS["wmt16-en-de"], KNOWN_SETS["multi30k-en-de"], KNOWN_SETS["iwslt14-de-en"]


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_there_are_sets_to_fetch() -> None:
    assert len(FETCHED) >= 5


@pytest.mark.parametrize("known", FETCHED, ids=lambda known: known.name)
def test_the_archives_of_a_set_give_exactly_the_files_of_its_splits(known: KnownSet) -> None:
    given = [name for archive in known.archives for name in archive.files]
    wanted = [name for parts in known.splits.values() for part in parts for name in part]
    assert sorted(given) == sorted(wanted)
    assert len({*given}) == len(given)


@pytest.mark.parametrize("known", FETCHED, ids=lambda known: known.name)
def test_a_set_has_dev_and_test_or_splits_them_off(known: KnownSet) -> None:
    assert "train" in known.splits
    for split, number in zip(("dev", "test"), known.held_out, strict=True):
        assert (split in known.splits) == (number == 0)
    assert known.licence and known.citation and known.train_pairs > 0


@pytest.mark.parametrize("known", FETCHED, ids=lambda known: known.name)
def test_what_no_checksum_protects_comes_over_a_safe_connection(known: KnownSet) -> None:
    for archive in known.archives:
        assert archive.addresses
        assert archive.sha256 or all(address.startswith("https://") for address in archive.addresses)
        assert archive.sha256 is None or (re.fullmatch("[0-9a-f]{64}", archive.sha256) and archive.num_bytes)


def test_the_demo_is_in_the_package(tmp_path: Path) -> None:
    demo = find_set("demo-en-de")
    assert demo.embedded_path.is_file()
    assert locate(demo, tmp_path) == {"train": [(demo.embedded_path,)]}


def test_a_near_name_is_suggested() -> None:
    with pytest.raises(DataError, match='did you mean "wmt16-en-de"'):
        find_set("wmt16-en-ed")


@pytest.mark.parametrize("name", ["a.en.sgm", "a.en.sgm.gz", "a.en", "a.en.zst"])
def test_a_file_may_be_packed_or_without_its_tags(name: str, tmp_path: Path) -> None:
    touch(tmp_path, name)
    assert find_file(tmp_path, "a.en.sgm") == tmp_path / name
    assert find_file(tmp_path, "a.de.sgm") is None


def test_every_part_of_every_split_is_located(tmp_path: Path) -> None:
    folder = set_folder(IWSLT14, tmp_path)
    touch(folder, *IWSLT14.archives[0].files)
    located = locate(IWSLT14, tmp_path)
    assert located["train"] == [(folder / "train.tags.de-en.de", folder / "train.tags.de-en.en")]
    assert [part[0].name for part in located["test"]] == [
        "IWSLT14.TED.dev2010.de-en.de.xml",
        "IWSLT14.TEDX.dev2012.de-en.de.xml",
        "IWSLT14.TED.tst2010.de-en.de.xml",
        "IWSLT14.TED.tst2011.de-en.de.xml",
        "IWSLT14.TED.tst2012.de-en.de.xml",
    ]


def test_all_missing_files_are_named_with_the_archives_that_give_them(tmp_path: Path) -> None:
    touch(set_folder(MULTI30K, tmp_path), "train.en.gz", "train.de.xz", "val.en", "test_2016_flickr.de")
    with pytest.raises(DataError, match=r"multi30k-en-de: val\.de, test_2016_flickr\.en not found in") as raised:
        locate(MULTI30K, tmp_path)
    assert "konvoi data get multi30k-en-de" in raised.value.hint
    assert "put them or val.de.gz, test_2016_flickr.en.gz into a folder" in raised.value.hint
    assert "train.en.gz" not in raised.value.hint


def wmt16_files(folder: Path) -> None:
    stems = ("europarl-v7.de-en", "commoncrawl.de-en", "news-commentary-v11.de-en", "newstest2013", "newstest2014")
    touch(folder, *(f"{stem}.{side}" for stem in stems for side in ("en", "de")))


def test_further_test_sets_may_be_missing_but_not_by_half(tmp_path: Path) -> None:
    wmt16_files(tmp_path)
    assert {*locate(WMT16, tmp_path, tmp_path)} == {"train", "dev", "test"}
    touch(tmp_path, "newstest2015.en.gz")
    with pytest.raises(DataError, match=r"newstest2015\.de\.sgm not found"):
        locate(WMT16, tmp_path, tmp_path)
    touch(tmp_path, "newstest2015.de")
    assert locate(WMT16, tmp_path, tmp_path)["newstest2015"] == [
        (tmp_path / "newstest2015.en.gz", tmp_path / "newstest2015.de")
    ]


def test_an_unpacked_archive_is_known_by_its_layout(tmp_path: Path) -> None:
    # Both archives of WMT hold a newstest2014-deen-src.en.sgm: one whole, one filtered. The filtered one is wanted.
    wmt16_files(tmp_path / "text")
    for side in ("en", "de"):
        (tmp_path / "text" / f"newstest2014.{side}").unlink()
    for folder in ("dev", "test"):
        touch(tmp_path / folder, "newstest2014-deen-src.en.sgm", "newstest2014-deen-ref.de.sgm")
    (test,) = locate(WMT16, tmp_path, tmp_path)["test"]
    assert test == (
        tmp_path / "test" / "newstest2014-deen-src.en.sgm",
        tmp_path / "test" / "newstest2014-deen-ref.de.sgm",
    )


def test_two_files_of_one_name_are_not_chosen_from(tmp_path: Path) -> None:
    wmt16_files(tmp_path / "a")
    touch(tmp_path / "b", "newstest2013.en")
    with pytest.raises(DataError, match=r"holds newstest2013\.en 2 times"):
        locate(WMT16, tmp_path, tmp_path)


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere is no folder"):
        locate(WMT16, tmp_path, tmp_path / "nowhere")
