"""Rows of fp32 in a byte or half a byte a value, and back.

A packed row is its integers, a whole number of blocks, and then the bytes of the blocks' scales. Everything goes chunk
by chunk: a processor keeps a chunk and what is made of it in its cache, where going through all values again and again
would wait for memory. A GPU takes all at once, since each of its steps has to be launched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# One scale for so many values: 4 bytes in 1,024 are 0.4 %.
BLOCK = 1024
# Blocks: 1 MiB of fp32.
CHUNK = 256
# Of two integers that share a byte, the second counts so much; the first is below half of it, so rounding parts them.
SECOND = 16


@dataclass(frozen=True)
class Integers:
    """How they are packed."""

    largest: int
    """Of -largest to largest."""
    per_byte: int

    @property
    def bytes_per_value(self) -> float:
        return 1 / self.per_byte + 4 / BLOCK

    def pack(self, rows: Tensor) -> Tensor:
        """What rounding cost is left in rows."""
        num_bytes = round(rows.shape[1] * self.bytes_per_value)
        packed = torch.empty(len(rows), num_bytes, dtype=torch.int8, device=rows.device)
        integers, scales = self._parts(packed)
        for row in range(len(rows)):
            for chunk in _chunks(integers):
                values, scale = rows[row].view(-1, BLOCK)[chunk], scales[row, chunk]
                torch.amax(values.abs(), dim=1, keepdim=True, out=scale).div_(self.largest)
                # A block of zeros has no scale, and any will do.
                rounded = values.div(scale.clamp(min=1e-30)).round_()
                integers[row, chunk] = self._bytes(rounded)
                values.sub_(rounded.mul_(scale))
        return packed

    def unpack(self, packed: Tensor) -> Tensor:
        integers, scales = self._parts(packed)
        values = torch.empty(*integers.shape[:2], BLOCK, device=packed.device)
        for row in range(len(packed)):
            for chunk in _chunks(integers):
                self._read(integers[row, chunk], values[row, chunk]).mul_(scales[row, chunk])
        return values.view(len(packed), -1)

    def mean(self, packed: Tensor) -> Tensor:
        """Of all rows."""
        integers, scales = self._parts(packed)
        values = torch.empty(integers.shape[1], BLOCK, device=packed.device)
        for chunk in _chunks(integers):
            bytes_ = integers[:, chunk]
            each = self._read(bytes_, torch.empty(*bytes_.shape[:2], BLOCK, device=packed.device))
            torch.mean(each.mul_(scales[:, chunk]), dim=0, out=values[chunk])
        return values.view(-1)

    def _bytes(self, rounded: Tensor) -> Tensor:
        """Of blocks of integers, which still are floats."""
        if self.per_byte == 1:
            return rounded
        first, second = rounded.chunk(2, dim=-1)
        return torch.add(first, second, alpha=SECOND)

    def _read(self, integers: Tensor, values: Tensor) -> Tensor:
        """Into values. Floats first: integers times floats take four times as long on a processor."""
        if self.per_byte == 1:
            return values.copy_(integers)
        first, second = values.chunk(2, dim=-1)
        first.copy_(integers)
        torch.div(first, SECOND, out=second).round_()
        first.sub_(second, alpha=SECOND)
        return values

    def _parts(self, packed: Tensor) -> tuple[Tensor, Tensor]:
        """Views: (rows, blocks, bytes of a block) and (rows, blocks, 1)."""
        bytes_of_block = BLOCK // self.per_byte
        num_blocks = packed.shape[1] // (bytes_of_block + 4)
        integers, scales = packed[:, : num_blocks * bytes_of_block], packed[:, num_blocks * bytes_of_block :]
        return integers.view(len(packed), num_blocks, bytes_of_block), scales.view(torch.float32).unsqueeze(2)


INT8, INT4 = Integers(127, 1), Integers(7, 2)


def _chunks(integers: Tensor) -> Iterator[slice]:
    """Blocks of a row."""
    num_blocks = integers.shape[1]
    size = CHUNK if integers.device.type == "cpu" else num_blocks
    return (slice(begin, begin + size) for begin in range(0, num_blocks, max(1, size)))
