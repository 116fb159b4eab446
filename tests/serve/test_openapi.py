"""The API is as it describes itself, whatever is sent: schemathesis makes requests from the description."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance
from tests.serve.conftest import Started

from konvoi.serve.app import create_app

GET = ("/api/models", "/health", "/ready", "/metrics")
POST = ("/api/translate", "/api/translate/stream", "/api/classify")
PATIENCE_SECONDS = 60


@pytest.fixture(scope="module")
def description(started: Started, trained_run: Path, image_run: Path) -> Iterator[Any]:
    """Of a service that runs, to be asked over the network."""
    with started(trained_run, image_run) as (address, _):
        yield schemathesis.openapi.from_url(f"{address}/openapi.json")


def ask_all(description: Any, method: str, path: str, mode: GenerationMode, **checks: Any) -> None:
    """No status and no form that the description does not name; never 500."""

    @given(case=description[path][method].as_strategy(generation_mode=mode))
    @settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    def ask(case: Any) -> None:
        case.call_and_validate(timeout=PATIENCE_SECONDS, **checks)

    ask()


@pytest.mark.parametrize("path", GET)
def test_what_can_be_looked_at_is_as_described(description: Any, path: str) -> None:
    ask_all(description, "GET", path, GenerationMode.POSITIVE)


@pytest.mark.parametrize("path", POST)
def test_what_may_be_asked_is_answered_as_described(description: Any, path: str) -> None:
    # Any bytes may be sent as a picture; not all of them are one.
    excluded = [positive_data_acceptance] if path == "/api/classify" else []
    ask_all(description, "POST", path, GenerationMode.POSITIVE, excluded_checks=excluded)


@pytest.mark.parametrize("path", POST)
def test_what_may_not_be_asked_is_refused_as_described(description: Any, path: str) -> None:
    ask_all(description, "POST", path, GenerationMode.NEGATIVE)


def test_nothing_is_left_undescribed(description: Any) -> None:
    assert {operation.ok().path for operation in description.get_all_operations()} == {*GET, *POST}


def test_a_token_is_described_where_one_is_wanted() -> None:
    for token, wants in ((None, False), ("a token of more than sixteen characters", True)):
        paths = create_app(token=token).openapi()["paths"]
        assert ("security" in paths["/api/translate"]["post"]) == ("security" in paths["/metrics"]["get"]) == wants
        assert "security" not in paths["/health"]["get"]
