"""A disk that writes slowly: a file as a loop device, its rate held by the block layer's throttle (cgroup v1)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

THROTTLE = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")


@contextmanager
def slow_disk(folder: Path, megabytes_per_second: float, size_megabytes: int) -> Iterator[None]:
    """Mounts such a disk at an empty folder."""
    image = folder.with_name(f"{folder.name}.image")
    remove_disk(image)
    with image.open("wb") as file:
        file.truncate(size_megabytes << 20)
    # No journal: its thread would wait for the same disk, and every file's end with it.
    _run("mkfs.ext4", "-q", "-F", "-O", "^has_journal", str(image))
    device = _run("losetup", "--find", "--show", str(image))
    try:
        _run("mount", device, str(folder))
        _throttle(device, round(megabytes_per_second * 1e6))
        yield
    finally:
        remove_disk(image)


def remove_disk(image: Path) -> None:
    """Also one that a killed run left."""
    listed = _run("losetup", "--associated", str(image), "--noheadings", "--output", "NAME") if image.exists() else ""
    for device in listed.split():
        _throttle(device, 0)
        subprocess.run(["umount", device], capture_output=True)
        _run("losetup", "--detach", device)
    image.unlink(missing_ok=True)


def _throttle(device: str, bytes_per_second: int) -> None:
    """0 takes the limit away."""
    number = os.stat(device).st_rdev
    THROTTLE.write_text(f"{os.major(number)}:{os.minor(number)} {bytes_per_second}")


def _run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
