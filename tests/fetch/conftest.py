"""What the tests of fetching share: a server, and pauses that are noted instead of slept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fetch.server import Server, running_server

from konvoi.fetch import download as download_module


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with running_server() as running:
        yield running


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that would have been slept."""
    noted: list[float] = []
    monkeypatch.setattr(download_module, "sleep", noted.append)
    return noted
