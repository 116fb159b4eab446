"""Downloads from a real server that cuts, lies, stalls and refuses."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import socket
from collections import namedtuple
from email.utils import formatdate
from pathlib import Path

import pytest
from tests.fetch.server import Served, Server

from konvoi.errors import DataError, MachineError
from konvoi.fetch import download as download_module
from konvoi.fetch.download import MAX_TRIES, download, origin_of
from konvoi.fetch.sets import Archive

BODY = b"0123456789"
OTHER = b"abcdefghijkl"
LATER = "Sun, 15 Nov 2026 12:00:00 GMT"

pytestmark = pytest.mark.usefixtures("pauses")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def archive(*addresses: str, name: str = "x.tgz", body: bytes | None = None) -> Archive:
    """Checked by size and checksum where a body is given."""
    if body is None:
        return Archive(name, addresses)
    return Archive(name, addresses, num_bytes=len(body), sha256=sha256(body))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_arrives_and_is_told_of(server: Server, tmp_path: Path) -> None:
    reports: list[tuple[object, ...]] = []
    address = server.serve("x.tgz", Served(BODY))
    path = download(archive(address, body=BODY), tmp_path, report=lambda *told: reports.append(told))
    assert path.read_bytes() == BODY
    assert reports == [("downloading x.tgz", 10, 10, "bytes")]
    assert (origin_of(path).address, origin_of(path).sha256) == (address, sha256(BODY))
    assert names(tmp_path) == ["x.tgz", "x.tgz.origin.json"]


def test_what_is_here_is_not_asked_for(server: Server, tmp_path: Path) -> None:
    (tmp_path / "x.tgz").write_bytes(BODY)
    download(archive(server.serve("x.tgz", Served(OTHER))), tmp_path)
    assert server.requests == []


def test_a_cut_download_goes_on_at_the_byte_where_it_stopped(server: Server, tmp_path: Path) -> None:
    address = server.serve("x.tgz", Served(BODY, cut_at=4), Served(BODY, cut_at=7), Served(BODY))
    assert download(archive(address, body=BODY), tmp_path).read_bytes() == BODY
    assert server.ranges == ["all", "bytes=4-", "bytes=7-"]
    assert server.requests[1][1]["If-Range"] == '"one"'


def test_also_in_the_next_process(server: Server, tmp_path: Path) -> None:
    address = server.serve("x.tgz", Served(BODY, cut_at=4))
    with pytest.raises(DataError, match="cut short at 4 of 10 bytes"):
        download(archive(address, body=BODY), tmp_path)
    server.requests.clear()
    server.serve("x.tgz", Served(BODY))
    assert download(archive(address, body=BODY), tmp_path).read_bytes() == BODY
    assert server.ranges == ["bytes=4-"]


@pytest.mark.parametrize("old, new", [({"etag": '"one"'}, {"etag": '"two"'}), ({"etag": ""}, {"etag": ""})])
def test_a_half_is_never_glued_to_another_file(
    server: Server, tmp_path: Path, old: dict[str, str], new: dict[str, str]
) -> None:
    dates = {"last_modified": LATER}, {"last_modified": "Sun, 15 Nov 2026 13:00:00 GMT"}
    first, second = Served(BODY, cut_at=4, **old, **dates[0]), Served(OTHER, **new, **dates[1])
    path = download(archive(server.serve("x.tgz", first, second)), tmp_path)
    assert path.read_bytes() == OTHER
    assert server.ranges == ["all", "bytes=4-"]


def test_without_a_name_for_the_version_it_starts_over(server: Server, tmp_path: Path) -> None:
    first, second = Served(BODY, cut_at=4, etag=""), Served(OTHER, etag="")
    path = download(archive(server.serve("x.tgz", first, second)), tmp_path)
    assert (path.read_bytes(), server.ranges) == (OTHER, ["all", "all"])


def test_a_weak_etag_does_not_name_a_version(server: Server, tmp_path: Path) -> None:
    weak = {"etag": 'W/"one"', "last_modified": LATER}
    address = server.serve("x.tgz", Served(BODY, cut_at=4, **weak), Served(BODY, **weak))
    assert download(archive(address), tmp_path).read_bytes() == BODY
    assert server.requests[1][1]["If-Range"] == LATER


def test_the_half_from_one_address_is_not_continued_at_another(server: Server, tmp_path: Path) -> None:
    one = server.serve("one", Served(BODY, cut_at=4))
    two = server.serve("two", Served(OTHER))
    assert download(archive(one, two), tmp_path).read_bytes() == OTHER
    assert server.ranges[-1] == "all"


def test_with_a_known_checksum_another_address_goes_on(server: Server, tmp_path: Path) -> None:
    one = server.serve("one", Served(BODY, cut_at=4))
    two = server.serve("two", Served(BODY, etag='"two"', cut_at=7), Served(BODY, etag='"two"'))
    path = download(archive(one, two, body=BODY), tmp_path)
    assert (path.read_bytes(), origin_of(path).address) == (BODY, two)
    # The first says nothing about which version it is of; from then on, the second knows what it sent.
    assert server.ranges[-2:] == ["bytes=4-", "bytes=7-"]
    assert [headers.get("If-Range") for _, headers in server.requests[-2:]] == [None, '"two"']


def test_where_the_halves_do_not_fit_the_other_address_sends_all(server: Server, tmp_path: Path) -> None:
    one = server.serve("one", Served(OTHER[:10], cut_at=4))
    two = server.serve("two", Served(BODY))
    assert download(archive(one, two, body=BODY), tmp_path).read_bytes() == BODY
    assert server.ranges[-2:] == ["bytes=4-", "all"]


def test_an_address_that_fails_leaves_the_half_of_another(server: Server, tmp_path: Path) -> None:
    one = server.serve("one", Served(BODY, cut_at=4))
    with pytest.raises(DataError, match="404"):
        download(archive(one, server.serve("two", Served(status=404))), tmp_path)
    assert (tmp_path / "x.tgz.part").read_bytes() == BODY[:4]


def test_a_server_that_ignores_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    address = server.serve("x.tgz", Served(BODY, cut_at=4), Served(BODY, knows_ranges=False))
    assert download(archive(address, body=BODY), tmp_path).read_bytes() == BODY


@pytest.mark.parametrize("shift", [-2, 2])
def test_a_wrong_range_is_thrown_away(server: Server, tmp_path: Path, shift: int) -> None:
    address = server.serve("x.tgz", Served(BODY, cut_at=4), Served(BODY, shift=shift), Served(BODY))
    assert download(archive(address), tmp_path).read_bytes() == BODY
    assert server.ranges == ["all", "bytes=4-", "all"]


@pytest.mark.parametrize("here, ranges", [(BODY, ["bytes=10-"]), (BODY + b"x", ["bytes=11-", "all"])])
def test_nothing_left_to_send_means_whole_or_wrong(
    server: Server, tmp_path: Path, here: bytes, ranges: list[str]
) -> None:
    address = server.serve("x.tgz", Served(BODY, cut_at=4))
    with pytest.raises(DataError):
        download(archive(address), tmp_path)
    (tmp_path / "x.tgz.part").write_bytes(here)
    server.requests.clear()
    server.serve("x.tgz", Served(BODY))
    assert download(archive(address), tmp_path).read_bytes() == BODY
    assert server.ranges == ranges


def test_a_refused_range_without_a_size_proves_nothing(server: Server, tmp_path: Path) -> None:
    address = server.serve("x.tgz", Served(BODY, cut_at=4), Served(status=416), Served(BODY))
    assert download(archive(address), tmp_path).read_bytes() == BODY
    assert server.ranges == ["all", "bytes=4-", "all"]


@pytest.mark.parametrize("status", [206, 416])
def test_a_part_that_nobody_asked_for_is_not_taken(server: Server, tmp_path: Path, status: int) -> None:
    with pytest.raises(DataError, match=str(status)):
        download(archive(server.serve("x.tgz", Served(status=status))), tmp_path)


def test_a_damaged_half_costs_one_more_try(server: Server, tmp_path: Path) -> None:
    address = server.serve("x.tgz", Served(BODY, cut_at=4))
    with pytest.raises(DataError):
        download(archive(address), tmp_path)
    (tmp_path / "x.tgz.part").write_bytes(b"\0\0\0\0")
    server.requests.clear()
    server.serve("x.tgz", Served(BODY))
    assert download(archive(address, body=BODY), tmp_path).read_bytes() == BODY
    assert server.ranges == ["bytes=4-", "all"]


def test_a_missing_file_is_looked_for_at_the_next_address_at_once(
    server: Server, tmp_path: Path, pauses: list[float]
) -> None:
    gone, there = server.serve("gone", Served(status=404)), server.serve("there", Served(BODY))
    path = download(archive(gone, there), tmp_path)
    assert (path.read_bytes(), origin_of(path).address, pauses) == (BODY, there, [])


def test_every_address_is_named_with_what_went_wrong_there(server: Server, tmp_path: Path) -> None:
    gone, broken = server.serve("gone", Served(status=404)), server.serve("broken", Served(status=500))
    with pytest.raises(DataError) as raised:
        download(archive(gone, broken), tmp_path)
    assert raised.value.problem.splitlines() == [
        "x.tgz could not be downloaded:",
        f"  {gone}: 404 Not Found",
        f"  {broken}: 500 Internal Server Error",
    ]
    assert "--from DIR" in raised.value.hint and "--mirror URL" in raised.value.hint
    assert len(server.requests) == 1 + MAX_TRIES


def test_pauses_double_and_are_never_quite_the_same(server: Server, tmp_path: Path, pauses: list[float]) -> None:
    address = server.serve("x.tgz", *[Served(status=500)] * 4, Served(BODY))
    assert download(archive(address), tmp_path).read_bytes() == BODY
    assert all(full / 2 <= pause <= full for pause, full in zip(pauses, (1, 2, 4, 8), strict=True))


@pytest.mark.parametrize("asked, waited", [("7", 7), ("9999", 120), ("soon", 1), (formatdate(0, usegmt=True), 1)])
def test_a_busy_server_says_how_long_to_wait(
    server: Server, tmp_path: Path, pauses: list[float], asked: str, waited: int
) -> None:
    busy = Served(status=429, headers={"Retry-After": asked})
    download(archive(server.serve("x.tgz", busy, Served(BODY))), tmp_path)
    assert [max(1, round(pause)) for pause in pauses] == [waited]


def test_a_connection_that_always_breaks_at_the_same_byte_is_given_up(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cut short at 4 of 10 bytes"):
        download(archive(server.serve("x.tgz", Served(BODY, cut_at=4))), tmp_path)
    assert len(server.requests) == MAX_TRIES


def test_a_long_download_may_break_as_often_as_it_likes(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_module, "PROGRESS_BYTES", 10)
    body = bytes(range(100))
    cuts = [Served(body, cut_at=at) for at in range(10, 100, 10)]
    assert len(cuts) > MAX_TRIES
    assert download(archive(server.serve("x.tgz", *cuts, Served(body))), tmp_path).read_bytes() == body


def test_going_round_in_circles_is_no_progress(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_module, "PROGRESS_BYTES", 2)
    # From the first byte to the 4th, on to the 8th, from the first to the 4th again...
    again = Served(BODY, cut_at=4, knows_ranges=False)
    circles = [again, Served(BODY, cut_at=8)] * 20
    with pytest.raises(DataError, match="cut short"):
        download(archive(server.serve("x.tgz", *circles)), tmp_path)
    # 4 and 8 bytes were progress, then there was none.
    assert len(server.requests) == 2 + MAX_TRIES


def test_a_file_shorter_than_promised_is_cut_short(server: Server, tmp_path: Path) -> None:
    lie = Served(BODY, claimed_bytes=15, knows_ranges=False)
    with pytest.raises(DataError, match="cut short at 10 of 15 bytes"):
        download(archive(server.serve("x.tgz", lie)), tmp_path)


def test_without_a_promise_the_known_size_counts(server: Server, tmp_path: Path) -> None:
    silent_cut = Served(BODY, cut_at=4, tells_length=False)
    with pytest.raises(DataError, match="cut short at 4 of 10 bytes"):
        download(archive(server.serve("x.tgz", silent_cut), body=BODY), tmp_path)
    endless = Served(BODY * 100, tells_length=False)
    with pytest.raises(DataError, match="more than 10 bytes"):
        download(archive(server.serve("y.tgz", endless), name="y.tgz", body=BODY), tmp_path)
    assert (tmp_path / "y.tgz.part").read_bytes() == b""


def test_a_file_of_another_size_is_not_even_begun(server: Server, tmp_path: Path) -> None:
    lie = Served(BODY, claimed_bytes=7)
    reports: list[object] = []
    with pytest.raises(DataError, match="7 bytes instead of 10"):
        download(archive(server.serve("x.tgz", lie), body=BODY), tmp_path, report=lambda *told: reports.append(told))
    assert reports == []


def test_a_wrong_file_is_discarded_and_the_next_address_tried(server: Server, tmp_path: Path) -> None:
    wrong, right = server.serve("wrong", Served(BODY[::-1])), server.serve("right", Served(BODY))
    path = download(archive(wrong, right, body=BODY), tmp_path)
    assert (path.read_bytes(), origin_of(path).address) == (BODY, right)


def test_a_wrong_file_leaves_nothing_to_go_on_with(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"wrong checksum: SHA-256 .* instead of " + sha256(BODY)[:16]):
        download(archive(server.serve("x.tgz", Served(BODY[::-1])), body=BODY), tmp_path)
    assert (tmp_path / "x.tgz.part").read_bytes() == b""
    assert len(server.requests) == 1


def test_a_web_page_is_not_the_file(server: Server, tmp_path: Path) -> None:
    page = Served(b"<html>please log in", headers={"Content-Type": "text/html; charset=utf-8"})
    with pytest.raises(DataError, match="a web page instead of the file"):
        download(archive(server.serve("x.tgz", page)), tmp_path)


def test_what_the_server_calls_packed_stays_packed(server: Server, tmp_path: Path) -> None:
    packed = gzip.compress(BODY)
    address = server.serve("x.tgz", Served(packed, headers={"Content-Encoding": "x-gzip"}))
    assert download(archive(address, body=packed), tmp_path).read_bytes() == packed


def test_a_stalled_server_is_left(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_module, "READ_SECONDS", 0.1)
    monkeypatch.setattr(download_module, "MAX_TRIES", 1)
    slow, quick = server.serve("slow", Served(BODY, stall_at=4)), server.serve("quick", Served(BODY))
    assert origin_of(download(archive(slow, quick), tmp_path)).address == quick
    with pytest.raises(DataError, match=r"nothing came for 0.1 s"):
        download(archive(slow, name="y.tgz"), tmp_path)


def test_an_unknown_server_is_named_at_once(tmp_path: Path, pauses: list[float]) -> None:
    with pytest.raises(DataError, match=r"http://nowhere.invalid/x: the name of the server was not found"):
        download(archive("http://nowhere.invalid/x"), tmp_path)
    assert pauses == []


def test_a_refused_connection_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/x"
    with pytest.raises(DataError, match=r"no connection: .*refused"):
        download(archive(address), tmp_path)


@pytest.mark.parametrize("address", ["gopher://example.org/x", "http://a..b/x", "http://a b/x"])
def test_nonsense_is_no_address(address: str, tmp_path: Path, pauses: list[float]) -> None:
    with pytest.raises(DataError, match="not an address"):
        download(archive(address), tmp_path)
    assert pauses == []


def test_a_mirror_is_tried_first(server: Server, tmp_path: Path) -> None:
    address = server.serve("x.tgz", Served(OTHER))
    mirrored = server.serve("copies/x.tgz", Served(BODY))
    path = download(archive(address), tmp_path, mirror=f"{server.root}/copies/")
    assert (path.read_bytes(), origin_of(path).address) == (BODY, mirrored)


def test_a_mirror_is_checked_like_any_other(server: Server, tmp_path: Path) -> None:
    server.serve("copies/x.tgz", Served(BODY[::-1]))
    address = server.serve("x.tgz", Served(BODY))
    path = download(archive(address, body=BODY), tmp_path, mirror=f"{server.root}/copies")
    assert origin_of(path).address == address


def test_a_mirror_is_an_address(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--mirror /srv/copies: not an address"):
        download(archive("http://127.0.0.1:9/x"), tmp_path, mirror="/srv/copies")


def test_the_proxy_of_the_environment_is_used(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.root)
    server.serve("x.tgz", Served(BODY))
    assert download(archive("http://nowhere.invalid/x.tgz"), tmp_path).read_bytes() == BODY
    assert server.requests[0][0] == "http://nowhere.invalid/x.tgz"


def test_no_download_begins_that_does_not_fit(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 1, 9_000_000))
    big = Served(b"x", claimed_bytes=20_000_000)
    with pytest.raises(MachineError, match=r"20\.0 MB are missing, but only 9\.0 MB are free"):
        download(archive(server.serve("x.tgz", big)), tmp_path)
    assert (tmp_path / "x.tgz.part").read_bytes() == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is always full")
def test_a_full_disk_is_left_to_those_who_can_explain_it(server: Server, tmp_path: Path) -> None:
    (tmp_path / "x.tgz.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        download(archive(server.serve("x.tgz", Served(BODY))), tmp_path)
