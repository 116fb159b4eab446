"""Files to real hosts and back: what is sent, what is not, what a cut leaves, and what a liar gets."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hosts import Hosts, Machine

from konvoi.cluster import session as session_module
from konvoi.cluster import transfer
from konvoi.cluster.far import files
from konvoi.cluster.session import FarError, Session
from konvoi.cluster.transfer import Moved, digests_there, pull, push
from konvoi.errors import HostError
from konvoi.stages import Report

CHUNK = 1000
# Ten chunks that differ.
LARGE = b"".join(bytes([number]) * CHUNK for number in range(10))
SMALL = {"a.txt": b"one", "folder/b.txt": b"three", "folder/deeper/empty": b""}
ODD_NAMES = ["with blank", "'quoted\"", "semi;colon", "$(touch x)", "new\nline", "ümlaut", os.fsdecode(b"\xff\xfe")]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with Hosts(1, tmp_path_factory.mktemp("hosts")) as hosts:
        yield hosts


@pytest.fixture
def host(hosts: Hosts) -> Iterator[Machine]:
    yield hosts[0]
    shutil.rmtree(hosts[0].home / "there", ignore_errors=True)


@pytest.fixture
def session(hosts: Hosts, host: Machine) -> Iterator[Session]:
    with new_session(hosts) as session:
        yield session


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "CHUNK_BYTES", CHUNK)


def new_session(hosts: Hosts) -> Session:
    return Session(hosts.cluster, hosts.cluster.hosts[0])


def write(folder: Path, contents: dict[str, bytes]) -> dict[str, Path]:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return {name: folder / name for name in contents}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def cut_after(num_bytes: int, session: Session) -> Report:
    """Ends the connection as soon as so much is there."""

    def report(stage: str, done: int = 0, total: int | None = None, unit: str = "lines") -> None:
        if done >= num_bytes:
            session._process.kill()

    return report


class Amounts:
    """A Report that remembers how many bytes it was told of."""

    def __init__(self) -> None:
        self.done: list[int] = []

    def __call__(self, stage: str, done: int = 0, total: int | None = None, unit: str = "lines") -> None:
        if unit == "bytes":
            self.done.append(done)


def test_what_is_here_is_then_there_and_a_second_push_moves_nothing(
    session: Session, host: Machine, tmp_path: Path
) -> None:
    given = write(tmp_path, {**SMALL, "large": LARGE})
    # 3 + 5 + 0 bytes in three small files, and ten chunks
    assert push(session, given, "~/there") == Moved(4, 8 + 10 * CHUNK)
    assert contents(host.home / "there") == {**SMALL, "large": LARGE}
    assert push(session, given, "~/there") == Moved(0, 0)


def test_only_what_differs_is_sent(session: Session, host: Machine, tmp_path: Path) -> None:
    push(session, write(tmp_path, SMALL), "~/there")
    given = write(tmp_path, {"a.txt": b"two", "new.txt": b"four"})
    assert push(session, {**given, "folder/b.txt": tmp_path / "folder/b.txt"}, "~/there") == Moved(2, 3 + 4)
    assert contents(host.home / "there") == {**SMALL, "a.txt": b"two", "new.txt": b"four"}


def test_names_are_taken_as_they_are(session: Session, host: Machine, tmp_path: Path) -> None:
    given = {f"{name}/{name}": os.fsencode(name) for name in ODD_NAMES}
    push(session, write(tmp_path / "here", given), "~/there")
    assert contents(host.home / "there") == given
    pull(session, "~/there", tmp_path / "back")
    assert contents(tmp_path / "back") == given


def test_many_small_files_travel_together(
    session: Session, host: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    amounts = Amounts()
    monkeypatch.setattr(transfer, "MAX_TOGETHER", 7)
    given = {f"{number:02}": bytes([number]) * 200 for number in range(20)}
    push(session, write(tmp_path, given), "~/there", report=amounts)
    # Five of 200 bytes fill a chunk of 1000, before there are seven: four round trips for 20 files.
    assert amounts.done == [1000, 2000, 3000, 4000]
    assert contents(host.home / "there") == given


def test_a_cut_push_goes_on_where_it_stopped(hosts: Hosts, host: Machine, tmp_path: Path) -> None:
    given = write(tmp_path, {"large": LARGE})
    with new_session(hosts) as session, pytest.raises(HostError, match="h0"):
        push(session, given, "~/there", report=cut_after(3 * CHUNK, session))
    assert contents(host.home / "there") == {"large.part": LARGE[: 3 * CHUNK]}
    amounts = Amounts()
    with new_session(hosts) as session:
        push(session, given, "~/there", report=amounts)
    # Three chunks are there at once, then one after another.
    assert amounts.done == [number * CHUNK for number in range(3, 11)]
    assert contents(host.home / "there") == {"large": LARGE}


def test_a_cut_pull_goes_on_where_it_stopped(hosts: Hosts, host: Machine, tmp_path: Path) -> None:
    write(host.home / "there", {"large": LARGE})
    with new_session(hosts) as session, pytest.raises(HostError, match="h0"):
        pull(session, "~/there", tmp_path, report=cut_after(3 * CHUNK, session))
    assert contents(tmp_path) == {"large.part": LARGE[: 3 * CHUNK]}
    amounts = Amounts()
    with new_session(hosts) as session:
        pull(session, "~/there", tmp_path, report=amounts)
    assert amounts.done == [number * CHUNK for number in range(3, 11)]
    assert contents(tmp_path) == {"large": LARGE}


@pytest.mark.parametrize("left", [b"\xff" + LARGE[1 : 3 * CHUNK], LARGE + b"more"], ids=["other bytes", "too long"])
def test_a_beginning_that_is_wrong_is_not_gone_on_from(
    session: Session, host: Machine, tmp_path: Path, left: bytes
) -> None:
    write(host.home / "there", {"large.part": left})
    amounts = Amounts()
    push(session, write(tmp_path, {"large": LARGE}), "~/there", report=amounts)
    assert amounts.done[:2] == [0, CHUNK]
    assert contents(host.home / "there") == {"large": LARGE}


def test_a_flipped_byte_is_noticed_though_size_and_time_are_as_before(
    session: Session, host: Machine, tmp_path: Path
) -> None:
    given = write(tmp_path, {"large": LARGE})
    push(session, given, "~/there")
    there = host.home / "there" / "large"
    status = there.stat()
    there.write_bytes(LARGE[:5000] + b"\xff" + LARGE[5001:])
    os.utime(there, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert push(session, given, "~/there") == Moved(1, len(LARGE))
    assert there.read_bytes() == LARGE


def test_what_arrives_damaged_never_gets_its_name(session: Session, host: Machine) -> None:
    session.ask("files.write", folder="~/there", name="large", offset=0, payload=LARGE[:-1] + b"\xff")
    with pytest.raises(FarError, match="large arrived damaged"):
        session.ask("files.finish", folder="~/there", name="large", sha256=sha256(LARGE))
    # Nor does the next try go on from it.
    assert contents(host.home / "there") == {}


def test_digests_are_remembered_until_a_file_changes(hosts: Hosts, host: Machine) -> None:
    write(host.home / "there", {"a": b"one"})
    with new_session(hosts) as session:
        assert digests_there(session, "~/there") == {"a": (3, sha256(b"one"))}
    memory = host.home / ".cache/konvoi/digests" / f"{sha256(os.fsencode(host.home / 'there'))[:16]}.json"
    memory.write_text(memory.read_text().replace(sha256(b"one"), "remembered"))
    with new_session(hosts) as session:
        assert digests_there(session, "~/there") == {"a": (3, "remembered")}
    write(host.home / "there", {"a": b"two"})
    with new_session(hosts) as session:
        assert digests_there(session, "~/there") == {"a": (3, sha256(b"two"))}


@pytest.mark.parametrize("memory", ["no JSON", json.dumps({"x": 1})])
def test_a_damaged_memory_is_none(session: Session, host: Machine, memory: str) -> None:
    write(host.home / "there", {"a": b"one"})
    file = host.home / ".cache/konvoi/digests" / f"{sha256(os.fsencode(host.home / 'there'))[:16]}.json"
    write(file.parent, {file.name: memory.encode()})
    assert digests_there(session, "~/there") == {"a": (3, sha256(b"one"))}


def test_only_chosen_files_are_pulled_and_hidden_or_unfinished_ones_never(
    session: Session, host: Machine, tmp_path: Path
) -> None:
    write(host.home / "there", {**SMALL, ".hidden": b"x", ".git/x": b"x", "b.part": b"x"})
    assert pull(session, "~/there", tmp_path, lambda name: name.startswith("folder/")) == Moved(2, 5)
    assert contents(tmp_path) == {name: SMALL[name] for name in ("folder/b.txt", "folder/deeper/empty")}


def test_a_folder_that_is_not_there_has_no_files(session: Session, tmp_path: Path) -> None:
    assert pull(session, "~/there/nowhere", tmp_path / "new") == Moved(0, 0)


def test_a_link_that_leads_out_of_the_folder_is_not_followed(session: Session, host: Machine, tmp_path: Path) -> None:
    write(host.home, {"there/a": b"one", "secret/key": b"secret"})
    (host.home / "there" / "file").symlink_to(host.home / "secret" / "key")
    (host.home / "there" / "link").symlink_to(host.home / "secret")
    assert digests_there(session, "~/there") == {"a": (3, sha256(b"one"))}
    with pytest.raises(HostError, match="'link/new' lies outside of ~/there"):
        push(session, {"link/new": write(tmp_path, {"x": b"x"})["x"]}, "~/there")
    with pytest.raises(FarError, match="'file' lies outside"):
        session.ask("files.read", folder="~/there", name="file", offset=0, size=9)
    assert contents(host.home / "secret") == {"key": b"secret"}


def test_what_does_not_fit_is_said_before_a_byte_is_sent(session: Session, host: Machine, tmp_path: Path) -> None:
    (host.home / "there").mkdir()
    host.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", host.home / "there"])
    try:
        with pytest.raises(HostError, match="h0: no space for ~/there/new: 3 MB are needed, 1 MB are free"):
            push(session, write(tmp_path, {"x": bytes(3_000_000)}), "~/there/new")
    finally:
        host.run(["umount", host.home / "there"])


class TestAHostThatLies:
    """Real sessions with a far end of its own making."""

    @pytest.fixture
    def lies(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """What stands in this file the host says instead."""
        folder = tmp_path / "far"
        folder.mkdir()
        monkeypatch.setattr(session_module, "FAR", folder)
        return folder / "files.py"

    @pytest.mark.parametrize(
        "name", ["../escaped", "{root}/escaped", "a/../../escaped", "link/escaped", "", ".", "a/../..", "nul\0"]
    )
    def test_names_that_lead_out_of_the_folder_are_refused(
        self, lies: Path, hosts: Hosts, tmp_path: Path, name: str
    ) -> None:
        found = {"harmless": [1, sha256(b"x")], name.format(root=tmp_path): [1, sha256(b"x")]}
        lies.write_text(f"def digest(folder):\n    yield {found!r}\ndef read_whole(files): return b'xx'\n")
        target = tmp_path / "runs" / "one"
        target.mkdir(parents=True)
        (tmp_path / "elsewhere").mkdir()
        (target / "link").symlink_to(tmp_path / "elsewhere")
        with new_session(hosts) as session, pytest.raises(HostError, match=r"h0: .*(outside|null)"):
            pull(session, "~/there", target)
        assert [path.name for path in target.iterdir()] == ["link"]
        assert not [*tmp_path.rglob("escaped")]

    @pytest.mark.parametrize("answer", [b"other", b"xx", b""], ids=["other bytes", "too many", "none"])
    def test_bytes_that_are_not_what_was_promised_are_refused(
        self, lies: Path, hosts: Hosts, tmp_path: Path, answer: bytes
    ) -> None:
        promised = {"small": [5, sha256(b"right")]}
        lies.write_text(f"def digest(folder):\n    yield {promised!r}\ndef read_whole(files): return {answer!r}\n")
        with new_session(hosts) as session, pytest.raises(HostError, match=r"h0: small (arrived damaged|has changed)"):
            pull(session, "~/there", tmp_path / "in")
        assert contents(tmp_path / "in") == {}

    def test_more_bytes_than_were_asked_for_are_refused(self, lies: Path, hosts: Hosts, tmp_path: Path) -> None:
        promised = {"large": [len(LARGE), sha256(LARGE)]}
        too_much = "def read(folder, name, offset, size): return bytes(size + 1)\n"
        lies.write_text(f"def digest(folder):\n    yield {promised!r}\n{too_much}")
        with new_session(hosts) as session, pytest.raises(HostError, match="h0: large has changed meanwhile"):
            pull(session, "~/there", tmp_path / "in")
        assert "large" not in contents(tmp_path)


def test_the_same_functions_serve_both_ends() -> None:
    """So that a push is tested by a pull."""
    assert Path(files.__file__) == session_module.FAR / "files.py"
