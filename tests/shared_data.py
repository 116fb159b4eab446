"""Real corpora and pictures that are not part of the project: tests that want them skip where they are absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("KONVOI_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))


def shared_data(name: str) -> Path:
    """The path of a shared file; the test is skipped where there is none."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{name} is not among the shared data (KONVOI_SHARED_DATA names their folder)")
    return path
