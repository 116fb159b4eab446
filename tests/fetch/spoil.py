"""Damage to archives that can be made again."""

from __future__ import annotations

import random
import tarfile

ODD_BYTES = (0, 1, ord("7"), 0x80, 0xFF)
# As binary numbers: 2 ** 86 or so, 2 ** 62, and -1024, which would lead back to the file before.
MADE_UP_SIZES = (b"\x80" + b"0" * 11, b"\x80\0\0\0\x40" + bytes(7), b"\xff" * 10 + b"\xfc\0")


def spoilt_zip(content: bytes, seed: int) -> bytes:
    """With one to four bytes changed; more often among the last hundreds, where the directory is."""
    numbers, damaged = random.Random(seed), bytearray(content)
    for _ in range(numbers.randint(1, 4)):
        first = numbers.choice((0, max(0, len(damaged) - 300)))
        damaged[numbers.randrange(first, len(damaged))] = _odd(numbers)
    return bytes(damaged)


def spoilt_tar(content: bytes, seed: int) -> bytes:
    """With bytes changed in up to two blocks, whose checksums as headers are right again: else nobody reads on."""
    numbers, damaged = random.Random(seed), bytearray(content)
    num_blocks = len(content.rstrip(b"\0")) // tarfile.BLOCKSIZE + 1
    for start in (tarfile.BLOCKSIZE * numbers.randrange(num_blocks) for _ in range(numbers.randint(1, 2))):
        # Size and kind are what the rest depends on.
        for place in (numbers.randrange(124, 136), 156, numbers.randrange(tarfile.BLOCKSIZE)):
            if numbers.random() < 0.5:
                damaged[start + place] = numbers.choice(b"015LKxgSX") if place == 156 else _odd(numbers)
        if damaged[start + 257 : start + 262] == b"ustar":
            _check_in(damaged, start)
    return bytes(damaged)


def with_size(content: bytes, start: int, size: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A tar file whose header at `start` has another size (12 bytes) and kind."""
    damaged = bytearray(content)
    damaged[start + 124 : start + 136], damaged[start + 156 : start + 157] = size, kind
    _check_in(damaged, start)
    return bytes(damaged)


def _check_in(damaged: bytearray, start: int) -> None:
    header = bytes(damaged[start : start + tarfile.BLOCKSIZE])
    damaged[start + 148 : start + 156] = b"%06o\0 " % tarfile.calc_chksums(header)[0]  # type: ignore[attr-defined]


def _odd(numbers: random.Random) -> int:
    return numbers.choice((*ODD_BYTES, numbers.randrange(256)))
