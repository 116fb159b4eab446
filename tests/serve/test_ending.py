"""konvoi serve as a process: where it listens, who may reach it, and how it ends."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path

import httpx
import pytest
from tests.serve.conftest import Started

from konvoi.commands import serve as command
from konvoi.commands.serve import serve
from konvoi.errors import MachineError, UserError
from konvoi.serve.server import listen

PATIENCE_SECONDS = 240
TOKEN = "0123456789abcdef"


async def client_of(address: str, number: int, answers: list[int], is_over: asyncio.Event) -> None:
    """Asks one question after another until it is refused; what it did not send in time does not count."""
    async with httpx.AsyncClient(base_url=address, timeout=PATIENCE_SECONDS) as client:
        while not is_over.is_set():
            try:
                answer = await client.post(
                    "/api/translate", json={"text": f"The dog number {number} plays.", "beam": 1}
                )
            except httpx.ConnectError:
                return
            if answer.status_code == 200:
                assert answer.json()["sentences"][0]["translations"][0]["text"]
            answers.append(answer.status_code)
            if answer.status_code != 200:
                return


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_end_in_the_middle_it_loses_nothing_that_it_accepted(started: Started, trained_run: Path, number):
    async def load(address: str, end: object) -> list[int]:
        answers: list[int] = []
        is_over = asyncio.Event()
        clients = [asyncio.ensure_future(client_of(address, one, answers, is_over)) for one in range(16)]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(answers) < 32:
                await asyncio.sleep(0.01)
            end()
            # Raises what a client met: an answer that was cut off, or none at all.
            await asyncio.gather(*clients)
        return answers

    with started(trained_run) as (address, process):
        answers = asyncio.run(load(address, lambda: process.send_signal(number)))
        assert process.wait(PATIENCE_SECONDS) == 0
        out, err = process.communicate()
    assert set(answers) <= {200, 503}
    assert answers.count(200) >= 32
    assert (out, err) == ("", "")


def test_who_is_refused_hears_of_it_once_all_is_sent(started: Started, trained_run):
    """Before, the answer would be lost: what still arrives at a connection that is closed breaks it."""
    with started(trained_run, token=TOKEN) as (address, _):
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=1) as connection:
            connection.sendall(b"POST /api/translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n")
            with pytest.raises(TimeoutError):
                connection.recv(1)
            connection.settimeout(PATIENCE_SECONDS)
            connection.sendall(b"body")
            assert connection.recv(1000).startswith(b"HTTP/1.1 401")


def test_it_serves_translators_and_classifiers_on_this_machine_only(started: Started, trained_run, image_run):
    with started(trained_run, image_run) as (address, _):
        assert address.startswith("http://127.0.0.1:")
        tasks = [model["task"] for model in httpx.get(f"{address}/api/models", timeout=60).json()["models"]]
        assert tasks == ["translation", "classification"]


def test_it_answers_under_the_address_that_it_shows(started: Started, trained_run):
    with started(trained_run, host="127.0.0.2") as (address, _):
        assert address.startswith("http://127.0.0.2:")
        assert httpx.get(f"{address}/api/models", timeout=60).status_code == 200


def test_a_bundle_is_served_without_torch(started: Started, bundle):
    with started(bundle) as (address, process):
        answer = httpx.post(f"{address}/api/translate", json={"text": "A dog."}, timeout=60)
        assert answer.json()["sentences"][0]["translations"][0]["text"]
        assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()


def test_elsewhere_it_wants_a_token(trained_run):
    for host in ("0.0.0.0", "::"):
        with pytest.raises(UserError, match="needs a token") as error:
            serve([trained_run], host=host, port=0)
        assert "--token-file" in error.value.hint


def test_with_a_token_it_listens_elsewhere_too(started: Started, trained_run, monkeypatch):
    monkeypatch.setenv("KONVOI_TOKEN", TOKEN)
    with started(trained_run, host="0.0.0.0") as (address, _):
        url = address.replace("0.0.0.0", "127.0.0.1") + "/api/models"
        assert httpx.get(url, timeout=60).status_code == 401
        assert httpx.get(url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60).status_code == 200


def test_a_token_comes_from_a_file_the_environment_or_the_command_which_warns(tmp_path, monkeypatch, capsys):
    (tmp_path / "token").write_text("from-the-file-of-the-user\n")
    assert command._token(None, None) is None
    monkeypatch.setenv("KONVOI_TOKEN", "from-the-environment")
    assert command._token(None, None) == "from-the-environment"
    monkeypatch.setenv("KONVOI_TOKEN", "from-the-environment\n")
    assert command._token(None, None) == "from-the-environment"
    assert command._token(None, tmp_path / "token") == "from-the-file-of-the-user"
    assert capsys.readouterr().err == ""
    assert command._token("from-the-command", None) == "from-the-command"
    assert "other users can see --token" in capsys.readouterr().err


@pytest.mark.parametrize("token", ["", "short", "fünfzehnZeichenUndMehr", "with blanks in between"])
def test_a_token_that_can_be_guessed_or_not_sent_is_refused(token):
    with pytest.raises(UserError, match="at least 16 characters"):
        serve([], token=token)


def test_a_token_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(UserError, match="nothing cannot be read"):
        serve([], token_file=tmp_path / "nothing")


def test_a_port_that_is_taken_has_a_remedy():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(MachineError, match="cannot be used") as error:
            listen("127.0.0.1", other.getsockname()[1])
    assert "--port" in error.value.hint


@pytest.mark.parametrize(
    ("host", "problem"),
    [("192.0.2.1", "no address of this machine"), ("no such name", "no address"), ("a..b", "no address")],
)
def test_a_host_that_is_not_this_one_is_refused(host, problem):
    with pytest.raises(UserError, match=problem):
        listen(host, 0)


def test_what_is_neither_a_bundle_nor_a_run_is_refused(tmp_path):
    with pytest.raises(UserError):
        serve([tmp_path], port=0)
