"""The folder that all hosts share: mounted, and really the same."""

from __future__ import annotations

import os
import shlex
import subprocess

MOUNTS = "/proc/self/mountinfo"
MOUNT_SECONDS = 40


def is_mounted(target: str) -> bool:
    """A bind mount too, which os.path.ismount() does not see."""
    with open(MOUNTS) as stream:
        return any(_plain(line.split(" ")[4]) == os.path.realpath(target) for line in stream)


def mount(source: str, target: str, type: str, options: str) -> None:
    """Nothing where it is mounted; raises with mount's own words and the command."""
    if is_mounted(target):
        return
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    words = ["mount", "-t", type, *(["-o", options] if options else []), "--", source, target]
    for command in (["mkdir", "-p", "--", target], words):
        try:
            done = subprocess.run(
                as_root + command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=MOUNT_SECONDS
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"no answer from {source} for {MOUNT_SECONDS} s\n{_line(words)}") from None
        if done.returncode:
            said = done.stdout.decode(errors="replace").strip().splitlines()
            raise RuntimeError("{}\n{}".format(said[0] if said else command[0] + " failed", _line(words)))


def leave_token(target: str, token: str) -> None:
    with open(_token_path(target, token), "w") as stream:
        stream.write(token)


def sees_token(target: str, token: str) -> bool:
    return os.path.exists(_token_path(target, token))


def remove_token(target: str, token: str) -> None:
    if sees_token(target, token):
        os.remove(_token_path(target, token))


def _token_path(target: str, token: str) -> str:
    return os.path.join(target, ".konvoi-" + token)


def _plain(path: str) -> str:
    r"""As in mountinfo: \040 for a blank."""
    return path.encode().decode("unicode_escape").encode("latin-1").decode(errors="replace")


def _line(words: list[str]) -> str:
    """For the user, who becomes root as is usual there."""
    return " ".join(map(shlex.quote, ["sudo", *words]))
