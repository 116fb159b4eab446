"""environment.json: with what, where and how a run was made."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from konvoi import __version__

LIBRARIES = ("torch", "numpy", "sentencepiece", "sacrebleu", "safetensors", "pydantic", "tensorboard")


def environment(devices: list[str], workers: int) -> dict[str, Any]:
    return {
        "konvoi": __version__,
        "python": platform.python_version(),
        "libraries": {name: metadata.version(name) for name in LIBRARIES},
        "host": socket.gethostname(),
        "system": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "devices": devices,
        "workers": workers,
        "git": _git_state(),
        "command": sys.argv,
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _git_state() -> dict[str, Any] | None:
    """Of the folder where the command was given; None where there is no repository."""
    try:
        commit = _git("rev-parse", "HEAD")
        return {"commit": commit, "changed_files": len(_git("status", "--porcelain").splitlines())}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    result = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=5, check=True)
    return result.stdout.strip()
