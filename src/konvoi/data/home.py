"""Where Konvoi keeps its sets."""

from __future__ import annotations

import os
from pathlib import Path


def konvoi_home() -> Path:
    """$KONVOI_HOME, or ~/.cache/konvoi."""
    given = os.environ.get("KONVOI_HOME")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "konvoi"
