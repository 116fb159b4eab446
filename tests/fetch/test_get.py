"""From addresses or a folder to a set in Konvoi's home."""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fetch.server import Served, Server
from tests.shared_data import shared_data

from konvoi.errors import DataError
from konvoi.fetch.get import get
from konvoi.fetch.sets import KNOWN_SETS, Archive, KnownSet, is_here, locate

pytestmark = pytest.mark.usefixtures("pauses")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def text_of(name: str) -> bytes:
    """Some lines that tell from which file they are."""
    return f"{name}: one\n{name}: two\n".encode()


def packed(name: str, members: dict[str, bytes]) -> bytes:
    """An archive of the kind that its name says."""
    stream = io.BytesIO()
    if name.endswith(".zip"):
        with zipfile.ZipFile(stream, "w") as archive:
            for path, content in members.items():
                archive.writestr(path, content)
        return stream.getvalue()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for path, content in members.items():
            info = tarfile.TarInfo(path)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return gzip.compress(stream.getvalue(), compresslevel=1, mtime=0)


def layout_of(archive: Archive) -> bytes:
    """An archive of the official layout, with other files beside the wanted ones."""
    if not archive.members:
        return gzip.compress(text_of(archive.name), mtime=0)
    members = {path: text_of(name) for path, name in archive.members.items()}
    return packed(archive.name, {"README": b"read me", **members, "_about.txt": b"about"})


def served(known: KnownSet, server: Server) -> KnownSet:
    """The set as the server has it: its layout, but this server's addresses and checksums."""
    archives = []
    for archive in known.archives:
        body = layout_of(archive)
        address = server.serve(archive.name, Served(body))
        archives.append(replace(archive, addresses=(address,), num_bytes=len(body), sha256=sha256(body)))
    return replace(known, archives=tuple(archives))


def unchecked(known: KnownSet) -> KnownSet:
    """As the set is where nobody knows its checksums."""
    archives = (replace(archive, num_bytes=None, sha256=None) for archive in known.archives)
    return replace(known, archives=tuple(archives))


def manifest_of(folder: Path) -> dict[str, list[dict[str, object]]]:
    content: dict[str, list[dict[str, object]]] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return content


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}


FETCHED = [known for known in KNOWN_SETS.values() if not known.embedded]
WMT16, MULTI30K, TATOEBA = (KNOWN_SETS[name] for name in ("wmt16-en-de", "multi30k-en-de", "tatoeba-en-de"))


def test_the_demo_needs_nothing(tmp_path: Path) -> None:
    demo = KNOWN_SETS["demo-en-de"]
    assert get(demo, home=tmp_path) == demo.embedded_path
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("known", FETCHED, ids=lambda known: known.name)
def test_every_set_comes_from_archives_of_its_layout(known: KnownSet, server: Server, tmp_path: Path) -> None:
    known = served(known, server)
    folder = get(known, home=tmp_path)
    located = locate(known, tmp_path)
    assert {*located} == {*known.splits}
    files = {path.name for parts in located.values() for part in parts for path in part}
    assert files == contents(folder).keys()
    for archive in known.archives:
        for name in archive.members.values():
            assert (folder / name).read_bytes() == text_of(name)
    # Neither archives nor anything unfinished is left.
    assert [path.name for path in (tmp_path / "sets").iterdir()] == [known.name]


def test_the_manifest_says_what_it_is_and_where_it_came_from(server: Server, tmp_path: Path) -> None:
    known = served(TATOEBA, server)
    body = layout_of(known.archives[0])
    content = text_of("deu.tsv")
    assert manifest_of(get(known, home=tmp_path)) == {
        "set": "tatoeba-en-de",
        "licence": "CC BY 2.0 FR",
        "citation": "www.manythings.org/anki and tatoeba.org",
        "files": [{"name": "deu.tsv", "bytes": len(content), "sha256": sha256(content)}],
        "archives": [
            {
                "name": "deu-eng.zip",
                "address": f"{server.root}/deu-eng.zip",
                "bytes": len(body),
                "sha256": sha256(body),
            }
        ],
    }


def test_what_is_here_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    known = served(TATOEBA, server)
    first = get(known, home=tmp_path)
    server.requests.clear()
    assert (get(known, home=tmp_path), server.requests) == (first, [])
    assert is_here(known, tmp_path)


def test_the_next_try_keeps_what_arrived(server: Server, tmp_path: Path) -> None:
    known = served(MULTI30K, server)
    body = layout_of(known.archives[3])
    server.serve(known.archives[3].name, Served(body, cut_at=9))
    with pytest.raises(DataError, match=r"val\.de\.gz could not be downloaded"):
        get(known, home=tmp_path)
    assert not is_here(known, tmp_path)
    server.requests.clear()
    server.serve(known.archives[3].name, Served(body))
    get(known, home=tmp_path)
    # Three had arrived, the fourth goes on at its 9th byte, two are still to come.
    assert server.ranges == ["bytes=9-", "all", "all"]
    assert (tmp_path / "sets" / known.name / "val.de.gz").read_bytes() == body


def test_a_damaged_archive_without_a_known_checksum_is_downloaded_again(server: Server, tmp_path: Path) -> None:
    known = unchecked(served(WMT16, server))
    body = layout_of(known.archives[-1])
    server.serve(known.archives[-1].name, Served(body[:-20]))
    with pytest.raises(DataError, match=r"test-filtered\.tgz is cut short or damaged"):
        get(known, home=tmp_path)
    server.requests.clear()
    server.serve(known.archives[-1].name, Served(body))
    get(known, home=tmp_path)
    assert server.requests[0][0] == "/test-filtered.tgz"
    assert len(server.requests) == 1


def test_a_zip_that_asks_for_a_newer_program_is_damaged_and_downloaded_again(server: Server, tmp_path: Path) -> None:
    known = unchecked(served(TATOEBA, server))
    body = layout_of(known.archives[0])
    damaged = bytearray(body)
    damaged[body.index(b"PK\x01\x02") + 6] = 99  # the version needed, in the directory
    server.serve("deu-eng.zip", Served(bytes(damaged)))
    with pytest.raises(DataError, match=r"deu-eng\.zip is cut short or damaged"):
        get(known, home=tmp_path)
    server.serve("deu-eng.zip", Served(body))
    assert (get(known, home=tmp_path) / "deu.tsv").read_bytes() == text_of("deu.tsv")


def test_a_mirror_serves_the_whole_set(server: Server, tmp_path: Path) -> None:
    known = served(TATOEBA, server)
    server.serve("copies/deu-eng.zip", Served(layout_of(known.archives[0])))
    folder = get(known, home=tmp_path, mirror=f"{server.root}/copies")
    assert manifest_of(folder)["archives"][0]["address"] == f"{server.root}/copies/deu-eng.zip"


KILLED = """
import sys
from pathlib import Path
from dataclasses import replace
from konvoi.fetch.get import get
from konvoi.fetch.sets import KNOWN_SETS
known = KNOWN_SETS["multi30k-en-de"]
root, home = sys.argv[1], Path(sys.argv[2])
archives = [replace(a, addresses=(f"{root}/{a.name}",), num_bytes=None, sha256=None) for a in known.archives]
get(replace(known, archives=tuple(archives)), home=home, report=lambda *told: print(*told, flush=True))
"""


def test_a_killed_process_leaves_what_the_next_one_goes_on_with(server: Server, tmp_path: Path) -> None:
    known = unchecked(served(MULTI30K, server))
    body = layout_of(known.archives[2])
    server.serve("val.en.gz", Served(body, stall_at=8))
    environment = {**os.environ, "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-c", KILLED, server.root, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        part = tmp_path / "sets" / ".multi30k-en-de.downloads" / "val.en.gz.part"
        lines = [*itertools.takewhile(lambda line: "train.de.gz" not in line, process.stdout)]
        assert any("train.en.gz" in line for line in lines)
        for _ in range(1000):
            if part.exists():
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    server.is_over.set()
    server.requests.clear()
    server.serve("val.en.gz", Served(body))
    folder = get(known, home=tmp_path)
    assert (folder / "val.en.gz").read_bytes() == body
    asked = [path for path, _ in server.requests]
    assert asked == ["/val.en.gz", "/val.de.gz", "/test_2016_flickr.en.gz", "/test_2016_flickr.de.gz"]


def archives_in(folder: Path, known: KnownSet) -> KnownSet:
    """The archives of a set in a folder, and the set with their checksums."""
    folder.mkdir(parents=True, exist_ok=True)
    archives = []
    for archive in known.archives:
        body = layout_of(archive)
        (folder / archive.name).write_bytes(body)
        archives.append(replace(archive, addresses=("http://127.0.0.1:9/x",), num_bytes=len(body), sha256=sha256(body)))
    return replace(known, archives=tuple(archives))


@pytest.mark.parametrize("known", FETCHED, ids=lambda known: known.name)
def test_every_set_comes_from_a_folder_of_archives_without_network(known: KnownSet, tmp_path: Path) -> None:
    known = archives_in(tmp_path / "from" / "deep", known)
    folder = get(known, home=tmp_path / "home", from_folder=tmp_path / "from")
    assert {*locate(known, tmp_path / "home")} == {*known.splits}
    for archive in known.archives:
        for name in archive.members.values():
            assert (folder / name).read_bytes() == text_of(name)


@pytest.mark.parametrize("known", FETCHED, ids=lambda known: known.name)
def test_every_set_comes_from_its_files_wherever_they_lie(known: KnownSet, tmp_path: Path) -> None:
    wanted = {}
    for number, (name, inside) in enumerate(item for one in known.archives for item in one.files.items()):
        path = tmp_path / "from" / (inside if number % 2 else f"{number}/{name}.gz")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text_of(name))
        is_packed = path.suffix == ".gz"
        wanted[f"{name}.gz" if is_packed else name] = text_of(name)
    known = unchecked(known)
    folder = get(known, home=tmp_path / "home", from_folder=tmp_path / "from")
    assert contents(folder) == wanted
    assert {*locate(known, tmp_path / "home")} == {*known.splits}
    assert manifest_of(folder)["archives"] == []


def test_archives_and_files_may_be_mixed(tmp_path: Path) -> None:
    known = archives_in(tmp_path / "from", WMT16)
    (tmp_path / "from" / "dev.tgz").unlink()
    (tmp_path / "from" / "test-filtered.tgz").unlink()
    for stem, side in itertools.product(("newstest2013", "newstest2014"), ("en", "de")):
        (tmp_path / "from" / f"{stem}.{side}").write_bytes(text_of(stem))
    folder = get(known, home=tmp_path / "home", from_folder=tmp_path / "from")
    assert (folder / "newstest2014.en").read_bytes() == text_of("newstest2014")
    assert {*locate(known, tmp_path / "home")} == {"train", "dev", "test"}


def test_all_that_a_folder_lacks_is_named(tmp_path: Path) -> None:
    known = archives_in(tmp_path / "from", WMT16)
    for name in ("training-parallel-nc-v11.tgz", "dev.tgz"):
        (tmp_path / "from" / name).unlink()
    missing = "news-commentary-v11.de-en.en, news-commentary-v11.de-en.de, newstest2013.en, newstest2013.de not found"
    with pytest.raises(DataError, match=missing.replace(".", r"\.")) as raised:
        get(known, home=tmp_path / "home", from_folder=tmp_path / "from")
    assert "training-parallel-nc-v11.tgz" in raised.value.hint and "dev.tgz" in raised.value.hint
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("content, problem", [(b"short", "5 bytes instead of"), (None, "wrong checksum")])
def test_a_wrong_archive_in_a_folder_is_refused(content: bytes | None, problem: str, tmp_path: Path) -> None:
    known = archives_in(tmp_path / "from", TATOEBA)
    path = tmp_path / "from" / "deu-eng.zip"
    path.write_bytes(path.read_bytes()[::-1] if content is None else content)
    with pytest.raises(DataError, match=problem):
        get(known, home=tmp_path / "home", from_folder=tmp_path / "from")
    assert not is_here(known, tmp_path / "home")


@pytest.mark.parametrize("content, problem", [(b"short", "5 bytes instead of"), (None, "wrong checksum")])
def test_a_single_file_is_checked_where_it_is_as_published(content: bytes | None, problem: str, tmp_path: Path) -> None:
    known = archives_in(tmp_path / "from", MULTI30K)
    path = tmp_path / "from" / "val.de.gz"
    path.write_bytes(path.read_bytes()[::-1] if content is None else content)
    with pytest.raises(DataError, match=rf"val\.de\.gz is not http.*{problem}"):
        get(known, home=tmp_path / "home", from_folder=tmp_path / "from")
    assert not is_here(known, tmp_path / "home")


def test_a_single_file_in_another_packing_is_taken_as_it_is(tmp_path: Path) -> None:
    known = archives_in(tmp_path / "from", MULTI30K)
    (tmp_path / "from" / "val.de.gz").unlink()
    (tmp_path / "from" / "val.de").write_bytes(b"eins\n")
    folder = get(known, home=tmp_path / "home", from_folder=tmp_path / "from")
    assert (folder / "val.de").read_bytes() == b"eins\n"
    assert len(contents(folder)) == 6


def test_the_archive_of_the_right_size_is_chosen_from_two(tmp_path: Path) -> None:
    known = archives_in(tmp_path / "from" / "right", TATOEBA)
    (tmp_path / "from" / "deu-eng.zip").write_bytes(b"another one")
    folder = get(known, home=tmp_path / "home", from_folder=tmp_path / "from")
    assert contents(folder) == {"deu.tsv": text_of("deu.tsv")}
    unknown = replace(known, archives=(replace(known.archives[0], num_bytes=None),))
    with pytest.raises(DataError, match="2 times"):
        get(unknown, home=tmp_path / "other", from_folder=tmp_path / "from")


def test_other_files_than_those_here_are_not_ignored(tmp_path: Path) -> None:
    known = archives_in(tmp_path / "from", TATOEBA)
    folder = get(known, home=tmp_path, from_folder=tmp_path / "from")
    assert get(known, home=tmp_path, from_folder=tmp_path / "from") == folder
    (tmp_path / "from" / "deu-eng.zip").write_bytes(packed("x.zip", {"deu.txt": b"other"}))
    with pytest.raises(DataError, match="holds other files of this set"):
        get(known, home=tmp_path, from_folder=tmp_path / "from")


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    known = archives_in(tmp_path / "from", TATOEBA)
    theirs = tmp_path / "sets" / "tatoeba-en-de"
    theirs.mkdir(parents=True)
    (theirs / "thesis.tex").write_text("years of work")
    with pytest.raises(DataError, match="was not made by konvoi data get"):
        get(known, home=tmp_path, from_folder=tmp_path / "from")
    assert (theirs / "thesis.tex").read_text() == "years of work"


def test_what_an_interrupted_try_unpacked_does_not_get_into_the_set(tmp_path: Path) -> None:
    known = archives_in(tmp_path / "from", TATOEBA)
    unfinished = tmp_path / "sets" / ".tatoeba-en-de.unfinished"
    unfinished.mkdir(parents=True)
    (unfinished / "deu.tsv.gz").write_bytes(b"from elsewhere")
    assert contents(get(known, home=tmp_path, from_folder=tmp_path / "from")).keys() == {"deu.tsv"}


def as_sgml(lines: list[str]) -> bytes:
    segments = (f'<seg id="{number}">{line}</seg>\n' for number, line in enumerate(lines, start=1))
    return ('<srcset setid="newstest2014" srclang="any">\n<doc docid="x">\n' + "".join(segments) + "</doc>\n").encode()


def test_real_newstests_come_out_of_archives_of_the_official_layout(server: Server, tmp_path: Path) -> None:
    members = {
        "dev/newstest2013.en": gzip.decompress(shared_data("newstest/newstest2013.en.gz").read_bytes()),
        "dev/newstest2013.de": gzip.decompress(shared_data("newstest/newstest2013.de.gz").read_bytes()),
    }
    news = {side: shared_data(f"newstest/newstest2014.{side}.gz").read_bytes() for side in ("en", "de")}
    lines = {side: gzip.decompress(content).decode().splitlines() for side, content in news.items()}
    known = unchecked(served(WMT16, server))
    further = {path: b"x" for path in known.archives[3].members if path not in members}
    server.serve("dev.tgz", Served(packed("dev.tgz", members | further)))
    tests = {
        "test/newstest2014-deen-src.en.sgm": as_sgml(lines["en"]),
        "test/newstest2014-deen-ref.de.sgm": as_sgml(lines["de"]),
    }
    body = packed("test-filtered.tgz", tests)
    server.serve("test-filtered.tgz", Served(body, cut_at=50_000), Served(body))
    folder = get(known, home=tmp_path)
    assert (folder / "newstest2013.en").read_bytes() == members["dev/newstest2013.en"]
    assert (folder / "newstest2014.de.sgm").read_bytes().count(b"<seg ") == 2737


def test_the_real_tatoeba_comes_out_of_its_zip(tmp_path: Path) -> None:
    folder = get(TATOEBA, home=tmp_path, from_folder=shared_data("tatoeba-en-de/deu-eng.zip").parent)
    content = (folder / "deu.tsv").read_bytes()
    assert content.count(b"\n") == 169_813
    assert content.startswith(b"Hi.\tHallo!\n")


def test_the_real_multi30k_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = get(MULTI30K, home=tmp_path, from_folder=shared_data("multi30k/train.en.gz").parent)
    known = {archive.name: archive.sha256 for archive in MULTI30K.archives}
    assert {record["name"]: record["sha256"] for record in manifest_of(folder)["files"]} == known
