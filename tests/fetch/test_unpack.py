"""Archives, good, broken and evil."""

from __future__ import annotations

import gzip
import io
import lzma
import random
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fetch.spoil import MADE_UP_SIZES, spoilt_tar, spoilt_zip, with_size

from konvoi.errors import DataError
from konvoi.fetch import unpack as unpack_module
from konvoi.fetch.unpack import unpack

FILES = {"dev/a.en": b"one\n" * 1000, "dev/a.de": b"eins\n" * 1000, "dev/b.en": b"two\n"}
NOISE = random.Random(0).randbytes(20_000)


Member = tuple[tarfile.TarInfo, bytes]


def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> Member:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(content)
    return info, content


def tar_bytes(*members: Member) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def tar_of(files: dict[str, bytes]) -> bytes:
    return tar_bytes(*(member(name, content) for name, content in files.items()))


def zip_of(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


PACKINGS: dict[str, Callable[[dict[str, bytes]], bytes]] = {
    "tar": tar_of,
    "tgz": lambda files: gzip.compress(tar_of(files), mtime=0),
    "tar.xz": lambda files: lzma.compress(tar_of(files)),
    "zip": zip_of,
}


def write(folder: Path, content: bytes, name: str = "x.archive") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def out_of(content: bytes, folder: Path, *names: str) -> None:
    """Takes these files out of the archive, without the folders that they lie in."""
    unpack(write(folder, content), {name: Path(name).name for name in names}, folder / "out")


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("packing", PACKINGS)
def test_only_the_named_members_come_out_under_their_new_names(packing: str, tmp_path: Path) -> None:
    path = write(tmp_path, PACKINGS[packing](FILES))
    written = unpack(path, {"dev/b.en": "b.en", "dev/a.en": "new.en"}, tmp_path / "out")
    assert written == [tmp_path / "out" / "b.en", tmp_path / "out" / "new.en"]
    assert tree(tmp_path / "out") == {"b.en": FILES["dev/b.en"], "new.en": FILES["dev/a.en"]}


def test_a_member_may_begin_with_a_dot(tmp_path: Path) -> None:
    path = write(tmp_path, tar_of({"./dev/a.en": b"one\n"}))
    assert unpack(path, {"dev/a.en": "a.en"}, tmp_path)[0].read_bytes() == b"one\n"


def test_all_missing_members_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"does not hold dev/c\.en, dev/c\.de$"):
        unpack(write(tmp_path, tar_of(FILES)), {"dev/c.en": "c", "dev/a.en": "a", "dev/c.de": "d"}, tmp_path)


def test_a_link_is_not_the_member_that_is_wanted(tmp_path: Path) -> None:
    path = write(tmp_path, tar_bytes(member("dev/a.en", kind=tarfile.SYMTYPE, link="/etc/passwd")))
    with pytest.raises(DataError, match=r"does not hold dev/a\.en"):
        unpack(path, {"dev/a.en": "a.en"}, tmp_path / "out")
    assert tree(tmp_path / "out") == {}


def test_progress_is_told_in_bytes_of_the_archive(tmp_path: Path) -> None:
    reports: list[tuple[object, ...]] = []
    path = write(tmp_path, PACKINGS["tgz"](FILES))
    unpack(path, {"dev/b.en": "b.en"}, tmp_path, report=lambda *told: reports.append(told))
    size = path.stat().st_size
    assert reports[-1] == ("unpacking x.archive", size, size, "bytes")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_never_made(kind: bytes, tmp_path: Path) -> None:
    evil = tar_bytes(member("good", b"good"), member("evil", kind=kind, link="/etc/passwd"))
    with pytest.raises(DataError, match=r"does not hold evil$"):
        out_of(evil, tmp_path, "good", "evil")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["good"]


def test_a_link_in_a_zip_is_not_made_either(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        link = zipfile.ZipInfo("soft")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(DataError, match=r"does not hold soft$"):
        out_of(stream.getvalue(), tmp_path, "soft")
    assert [*(tmp_path / "out").iterdir()] == []


def test_a_link_with_the_name_of_the_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    victim = write(tmp_path, b"precious", "victim")
    (tmp_path / "out" / "x").symlink_to(victim)
    out_of(tar_of({"x": b"new"}), tmp_path, "x")
    assert (victim.read_bytes(), (tmp_path / "out" / "x").read_bytes()) == (b"precious", b"new")
    assert not (tmp_path / "out" / "x").is_symlink()


@pytest.mark.parametrize("packing", PACKINGS)
def test_no_more_bytes_than_allowed(packing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The packings differ in what they count besides the 39,000 bytes: up to 1 MiB of headers and padding.
    monkeypatch.setattr(unpack_module, "MAX_BYTES", 38_999)
    with pytest.raises(DataError, match="unpacks to more than 38,999 bytes"):
        out_of(PACKINGS[packing]({"a": NOISE, "b": NOISE[:19_000]}), tmp_path, "a", "b")
    assert "b" not in tree(tmp_path / "out")


@pytest.mark.parametrize("packing", ["tgz", "tar.xz", "zip"])
def test_a_bomb_does_not_go_off(packing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack_module, "UNSUSPICIOUS_BYTES", 1 << 20)
    bomb = PACKINGS[packing]({"zeros": bytes(5 << 20)})
    assert len(bomb) < 10_000
    with pytest.raises(DataError, match="more than 200 times its size"):
        unpack(write(tmp_path, bomb), {"zeros": "zeros"}, tmp_path / "out")
    assert tree(tmp_path / "out") == {}


def test_a_file_full_of_holes_does_not_come_out(tmp_path: Path) -> None:
    info, _ = member("holes")
    info.type = tarfile.GNUTYPE_SPARSE
    with pytest.raises(DataError, match=r"does not hold holes$"):
        out_of(tar_bytes((info, b"")), tmp_path, "holes")


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.8])
def test_an_archive_that_is_cut_short_is_named(packing: str, share: float, tmp_path: Path) -> None:
    whole = PACKINGS[packing]({"a": NOISE, "b": NOISE[::-1]})
    with pytest.raises(DataError, match=r"x\.archive is cut short or damaged"):
        out_of(whole[: int(len(whole) * share)], tmp_path, "a", "b")
    assert all(content in (NOISE, NOISE[::-1]) for content in tree(tmp_path / "out").values())


def test_a_tar_cut_exactly_between_two_members_is_cut_short_too(tmp_path: Path) -> None:
    # A header of 512 bytes, 512 bytes of content: the second member begins at 1024.
    whole = tar_of({"a": b"x" * 512, "b": b"y" * 512})
    with pytest.raises(DataError, match="cut short"):
        out_of(whole[:1024], tmp_path, "a")


@pytest.mark.parametrize("packing", ["tgz", "tar.xz", "zip"])
def test_a_flipped_bit_is_found(packing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In small steps: the checksum at the end must be reached all the same.
    monkeypatch.setattr(unpack_module, "CHUNK_BYTES", 512)
    damaged = bytearray(PACKINGS[packing]({"a": NOISE}))
    damaged[len(damaged) // 2] ^= 1
    with pytest.raises(DataError, match="damaged"):
        out_of(bytes(damaged), tmp_path, "a")


@pytest.mark.parametrize(
    "content",
    [b"", b"<html>not found</html>", gzip.compress(b"just text\n" * 100, mtime=0)],
    ids=["nothing", "a page", "packed text"],
)
def test_what_is_no_archive_is_called_so(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="it is no archive"):
        out_of(content, tmp_path, "a")


def test_what_a_killed_process_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out", b"half", unpack_module.TEMPORARY_FILE)
    out_of(tar_of(FILES), tmp_path, "dev/b.en")
    assert tree(tmp_path / "out") == {"b.en": FILES["dev/b.en"]}


def test_a_protected_zip_is_explained(tmp_path: Path) -> None:
    locked = bytearray(zip_of({"a": b"x"}))
    locked[6] |= 1  # the flag "encrypted", in the local header
    locked[locked.index(b"PK\x01\x02") + 8] |= 1  # and in the directory
    with pytest.raises(DataError, match=r"cannot be unpacked: .*password"):
        out_of(bytes(locked), tmp_path, "a")


def zip_of_all_methods() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        methods = (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
        for name, method in zip("abcd", methods, strict=True):
            archive.writestr(name, b"one\n" * 20, method)
    return stream.getvalue()


def tar_with_long_names(format: int) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=format) as tar:
        for name in ("a", "b" * 120, "c"):
            info, content = member(name, b"one\n" * 20)
            tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


DAMAGED = {
    "zip": (zip_of_all_methods(), "abcd", spoilt_zip),
    "gnu tar": (tar_with_long_names(tarfile.GNU_FORMAT), "ac", spoilt_tar),
    "pax tar": (tar_with_long_names(tarfile.PAX_FORMAT), "ac", spoilt_tar),
    "tgz": (gzip.compress(tar_of({"a": b"one\n" * 20}), mtime=0), "a", spoilt_zip),
    "tar.xz": (lzma.compress(tar_of({"a": b"one\n" * 20})), "a", spoilt_zip),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_whatever_is_damaged_the_error_is_ours(kind: str, tmp_path: Path) -> None:
    whole, names, spoilt = DAMAGED[kind]
    out_of(whole, tmp_path, *names)
    num_refused = 0
    for seed in range(300):
        try:
            out_of(spoilt(whole, seed), tmp_path, *names)
        except DataError:
            num_refused += 1
    # Dates and owners may change without harm.
    assert num_refused > 100


@pytest.mark.parametrize("size", MADE_UP_SIZES)
def test_a_made_up_size_is_refused_at_once(size: bytes, tmp_path: Path) -> None:
    # A header of 512 bytes, 80 bytes of content in one block: the second header begins at 1024.
    content = with_size(tar_of({"a": b"x" * 80, "b": b"x" * 80}), 1024, size)
    with pytest.raises(DataError, match=r"damaged|unpacks to more than"):
        out_of(content, tmp_path, "a")
