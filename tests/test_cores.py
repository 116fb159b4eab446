"""Threads give way only where others have the cores, and never against what the user said."""

from __future__ import annotations

import os

import pytest

from konvoi.cores import give_way_where_busy, usable_cores


@pytest.fixture(autouse=True)
def no_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    # Set first, so that whatever a test leaves there is taken away.
    monkeypatch.setenv("OMP_WAIT_POLICY", "")
    monkeypatch.delenv("OMP_WAIT_POLICY")


@pytest.mark.parametrize(("busy_share", "policy"), [(0.0, None), (0.4, None), (0.6, "passive"), (3.0, "passive")])
def test_beside_others_threads_sleep_while_they_wait(
    busy_share: float, policy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = busy_share * usable_cores()
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    give_way_where_busy()
    assert os.environ.get("OMP_WAIT_POLICY") == policy


def test_what_the_user_said_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    give_way_where_busy()
    assert os.environ["OMP_WAIT_POLICY"] == "active"
