"""A switch that keeps every frame for a while: python delay.py SECONDS PORT PORT...

Reads whole frames from the ports (packet sockets on interfaces of this network namespace), holds each for the time
given and sends it to the port behind which its address was seen, or to all others. With each frame comes and goes the
header in which the kernel says what it left to the device (checksums, cutting to size): hosts may hand over 64 KB at
once, and this program has little to do per byte.
"""

from __future__ import annotations

import collections
import contextlib
import select
import socket
import struct
import sys
import time

ALL_PROTOCOLS = 3
# Of <linux/if_packet.h>; the socket module does not name them.
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
SO_RCVBUFFORCE = 33
VNET_HEADER_BYTES = 10
FRAME_BYTES = 1 << 17
BUFFER_BYTES = 32 << 20
MULTICAST_BIT = 1
# Then what is due is sent first.
MOST_FRAMES_AT_ONCE = 64


def main() -> None:
    delay_seconds = float(sys.argv[1])
    ports = [open_port(name) for name in sys.argv[2:]]
    print("ready", flush=True)
    forward(ports, delay_seconds)


def open_port(name: str) -> socket.socket:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    port.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    port.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    # More than a window of TCP, so that the switch itself loses nothing.
    port.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
    port.bind((name, ALL_PROTOCOLS))
    port.setblocking(False)
    return port


def forward(ports: list[socket.socket], delay_seconds: float) -> None:
    """For ever. The delay is the same for all, so the first frame in is the first one out."""
    held: collections.deque[tuple[float, socket.socket, bytes]] = collections.deque()
    port_of: dict[bytes, socket.socket] = {}
    while True:
        until_next_seconds = max(0.0, held[0][0] - time.monotonic()) if held else None
        for port in select.select(ports, [], [], until_next_seconds)[0]:
            for frame in waiting_frames(port):
                held.append((time.monotonic() + delay_seconds, port, frame))
        while held and held[0][0] <= time.monotonic():
            _, source, frame = held.popleft()
            send_on(frame, source, ports, port_of)


def waiting_frames(port: socket.socket) -> list[bytes]:
    frames: list[bytes] = []
    with contextlib.suppress(BlockingIOError):
        while len(frames) < MOST_FRAMES_AT_ONCE:
            frames.append(port.recv(FRAME_BYTES))
    return frames


def send_on(
    frame: bytes, source: socket.socket, ports: list[socket.socket], port_of: dict[bytes, socket.socket]
) -> None:
    to, sender = struct.unpack_from("6s6s", frame, VNET_HEADER_BYTES)
    port_of[sender] = source
    known = port_of.get(to) if not to[0] & MULTICAST_BIT else None
    for port in [known] if known else ports:
        if port is not source:
            # As any switch does when a queue is full: TCP sends it again.
            with contextlib.suppress(BlockingIOError):
                port.send(frame)


if __name__ == "__main__":
    main()
