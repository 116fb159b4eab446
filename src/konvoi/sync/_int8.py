"""Rows of fp32 in one byte a value, and back.

A packed row is its integers of -127 to 127, a whole number of blocks, and then the bytes of the blocks' scales.
Everything goes chunk by chunk: a processor keeps a chunk and what is made of it in its cache, where going through all
values again and again would wait for memory. A GPU takes all at once, since each of its steps has to be launched.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

# One scale for so many values: 4 bytes in 1,024 are 0.4 %.
BLOCK = 1024
BYTES_PER_VALUE = 1 + 4 / BLOCK
# Blocks: 1 MiB of fp32.
CHUNK = 256


def pack(rows: Tensor) -> Tensor:
    """What rounding cost is left in rows."""
    packed = torch.empty(len(rows), round(rows.shape[1] * BYTES_PER_VALUE), dtype=torch.int8, device=rows.device)
    integers, scales = _parts(packed)
    for row in range(len(rows)):
        for chunk in _chunks(integers):
            values, scale = rows[row].view(-1, BLOCK)[chunk], scales[row, chunk]
            torch.amax(values.abs(), dim=1, keepdim=True, out=scale).div_(127)
            # A block of zeros has no scale, and any will do.
            rounded = values.div(scale.clamp(min=1e-30)).round_()
            integers[row, chunk] = rounded
            values.sub_(rounded.mul_(scale))
    return packed


def unpack(packed: Tensor) -> Tensor:
    integers, scales = _parts(packed)
    values = torch.empty(integers.shape, device=packed.device)
    for row in range(len(packed)):
        for chunk in _chunks(integers):
            # Floats first: integers times floats take four times as long on a processor.
            values[row, chunk].copy_(integers[row, chunk]).mul_(scales[row, chunk])
    return values.view(len(packed), -1)


def mean(packed: Tensor) -> Tensor:
    """Of all rows."""
    integers, scales = _parts(packed)
    values = torch.empty(integers.shape[1:], device=packed.device)
    for chunk in _chunks(integers):
        torch.mean(integers[:, chunk].float().mul_(scales[:, chunk]), dim=0, out=values[chunk])
    return values.view(-1)


def _parts(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Views: (rows, blocks, values of a block) and (rows, blocks, 1)."""
    num_blocks = packed.shape[1] // (BLOCK + 4)
    integers, scales = packed[:, : num_blocks * BLOCK], packed[:, num_blocks * BLOCK :]
    return integers.view(len(packed), num_blocks, BLOCK), scales.view(torch.float32).unsqueeze(2)


def _chunks(integers: Tensor) -> Iterator[slice]:
    """Blocks of a row."""
    num_blocks = integers.shape[1]
    size = CHUNK if integers.device.type == "cpu" else num_blocks
    return (slice(begin, begin + size) for begin in range(0, num_blocks, max(1, size)))
