"""Where Konvoi keeps its sets."""

from __future__ import annotations

import os
from pathlib import Path

# A prepared set under KONVOI_HOME, made elsewhere and brought here by konvoi cluster setup: it is taken as it is.
PREPARED_VARIABLE = "KONVOI_PREPARED"


def konvoi_home() -> Path:
    """$KONVOI_HOME, or ~/.cache/konvoi."""
    given = os.environ.get("KONVOI_HOME")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "konvoi"


def brought_set() -> Path | None:
    """The folder of the set that $KONVOI_PREPARED names: then the files that it was made of need not be here."""
    given = os.environ.get(PREPARED_VARIABLE)
    return konvoi_home() / given if given else None
