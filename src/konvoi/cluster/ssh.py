"""The words of an ssh command, and what its complaints mean.

The system's own OpenSSH, so that the user's config, agent and jump hosts work. Host keys are checked always, passwords
are never asked for, and nothing that a file or a user says becomes an option or a second command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from konvoi.cluster.hosts import Cluster, Host
from konvoi.errors import HostError

CONNECT_SECONDS = 8
# A connection that has gone dead without a word is noticed after so many of these.
ALIVE_SECONDS, ALIVE_TIMES = 10, 3

# What the user's config may say otherwise, and we rely on: asked for no word, every host key checked, complaints not
# held back, no forwarding that a second session could not have, and no session of the user's that would end with ours.
BATCH_OPTIONS = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "LogLevel": "INFO",
    "ClearAllForwardings": "yes",
    "ControlMaster": "no",
    "RemoteCommand": "none",
}
# Exit codes: ssh's own failure, and a shell's that finds no such program or may not run it.
SSH_FAILED, NOT_EXECUTABLE, NOT_FOUND = 255, 126, 127

# What ssh says, what that means, what to do. The first that is found counts: the cause is before what follows from it.
# {ssh} is what a person would type, {old_key} where the old host key is.
COMPLAINTS = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key has changed: another machine answers at this address",
        "if that is right (a new instance), delete the old key, {old_key}, then look at the new one: {ssh}",
    ),
    (
        "Host key verification failed",
        "its host key is not known",
        "look at it once and accept it: {ssh}",
    ),
    (
        "Could not resolve hostname",
        "its name is unknown",
        "check ssh = in cluster.toml, or add the name to ~/.ssh/config",
    ),
    ("invalid characters", "its name is no name of a host", "check ssh = in cluster.toml"),
    ("Connection refused", "nothing answers on its ssh port", "is sshd running there, and the port right?"),
    (
        "timed out",
        "it does not answer",
        "is it running, and does its security group let your address in on port 22?",
    ),
    ("No route to host", "there is no way to it", "is it running, and are you on its network or VPN?"),
    ("Network is unreachable", "there is no way to it", "is it running, and are you on its network or VPN?"),
    (
        "not responding",
        f"the connection broke off: no sign of life for {ALIVE_SECONDS * ALIVE_TIMES} s",
        "is it running, and the network between you up?",
    ),
    (
        "Too many authentication failures",
        "it was offered too many ssh keys",
        "name the right one: IdentityFile and IdentitiesOnly yes in ~/.ssh/config",
    ),
    ("by remote host", "it closed the connection", "was it restarted, or does its sshd refuse more connections?"),
    ("send disconnect", "it closed the connection", "was it restarted, or does its sshd refuse more connections?"),
    ("Connection reset", "it closed the connection", "was it restarted, or does its sshd refuse more connections?"),
    ("Can't open user config file", "your ssh configuration is missing", "check ssh_config = in cluster.toml"),
    ("Bad configuration option", "your ssh configuration has a mistake", "{ssh} shows where"),
    ("Bad owner or permissions", "others may write your ssh configuration, so ssh does not use it", "chmod 600 it"),
    (
        "UNPROTECTED PRIVATE KEY FILE",
        "others may read your ssh key, so ssh does not use it",
        "chmod 600 the key's file",
    ),
    ("not accessible", "the file of your ssh key is missing", "check identity = in cluster.toml"),
    (
        "Permission denied",
        "it does not accept your ssh key",
        "name the key (identity in cluster.toml, or IdentityFile in ~/.ssh/config) or the user (ssh = user@address)",
    ),
)


def ssh_words(cluster: Cluster, host: Host, *, batch: bool = True) -> list[str]:
    """All but the command to run; without `batch` ssh may ask its user something."""
    settings: dict[str, object] = {
        "ConnectTimeout": CONNECT_SECONDS,
        "ServerAliveInterval": ALIVE_SECONDS,
        "ServerAliveCountMax": ALIVE_TIMES,
        **(BATCH_OPTIONS if batch else {}),
    }
    options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    return ["ssh", *(["-T"] if batch else []), *options, *_whereto(cluster, host)]


def remote(words: Sequence[str]) -> str:
    """One command for the shell at the far end, whatever is in its words; the program's ~/ is the home there."""
    program = words[0]
    if program.startswith("~/"):
        return " ".join(["~/" + shlex.quote(program[2:]), *map(shlex.quote, words[1:])])
    return shlex.join(words)


def explain(cluster: Cluster, host: Host, code: int, said: str) -> HostError:
    """What ssh's last words mean for the user."""
    by_hand = shlex.join(["ssh", *_whereto(cluster, host)])
    last = said.strip().splitlines()[-1] if said.strip() else ""
    if code in (NOT_FOUND, NOT_EXECUTABLE):
        hint = "python = in cluster.toml names the Python of the hosts; konvoi cluster setup makes their environment"
        return HostError(host.name, f"it has no such program ({last})", hint)
    for sign, problem, hint in COMPLAINTS if code == SSH_FAILED else ():
        if sign in said:
            return HostError(host.name, problem, hint.format(ssh=by_hand, old_key=_old_key(said)))
    if code == SSH_FAILED and not last:
        return HostError(host.name, "what ran there was killed", hint="did its memory run out? dmesg there says so")
    return HostError(host.name, last or f"ssh ended with exit code {code}", hint=f"try it by hand: {by_hand}")


def _whereto(cluster: Cluster, host: Host) -> list[str]:
    """What a person would type after `ssh`."""
    config = ["-F", cluster.ssh_config] if cluster.ssh_config else []
    identity = ["-i", str(Path(host.identity).expanduser())] if host.identity else []
    return [*config, *identity, "--", host.ssh]


def _old_key(said: str) -> str:
    place = re.search(r"^Offending .* in (.+):(\d+)\s*$", said, re.MULTILINE)
    return f"line {place[2]} of {place[1]}" if place else "in ~/.ssh/known_hosts"
