"""The live page: on this machine only, and as new as the events."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest
from tests.analysis.made_runs import make_run

from konvoi.errors import MachineError, RunError
from konvoi.report import serve


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", num_steps=10, status="running")


@pytest.fixture
def port(run: Path) -> Iterator[int]:
    with serve.server_of(run, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def ask(port: int, path: str = "/", method: str = "GET", **headers: str) -> tuple[HTTPResponse, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    content = response.read().decode()
    connection.close()
    return response, content


def add_step(run: Path, number: int) -> None:
    file = run / "events" / "rank0.jsonl"
    last = json.loads(file.read_text().splitlines()[-1])
    with file.open("a") as events:
        events.write(json.dumps({**last, "step": number}) + "\n")


def test_the_page_is_live_while_the_run_goes_on(port):
    response, text = ask(port)
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "ten steps" in text
    assert '<span class="live"' in text


def test_a_run_that_is_over_is_not_asked_for_again(run):
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "status": "finished"}))
    assert b'<span class="live"' not in serve.LivePage(run).latest()


def test_it_is_rebuilt_when_events_came_and_not_before(run, monkeypatch):
    monkeypatch.setattr(serve, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(serve, "MAX_SHARE", float("inf"))
    monkeypatch.setattr(serve, "ASK_ANEW_SECONDS", float("inf"))
    page = serve.LivePage(run)
    first = page.latest()
    assert page.latest() is first
    add_step(run, 123)
    assert b"123 steps" in page.latest()


def test_not_more_often_than_it_should(run, monkeypatch):
    monkeypatch.setattr(serve, "EVERY_SECONDS", 1e9)
    page = serve.LivePage(run)
    first = page.latest()
    add_step(run, 123)
    assert page.latest() is first


def test_a_browser_that_has_the_page_is_told_so(port):
    tag = ask(port)[0].headers["ETag"]
    response, text = ask(port, **{"If-None-Match": tag})
    assert (response.status, text) == (304, "")


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "localhost:9000"])
def test_it_answers_under_its_own_names_through_a_tunnel_too(port, name):
    assert ask(port, Host=name)[0].status == 200


@pytest.mark.parametrize("name", ["evil.example", "evil.example:8765", "localhost.evil.example", ""])
def test_it_answers_under_no_other_name(port, name):
    response, text = ask(port, Host=name)
    assert response.status == 421
    assert "<html" not in text


@pytest.mark.parametrize("path", ["/recipe.toml", "/../recipe.toml", "/events/rank0.jsonl"])
def test_there_is_one_page_only(port, path):
    assert ask(port, path)[0].status == 404


def test_a_run_that_was_moved_away_is_said_to_be_gone(run, port):
    (run / "recipe.toml").rename(run / "elsewhere.toml")
    response, text = ask(port)
    assert response.status == 503
    assert "is not a run directory" in text


def test_a_window_that_was_closed_is_passed_over_and_a_fault_is_not(run, capsys):
    with serve.server_of(run, 0) as server:
        for error in (BrokenPipeError(), ValueError("a bug")):
            try:
                raise error
            except Exception:
                server.handle_error(None, ("127.0.0.1", 1))
    said = capsys.readouterr().err
    assert "BrokenPipe" not in said
    assert "ValueError: a bug" in said


def test_it_cannot_be_written_to(port):
    assert ask(port, method="POST")[0].status == 501


def test_it_listens_on_this_machine_only(run):
    with serve.server_of(run, 0) as server:
        assert server.server_address[0] == "127.0.0.1"


def test_a_taken_port_has_a_remedy(run):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(MachineError, match="cannot be used") as error:
            serve.server_of(run, other.getsockname()[1])
    assert "--port" in error.value.hint


def test_what_is_no_run_is_refused_at_once(tmp_path):
    with pytest.raises(RunError):
        serve.server_of(tmp_path, 0)
