"""Where hosts meet: on one address only, and nobody who does not belong; a host that goes silent is named."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.processes import free_port

from konvoi.cluster import agent, rendezvous
from konvoi.cluster.agent import launch_node
from konvoi.cluster.job_spec import Failure, JobSpec, Member
from konvoi.cluster.rendezvous import Board, connect_store, serve_store
from konvoi.cluster.workers import LOST_OTHERS, failed
from konvoi.errors import ClusterError, HostError
from konvoi.exit_codes import DONE, INTERRUPTED, OUR_FAULT, USER

PATIENCE_SECONDS = 60.0
MEMBERS = tuple(Member(f"h{n}", f"127.0.0.{n}", "lo", 1) for n in (1, 2, 3))


def specs(num_hosts: int = 3) -> list[JobSpec]:
    port = free_port()
    return [JobSpec("this-job", MEMBERS[:num_hosts], node, port) for node in range(num_hosts)]


def wait_for(is_so: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def environment_as_before() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def boards(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Board]]:
    """Of three hosts that have met."""
    monkeypatch.setattr(rendezvous, "FAREWELL_SECONDS", 0.5)
    with ExitStack() as stack:
        found = [Board(spec, PATIENCE_SECONDS) for spec in specs()]
        # The first one last: it waits until the others have read how it ended.
        for board in found:
            stack.callback(board.close)
        for board in found:
            board.say("joined")
        wait_for(lambda: all(board.all_said("joined") for board in found))
        yield found


@pytest.mark.parametrize("address", ["127.0.0.2", "::1"])
def test_a_store_listens_on_its_address_only(address: str) -> None:
    store = serve_store(address)
    listening = [c.laddr for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN]
    assert [place.ip for place in listening if place.port == store.port] == [address]
    connect_store(address, store.port, PATIENCE_SECONDS).set("key", "value")
    assert store.get("key") == b"value"


def test_a_store_that_comes_later_is_waited_for() -> None:
    port = free_port()
    served = []
    timer = threading.Timer(0.5, lambda: served.append(serve_store("127.0.0.1", port)))
    timer.start()
    connect_store("127.0.0.1", port, PATIENCE_SECONDS).set("key", "value")
    timer.join()
    assert served[0].get("key") == b"value"


def test_a_store_that_does_not_come_is_named_with_its_place() -> None:
    port = free_port()
    with pytest.raises(ClusterError, match=f"nobody answers at 127.0.0.1:{port} within 0.3 s"):
        connect_store("127.0.0.1", port, timeout=0.3)


def test_a_host_of_another_training_does_not_get_in() -> None:
    first, second, _ = specs()
    board = Board(first, PATIENCE_SECONDS)
    with pytest.raises(HostError, match="h1: another training meets at"):
        Board(replace(second, id="another-job"), PATIENCE_SECONDS)
    board.close()


def test_a_host_that_joins_twice_is_named() -> None:
    first, second, _ = specs()
    boards = [Board(first, PATIENCE_SECONDS), Board(second, PATIENCE_SECONDS)]
    with pytest.raises(HostError, match="h2: takes part in this training already"):
        Board(second, PATIENCE_SECONDS)
    for board in boards:
        board.close()


def test_a_port_that_is_taken_is_named_with_the_host() -> None:
    first, *_ = specs()
    with (
        socket.create_server((first.member.address, first.port)),
        pytest.raises(HostError, match="h1: cannot listen on"),
    ):
        Board(first, PATIENCE_SECONDS)


def test_what_one_host_says_all_hear(boards: list[Board]) -> None:
    boards[2].say("ready", "with this data")
    for board in boards:
        wait_for(lambda board=board: board.said("ready") == ["", "", "with this data"])
    assert not boards[0].all_said("ready") and boards[0].any_said("ready")


def test_the_first_failure_is_the_one_of_all(boards: list[Board]) -> None:
    first, second = Failure("h3", 2, "the cause"), Failure("h2", 1, "what followed from it")
    boards[2].fail(first, USER)
    wait_for(lambda: boards[1].failure())
    boards[1].fail(second, OUR_FAULT)
    boards[1].say("ended")
    # Said after the second failure: whoever has heard it could have heard that, too.
    wait_for(lambda: all(board.any_said("ended") for board in boards))
    assert [board.failure() for board in boards] == [(first, USER)] * 3


def all_ready(boards: list[Board]) -> None:
    for board in boards:
        board.say("ready")
    wait_for(lambda: all(board.all_said("ready") for board in boards))


def test_a_host_that_falls_silent_is_named_on_all(boards: list[Board], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "SILENCE_SECONDS", 3.0)
    all_ready(boards)
    # As a process that is killed: no word of farewell.
    boards[1]._exchange = lambda count: time.sleep(PATIENCE_SECONDS)  # type: ignore[method-assign]
    wait_for(lambda: boards[2].failure())
    failure, code = boards[2].failure() or pytest.fail("it was there")
    assert (failure.host, failure.rank, code) == ("h2", None, OUR_FAULT)
    assert boards[0].failure() == (failure, code)
    # The silent one hears nothing, and takes the first host for gone.
    wait_for(lambda: boards[1].failure())
    assert boards[1].failure()[0].host == "h1"  # type: ignore[index]


def test_once_a_worker_lost_the_others_a_silent_host_is_gone_sooner(
    boards: list[Board], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "SILENCE_SECONDS", 1000.0)
    monkeypatch.setattr(rendezvous, "SILENCE_AFTER_A_SIGN_SECONDS", 2.0)
    all_ready(boards)
    boards[1]._exchange = lambda count: time.sleep(PATIENCE_SECONDS)  # type: ignore[method-assign]
    time.sleep(3.0)
    assert boards[2].failure() is None
    boards[2].say("sign")
    wait_for(lambda: boards[2].failure())
    assert boards[2].failure()[0].host == "h2"  # type: ignore[index]


def test_while_data_is_prepared_a_host_may_be_silent_for_longer(
    boards: list[Board], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "SILENCE_SECONDS", 1.0)
    monkeypatch.setattr(rendezvous, "SILENCE_BEFORE_READY_SECONDS", 1000.0)
    boards[1]._exchange = lambda count: time.sleep(PATIENCE_SECONDS)  # type: ignore[method-assign]
    wait_for(lambda: boards[0].doubtful() == [1])
    time.sleep(2.0)
    assert boards[0].failure() is None and boards[2].failure() is None


def test_time_in_which_a_process_did_not_run_is_no_silence_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(rendezvous.time, "monotonic", lambda: clock[0])
    still, found = rendezvous.Stillness(), []
    for clock[0], sign in ((100.0, "1"), (100.5, "1"), (101.0, "1"), (160.0, "1"), (160.5, "2")):
        found.append(still.of(sign))
    # Half a second twice, then 59 s of which one counts; then a sign of life.
    assert found == [0.0, 0.5, 1.0, 2.0, 0.0]


def test_a_host_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(agent, "MEETING_SECONDS", 1.0)
    outcome = launch_node(lambda words: DONE, [], specs(2)[0], tmp_path)
    assert outcome.exit_code == USER
    assert outcome.failure and outcome.failure.host == "h2"
    assert "h2: did not join the training within 1 s" in outcome.failure.text


def test_a_first_host_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(agent, "MEETING_SECONDS", 1.0)
    outcome = launch_node(lambda words: DONE, [], specs(2)[1], tmp_path)
    assert outcome.exit_code == USER
    assert outcome.failure and outcome.failure.host == "h1"
    assert "nobody answers at 127.0.0.1" in outcome.failure.text


def test_other_versions_are_named_with_their_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second = specs(2)
    other: list[Board] = []

    def join() -> None:
        other.append(Board(second, PATIENCE_SECONDS))
        other[0].say("joined", '{"konvoi": "0.0.1"}')

    thread = threading.Thread(target=join)
    thread.start()
    outcome = launch_node(lambda words: DONE, [], first, tmp_path)
    thread.join()
    other[0].close()
    assert outcome.failure and outcome.failure.host == "h2"
    assert 'has other versions than h1: {"konvoi": "0.0.1"}' in outcome.failure.text


@pytest.mark.parametrize(
    ("codes", "is_stopping", "expected"),
    [
        ({0: DONE, 1: DONE}, False, []),
        ({0: INTERRUPTED, 1: DONE}, False, []),
        # Whoever lost the others is never the cause where there is another; a killed one comes before an error.
        ({0: LOST_OTHERS, 1: USER}, False, [(1, USER), (0, LOST_OTHERS)]),
        ({0: OUR_FAULT, 1: LOST_OTHERS, 2: -9}, False, [(2, -9), (0, OUR_FAULT), (1, LOST_OTHERS)]),
        # Asked to stop, some end before they listen for signals, and others then lose them.
        ({0: -15, 1: LOST_OTHERS, 2: INTERRUPTED}, True, []),
        ({0: -15, 1: USER}, True, [(1, USER)]),
    ],
)
def test_the_likeliest_cause_comes_first(
    codes: dict[int, int], is_stopping: bool, expected: list[tuple[int, int]]
) -> None:
    assert failed(codes, is_stopping) == expected
