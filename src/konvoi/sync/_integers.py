"""Rows of fp32 in a byte, half a byte or a fourth of one a value, and back.

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


@dataclass(frozen=True)
class Integers:
    """How they are packed."""

    largest: float
    """Of -largest to largest."""
    per_byte: int
    is_odd: bool = False
    """Odd halves (-1.5, -0.5, 0.5, 1.5) instead of integers: where there are but four, none is spent on zero."""

    @property
    def bytes_per_value(self) -> float:
        return 1 / self.per_byte + 4 / BLOCK

    @property
    def base(self) -> int:
        """Of those that share a byte, each counts so many times the one before: rounding parts them again."""
        return 1 << 8 // self.per_byte

    def pack(self, rows: Tensor) -> Tensor:
        """What rounding cost is left in rows."""
        num_bytes = round(rows.shape[1] * self.bytes_per_value)
        packed = torch.empty(len(rows), num_bytes, dtype=torch.int8, device=rows.device)
        integers, scales = self._parts(packed)
        for row in range(len(rows)):
            for chunk in _chunks(integers):
                values, scale = rows[row].view(-1, BLOCK)[chunk], scales[row, chunk]
                self._measure(values, scale)
                # A block of zeros has no scale, and any will do.
                rounded = self._nearest(values.div(scale.clamp(min=1e-30)))
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

    def _measure(self, values: Tensor, scale: Tensor) -> None:
        """Of each block: so that its largest value is met; with four numbers, that most values are met well."""
        if self.is_odd:
            # For what is spread normally this leaves 12 % of the mean square, the best that four equal steps can do.
            torch.linalg.vector_norm(values, dim=1, keepdim=True, out=scale).div_(BLOCK**0.5)
        else:
            torch.amax(values.abs(), dim=1, keepdim=True, out=scale).div_(self.largest)

    def _nearest(self, values: Tensor) -> Tensor:
        """In place."""
        if self.is_odd:
            return values.floor_().add_(0.5).clamp_(-self.largest, self.largest)
        return values.round_()

    def _bytes(self, rounded: Tensor) -> Tensor:
        """Of blocks of integers, which still are floats."""
        total, *others = rounded.chunk(self.per_byte, dim=-1)
        for number, part in enumerate(others, start=1):
            total = torch.add(total, part, alpha=self.base**number)
        return total - 0.5 if self.is_odd else total

    def _read(self, integers: Tensor, values: Tensor) -> Tensor:
        """Into values. Floats first: integers times floats take four times as long on a processor."""
        total, *others = values.chunk(self.per_byte, dim=-1)
        total.copy_(integers)
        if self.is_odd:
            total.add_(0.5)
        for number, part in reversed(list(enumerate(others, start=1))):
            self._nearest(torch.div(total, self.base**number, out=part))
            total.sub_(part, alpha=self.base**number)
        return values

    def _parts(self, packed: Tensor) -> tuple[Tensor, Tensor]:
        """Views: (rows, blocks, bytes of a block) and (rows, blocks, 1)."""
        bytes_of_block = BLOCK // self.per_byte
        num_blocks = packed.shape[1] // (bytes_of_block + 4)
        integers, scales = packed[:, : num_blocks * bytes_of_block], packed[:, num_blocks * bytes_of_block :]
        return integers.view(len(packed), num_blocks, bytes_of_block), scales.view(torch.float32).unsqueeze(2)


INT8, INT4, INT2 = Integers(127, 1), Integers(7, 2), Integers(1.5, 4, is_odd=True)


def _chunks(integers: Tensor) -> Iterator[slice]:
    """Blocks of a row."""
    num_blocks = integers.shape[1]
    size = CHUNK if integers.device.type == "cpu" else num_blocks
    return (slice(begin, begin + size) for begin in range(0, num_blocks, max(1, size)))
