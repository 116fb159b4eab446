"""One byte a value: hand-computed, and the same bits whatever the chunks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from konvoi.sync import _int8
from konvoi.sync._int8 import BLOCK, mean, pack, unpack


def random_rows(num_rows: int, num_blocks: int) -> Tensor:
    return torch.randn(num_rows, num_blocks * BLOCK, generator=torch.Generator().manual_seed(1))


def test_by_hand() -> None:
    row = torch.zeros(1, 2 * BLOCK)
    row[0, :3] = torch.tensor([254.0, -2.9, 1.0])
    row[0, BLOCK] = -127.0
    packed = pack(row)
    # The scales are 2 and 1, and halves go to the even neighbour.
    assert packed.shape == (1, 2 * BLOCK + 8)
    assert packed[0, :4].tolist() == [127, -1, 0, 0]
    assert packed[0, BLOCK : BLOCK + 2].tolist() == [-127, 0]
    assert packed[0, -8:].view(torch.float32).tolist() == [2.0, 1.0]
    assert unpack(packed)[0, :3].tolist() == [254.0, -2.0, 0.0]
    assert row[0, :3].tolist() == pytest.approx([0.0, -0.9, 1.0])


def test_off_by_half_a_step_at_most() -> None:
    values = random_rows(2, 3)
    step = values.view(2, 3, -1).abs().amax(dim=2, keepdim=True) / 127
    off = (unpack(pack(values.clone())) - values).view(2, 3, -1).abs()
    assert (off <= step * 0.5001).all()
    assert off.max() > step.min() * 0.4


def test_what_rounding_cost_is_left() -> None:
    values = random_rows(2, 3)
    left = values.clone()
    packed = pack(left)
    assert left.any()
    assert torch.equal(left, values - unpack(packed))


def test_zeros_stay_zeros() -> None:
    assert unpack(pack(torch.zeros(1, BLOCK))).eq(0).all()


def test_the_mean_is_that_of_all_rows() -> None:
    packed = pack(random_rows(3, 5))
    assert torch.equal(mean(packed), unpack(packed).mean(dim=0))


def test_the_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for chunk in (1, 2, 5, 100):
        monkeypatch.setattr(_int8, "CHUNK", chunk)
        rows = random_rows(2, 5)
        packed = pack(rows)
        found.append((packed, rows, unpack(packed), mean(packed)))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
