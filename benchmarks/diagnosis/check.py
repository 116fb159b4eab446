"""Do the injected causes do what they claim? Prints what was asked for beside what was measured. Needs root.

python benchmarks/diagnosis/check.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from disk import slow_disk
from faults import cores_of
from hosts import Host, Network, end

PREFIX = "knvcheck"
HOG = ["sh", "-c", "while :; do :; done"]
# Takes what comes and answers its last byte.
SERVER = """
import socket
connection = socket.create_server(("", 5000)).accept()[0]
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while received := connection.recv(1 << 20):
    if received.endswith(b"!"):
        connection.sendall(b"!")
"""
# Sends so many bytes so often, each time until the answer; prints the median of the seconds.
CLIENT = """
import socket, statistics, sys, time
address, num_bytes, times = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
while True:
    try:
        connection = socket.create_connection((address, 5000))
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
seconds = []
for _ in range(times):
    begun = time.perf_counter()
    connection.sendall(bytes(num_bytes - 1) + b"!")
    connection.recv(1)
    seconds.append(time.perf_counter() - begun)
print(statistics.median(seconds))
"""
# Prints how long a fixed piece of work takes.
WORK = "import time; begun = time.perf_counter(); sum(range(20_000_000)); print(time.perf_counter() - begun)"


def main() -> None:
    for megabits in (10, 50, 100, 400):
        with Network(2, PREFIX, rate_megabits=megabits) as hosts:
            # Two seconds' worth.
            num_bytes = int(megabits * 1e6 / 8 * 2)
            print(f"{megabits} Mbit/s: {num_bytes * 8 / 1e6 / exchange(hosts, num_bytes):.1f} Mbit/s")
    for milliseconds in (2, 10, 50):
        with Network(3, PREFIX, delay_seconds=milliseconds / 1e3) as hosts:
            print(f"{milliseconds} ms one way: {1e3 * exchange(hosts, 1, times=20):.1f} ms there and back")
        with Network(3, PREFIX, delay_seconds=milliseconds / 1e3) as hosts:
            print(f"    and {100 * 8 / exchange(hosts, 100_000_000):.0f} Mbit/s")
    with Network(2, PREFIX, cores=cores_of(2)) as hosts:
        check_hogs(hosts[1], other=hosts[0])
    for megabytes_per_second in (3, 20):
        print(f"{megabytes_per_second} MB/s to disk: {disk_rate(megabytes_per_second):.1f} MB/s")


def exchange(hosts: list[Host], num_bytes: int, times: int = 1) -> float:
    """Seconds from the first byte sent to the answer."""
    server = hosts[0].start([sys.executable, "-c", SERVER])
    client = [sys.executable, "-c", CLIENT, hosts[0].address, str(num_bytes), str(times)]
    seconds = float(hosts[1].output(client))
    server.wait()
    return seconds


def check_hogs(host: Host, other: Host) -> None:
    for num_hogs in (0, 1, 3):
        hogs: list[subprocess.Popen[bytes]] = [host.start(HOG) for _ in range(num_hogs)]
        own, others = (float(each.output([sys.executable, "-c", WORK])) for each in (host, other))
        for hog in hogs:
            end(hog)
        print(f"{num_hogs} busy processes beside it: {own:.2f} s for what takes {others:.2f} s on another host")


def disk_rate(megabytes_per_second: float) -> float:
    """Of a file that is on the disk when it is closed, as checkpoints are."""
    with tempfile.TemporaryDirectory() as folder:
        mount = Path(folder) / "disk"
        mount.mkdir()
        with slow_disk(mount, megabytes_per_second, size_megabytes=128):
            begun = time.perf_counter()
            num_bytes = int(3e6 * megabytes_per_second)
            with (mount / "file").open("wb") as file:
                file.write(bytes(num_bytes))
                os.fsync(file.fileno())
            return num_bytes / 1e6 / (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
