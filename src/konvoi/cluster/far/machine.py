"""What a host is and has: one quick look that changes nothing. Its keys are those of cluster/facts.py."""

from __future__ import annotations

import array
import fcntl
import glob
import hashlib
import json
import os
import re
import resource
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

# A name server, a GPU's driver or a network mount may take for ever; the look does not wait for them.
SLOW_SECONDS = 20
# See netdevice(7).
SIOCGIFCONF, SIOCGIFFLAGS, SIOCGIFMTU = 0x8912, 0x8913, 0x8921
IFREQ_BYTES, NAME_BYTES = 40 if struct.calcsize("P") == 8 else 32, 16
IS_UP, IS_LOOPBACK = 0x1, 0x8
MOST_ADDRESSES = 1024
# Of a socket in /proc/net/tcp.
LISTENING = "0A"
# Of a PCI device: NVIDIA's, and for display or computing in 3D.
VENDOR, CLASS = "0x10de", "0x03"
GPU_KEYS = "name,driver_version,memory.total,memory.used"
BYTES_PER_MIB = 1024 * 1024
# What an environment's own Python is asked. find_spec looks for a package and does not import it.
SAY = """
import importlib.util, json, sys
found = importlib.util.find_spec("konvoi")
print(json.dumps({"python": sys.version.split()[0], "path": sys.path, "konvoi": found and found.origin}))
"""


def look(
    folder: str, venv: str, home: str, shared_target: str | None, ports: list[int], address: str = ""
) -> dict[str, Any]:
    """`ports` are the first and the last; `address` is as in cluster.toml, maybe a name."""
    host_name, system = socket.gethostname(), os.uname()
    silence = f"no answer within {SLOW_SECONDS} s"
    slow = {
        "name_addresses": _begin(lambda: _resolve(host_name), []),
        "resolved_addresses": _begin(lambda: _resolve(address), []),
        "environment": _begin(lambda: environment(venv), {"folder": venv, "problem": silence}),
        "gpus": _begin(_gpus, {"gpus": [], "gpu_problem": f"nvidia-smi: {silence}"}),
        "folder": _begin(lambda: _place(folder), {"path": folder, "problem": silence}),
        "home": _begin(lambda: _place(home), {"path": home, "problem": silence}),
    }
    quick = {
        "host_name": host_name,
        "interfaces": _interfaces(),
        "architecture": system.machine,
        "kernel": system.release,
        "num_nvidia_cards": _num_nvidia_cards(),
        "has_rdma": bool(glob.glob("/sys/class/infiniband/*")),
        "cores": len(os.sched_getaffinity(0)),
        "limits": _limits(),
        "jobs": list(_jobs()),
        "listeners": list(_listeners(ports[0], ports[1])),
        "is_shared_mounted": None if shared_target is None else _is_mounted(shared_target),
        "time": time.time(),
    }
    found = {key: result() for key, result in slow.items()}
    return {**quick, **_memory(), **found, **found["gpus"]}


def _begin(work: Callable[[], Any], otherwise: Any) -> Callable[[], Any]:
    """Works in a thread; what is returned waits for the result, though not for ever."""
    results = [otherwise]
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    give_up_at = time.monotonic() + SLOW_SECONDS

    def result() -> Any:
        thread.join(max(0.0, give_up_at - time.monotonic()))
        return results[-1]

    return result


# The environment


def environment(venv: str) -> dict[str, Any]:
    """Its Python's version, and what is installed there by what the packages say of themselves; none is imported."""
    folder = os.path.expanduser(venv)
    python = os.path.join(folder, "bin", "python")
    if not os.path.lexists(python):
        return {"folder": folder}
    try:
        # In /: a folder "konvoi" where we happen to be is not the package.
        said = subprocess.run([python, "-c", SAY], cwd="/", capture_output=True, text=True, timeout=SLOW_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"folder": folder, "problem": str(error)}
    if said.returncode:
        return {"folder": folder, "problem": _last_line(said.stderr) or f"it ends with exit code {said.returncode}"}
    answer = json.loads(said.stdout.splitlines()[-1])
    code = _digest(os.path.dirname(answer["konvoi"])) if answer["konvoi"] else ""
    return {"folder": folder, "python": answer["python"], "konvoi_digest": code, **_packages(answer["path"])}


def _packages(path: list[str]) -> dict[str, Any]:
    """Versions by name, as Python would find them: the first on its path. And whom konvoi always needs."""
    versions: dict[str, str] = {}
    requires: list[str] = []
    for folder in filter(None, path):
        # Names with a ~ are what an interrupted pip has put aside.
        for kind in ("[!~]*.dist-info/METADATA", "[!~]*.egg-info/PKG-INFO"):
            for file in sorted(glob.glob(os.path.join(glob.escape(folder), kind))):
                head = _head(file)
                name = _plain(head.get("Name", ["?"])[0])
                if name not in versions:
                    versions[name] = head.get("Version", ["?"])[0]
                    requires = head.get("Requires-Dist", []) if name == "konvoi" else requires
    return {"packages": versions, "requires": sorted(_plain(line) for line in requires if ";" not in line)}


def _head(file: str) -> dict[str, list[str]]:
    """The lines "Key: value" before the first empty one."""
    values: dict[str, list[str]] = {}
    with open(file, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.strip():
                break
            key, _, value = line.partition(": ")
            values.setdefault(key, []).append(value.strip())
    return values


def _plain(requirement: str) -> str:
    """Opencv_Python>=4 -> opencv-python"""
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement)[0]).lower()


def _digest(folder: str) -> str:
    """Of a package's source, so that two checkouts of one version can be told apart."""
    digest = hashlib.sha256()
    for file in sorted(glob.glob(os.path.join(glob.escape(folder), "**", "*.py"), recursive=True)):
        with open(file, "rb") as source:
            digest.update(os.path.relpath(file, folder).encode() + b"\0" + source.read() + b"\0")
    return digest.hexdigest()


# The network


def _resolve(name: str) -> list[str]:
    try:
        return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None, socket.AF_INET)}) if name else []
    except (OSError, UnicodeError):
        return []


def _interfaces() -> dict[str, dict[str, Any]]:
    """By ioctl: in a container, /sys may be that of the machine around it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        addresses = _addresses(asked)
        return {name: {"addresses": addresses.get(name, []), **_link(asked, name)} for _, name in socket.if_nameindex()}


def _addresses(asked: socket.socket) -> dict[str, list[str]]:
    """IPv4, by interface. A second address may go by a name of its own, eth0:1."""
    room = array.array("B", bytes(MOST_ADDRESSES * IFREQ_BYTES))
    answer = fcntl.ioctl(asked, SIOCGIFCONF, struct.pack("iP", len(room), room.buffer_info()[0]))
    filled = room.tobytes()[: struct.unpack("iP", answer)[0]]
    found: dict[str, list[str]] = {}
    for start in range(0, len(filled), IFREQ_BYTES):
        name = filled[start : start + NAME_BYTES].split(b"\0")[0].decode().split(":")[0]
        # Behind the name a sockaddr_in: family and port are two bytes each.
        address = socket.inet_ntoa(filled[start + NAME_BYTES + 4 : start + NAME_BYTES + 8])
        found.setdefault(name, []).append(address)
    return found


def _link(asked: socket.socket, name: str) -> dict[str, Any]:
    def about(request: int) -> int:
        answer = fcntl.ioctl(asked, request, name.encode().ljust(IFREQ_BYTES, b"\0"))
        return int(struct.unpack_from("=H" if request == SIOCGIFFLAGS else "=i", answer, NAME_BYTES)[0])

    flags, megabits = about(SIOCGIFFLAGS), _number(f"/sys/class/net/{name}/speed")
    return {
        "mtu": about(SIOCGIFMTU),
        # A virtual interface has none, or says -1.
        "speed_megabits": megabits if megabits and megabits > 0 else None,
        "is_up": bool(flags & IS_UP),
        "is_loopback": bool(flags & IS_LOOPBACK),
    }


def _listeners(first: int, last: int) -> Iterator[dict[str, Any]]:
    """Who listens on these ports; the process only where we may know it."""
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        for words in (line.split() for line in _text(file).splitlines()[1:]):
            address, _, port = words[1].rpartition(":")
            if words[3] == LISTENING and first <= int(port, 16) <= last:
                yield {"address": _dotted(address), "port": int(port, 16), **_owner(f"socket:[{words[9]}]")}


def _dotted(digits: str) -> str:
    """0100007F -> 127.0.0.1: words of 32 bits in the order of this machine."""
    words = [struct.pack("=I", int(digits[start : start + 8], 16)) for start in range(0, len(digits), 8)]
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, b"".join(words))


def _owner(descriptor: str) -> dict[str, Any]:
    for process_id in _process_ids():
        for file in glob.glob(f"/proc/{process_id}/fd/*"):
            try:
                if os.readlink(file) == descriptor:
                    return {"process_id": process_id, "command": " ".join(_words(process_id, "cmdline"))}
            except OSError:
                pass  # closed meanwhile
    return {}


# Processes


def _jobs() -> Iterator[dict[str, Any]]:
    """Our processes of trainings: `konvoi node RUN`, and all that carry a training's id."""
    boot = time.time() - float(_text("/proc/uptime").split()[0])
    for process_id in _process_ids():
        if not _is_ours(process_id):
            continue
        run, job = _run_of(_words(process_id, "cmdline")), _job_of(_words(process_id, "environ"))
        if run or job:
            yield {"process_id": process_id, "run": run, "job": job, "started_at": boot + _started(process_id)}


def _is_ours(process_id: int) -> bool:
    try:
        return os.stat(f"/proc/{process_id}").st_uid == os.getuid()
    except OSError:
        return False  # ended meanwhile


def _process_ids() -> list[int]:
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def _words(process_id: int, file: str) -> list[str]:
    return _text(f"/proc/{process_id}/{file}").rstrip("\0").split("\0")


def _run_of(words: list[str]) -> str:
    """.../python -m konvoi node runs/demo -> runs/demo"""
    for place in range(len(words) - 2):
        if os.path.basename(words[place]) == "konvoi" and words[place + 1] == "node":
            return words[place + 2]
    return ""


def _job_of(variables: list[str]) -> str:
    return next((value[11:] for value in variables if value.startswith("KONVOI_JOB=")), "")


def _started(process_id: int) -> float:
    """Seconds after the machine did; see proc(5)."""
    values = _text(f"/proc/{process_id}/stat").rpartition(")")[2].split()
    return int(values[19]) / os.sysconf("SC_CLK_TCK") if values else 0.0


# What there is of disk, memory, GPUs


def _place(path: str) -> dict[str, Any]:
    """Room, and whether a file can be written: in the folder or, as long as there is none, where it would be made."""
    path = existing = os.path.abspath(os.path.expanduser(path))
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    found: dict[str, Any] = {"path": path, "problem": ""}
    try:
        room = os.statvfs(existing)
        found["device"], found["free_bytes"] = os.stat(existing).st_dev, room.f_bavail * room.f_frsize
        # Some file systems do not count files.
        found["free_files"] = room.f_favail if room.f_files else None
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"konvoi")
    except OSError as error:
        found["problem"] = f"{error.strerror}: {existing}"
    return found


def _is_mounted(target: str) -> bool:
    """By the table of mounts: asking a dead network mount itself would hang."""
    lines = _text("/proc/self/mountinfo").splitlines()
    # A blank is written \040.
    points = [re.sub(r"\\([0-7]{3})", _character, line.split()[4]) for line in lines]
    return os.path.abspath(os.path.expanduser(target)) in points


def _character(octal: re.Match[str]) -> str:
    return chr(int(octal.group(1), 8))


def _memory() -> dict[str, int]:
    """What a process may have: of the machine, or of the control group that we are in."""
    lines = (line.split() for line in _text("/proc/meminfo").splitlines())
    bytes_of = {words[0]: int(words[1]) * 1024 for words in lines}
    total, available = bytes_of["MemTotal:"], bytes_of["MemAvailable:"]
    for folder in _control_groups():
        limit = _number(f"{folder}/memory.max") or _number(f"{folder}/memory.limit_in_bytes")
        used = _number(f"{folder}/memory.current") or _number(f"{folder}/memory.usage_in_bytes")
        if limit and used:
            cached = re.search(r"^inactive_file (\d+)", _text(f"{folder}/memory.stat"), re.MULTILINE)
            total = min(total, limit)
            available = min(available, limit - used + (int(cached.group(1)) if cached else 0))
    return {"memory_total_bytes": total, "memory_available_bytes": available}


def _control_groups() -> Iterator[str]:
    """Folders of our control group and those around it, of version 2 or 1."""
    for line in _text("/proc/self/cgroup").splitlines():
        number, kinds, path = line.split(":", 2)
        if number == "0" or "memory" in kinds.split(","):
            root = "/sys/fs/cgroup" + ("" if number == "0" else "/memory")
            parts = path.strip("/").split("/")
            yield from ("/".join([root, *parts[:count]]) for count in range(len(parts) + 1))


def _limits() -> dict[str, int | None]:
    """None: unlimited, or unknown."""
    kinds = {
        "open_files": resource.RLIMIT_NOFILE,
        "processes": resource.RLIMIT_NPROC,
        "locked_memory_bytes": resource.RLIMIT_MEMLOCK,
    }
    soft = {name: resource.getrlimit(kind)[0] for name, kind in kinds.items()}
    limits = {name: None if value == resource.RLIM_INFINITY else value for name, value in soft.items()}
    try:
        room = os.statvfs("/dev/shm")
        return {**limits, "shared_memory_bytes": room.f_bavail * room.f_frsize}
    except OSError:
        return {**limits, "shared_memory_bytes": 0}


def _gpus() -> dict[str, Any]:
    """By nvidia-smi, which comes with the driver; where it fails, what it says."""
    if not shutil.which("nvidia-smi"):
        return {"gpus": []}
    try:
        said = subprocess.run(
            ["nvidia-smi", f"--query-gpu={GPU_KEYS}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=SLOW_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"gpus": [], "gpu_problem": str(error)}
    if said.returncode:
        # It complains on its standard output.
        problem = _last_line(said.stdout) or _last_line(said.stderr)
        return {"gpus": [], "gpu_problem": problem or f"nvidia-smi ends with exit code {said.returncode}"}
    return {"gpus": [_gpu(line.split(", ")) for line in said.stdout.splitlines() if line.strip()]}


def _gpu(values: list[str]) -> dict[str, Any]:
    """A value that the card does not tell reads [N/A]."""
    name, driver, total, used = values
    return {"name": name, "driver": driver, "memory_bytes": _mebibytes(total), "used_bytes": _mebibytes(used)}


def _mebibytes(text: str) -> int:
    return int(text) * BYTES_PER_MIB if text.isdigit() else 0


def _num_nvidia_cards() -> int:
    """As the bus sees them, with a driver or without."""
    folders = glob.glob("/sys/bus/pci/devices/*")
    return sum(
        _text(f"{folder}/vendor").strip() == VENDOR and _text(f"{folder}/class").startswith(CLASS) for folder in folders
    )


def _text(path: str) -> str:
    """Empty where it may not or no longer be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _number(path: str) -> int | None:
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else ""
