"""A byte, half a byte or a fourth of one a value: hand-computed, and the same bits whatever the chunks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from konvoi.sync import _integers
from konvoi.sync._integers import BLOCK, INT2, INT4, INT8, Integers

each = pytest.mark.parametrize("integers", [INT8, INT4, INT2])


def random_rows(num_rows: int, num_blocks: int) -> Tensor:
    return torch.randn(num_rows, num_blocks * BLOCK, generator=torch.Generator().manual_seed(1))


def test_by_hand() -> None:
    row = torch.zeros(1, 2 * BLOCK)
    row[0, :3] = torch.tensor([254.0, -2.9, 1.0])
    row[0, BLOCK] = -127.0
    packed = INT8.pack(row)
    # The scales are 2 and 1, and halves go to the even neighbour.
    assert packed.shape == (1, 2 * BLOCK + 8)
    assert packed[0, :4].tolist() == [127, -1, 0, 0]
    assert packed[0, BLOCK : BLOCK + 2].tolist() == [-127, 0]
    assert packed[0, -8:].view(torch.float32).tolist() == [2.0, 1.0]
    assert INT8.unpack(packed)[0, :3].tolist() == [254.0, -2.0, 0.0]
    assert row[0, :3].tolist() == pytest.approx([0.0, -0.9, 1.0])


def test_two_in_a_byte_by_hand() -> None:
    half = BLOCK // 2
    row = torch.zeros(1, BLOCK)
    row[0, :3], row[0, half : half + 3] = torch.tensor([14.0, -14.0, 5.1]), torch.tensor([-14.0, 2.0, 0.0])
    packed = INT4.pack(row)
    # The scale is 2: 7 and -7, -7 and 1, 3 and 0; the second of each pair counts 16.
    assert packed.shape == (1, half + 4)
    assert packed[0, :4].tolist() == [7 - 112, -7 + 16, 3, 0]
    unpacked = INT4.unpack(packed)[0]
    assert unpacked[:3].tolist() == [14.0, -14.0, 6.0]
    assert unpacked[half : half + 3].tolist() == [-14.0, 2.0, 0.0]
    assert row[0, :3].tolist() == pytest.approx([0.0, 0.0, -0.9])


def test_every_two_integers_of_a_byte_are_told_apart() -> None:
    numbers = torch.arange(-7.0, 8.0)
    row = torch.zeros(1, BLOCK)
    row[0, :225], row[0, BLOCK // 2 : BLOCK // 2 + 225] = numbers.repeat(15), numbers.repeat_interleave(15)
    assert torch.equal(INT4.unpack(INT4.pack(row.clone())), row)


def test_four_in_a_byte_by_hand() -> None:
    fourth = BLOCK // 4
    row = torch.zeros(1, BLOCK)
    # The squares are 64 + 16 + 16 + 4 + 4 x 231 = 1,024: their mean, and so the scale, is 1.
    row[0, ::fourth] = torch.tensor([8.0, -4.0, 4.0, 2.0])
    row[0, 1::fourth] = 231**0.5
    packed = INT2.pack(row)
    assert packed.shape == (1, fourth + 4)
    assert packed[0, -4:].view(torch.float32).item() == pytest.approx(1.0)
    # 1.5, -1.5, 1.5, 1.5, which count 1, 4, 16 and 64; four times 1.5; what is nothing becomes 0.5.
    assert packed[0, :3].tolist() == [1.5 - 6 + 24 + 96 - 0.5, 127, 0.5 * 85 - 0.5]
    unpacked = INT2.unpack(packed)[0]
    assert unpacked[::fourth].tolist() == pytest.approx([1.5, -1.5, 1.5, 1.5])
    assert unpacked[2::fourth].tolist() == pytest.approx([0.5] * 4)
    assert row[0, ::fourth].tolist() == pytest.approx([6.5, -2.5, 2.5, 0.5])


def test_every_four_of_a_byte_are_told_apart() -> None:
    numbers = torch.tensor([-1.5, -0.5, 0.5, 1.5])
    # All 256, whose mean square is 1.25.
    row = torch.cartesian_prod(*[numbers] * 4).T.reshape(1, BLOCK) / 1.25**0.5
    unpacked = INT2.unpack(INT2.pack(row.clone()))
    assert torch.allclose(unpacked, row * 1.25**0.5)


def test_of_what_is_spread_normally_four_numbers_leave_an_eighth() -> None:
    values = random_rows(1, 20)
    left = values.clone()
    INT2.pack(left)
    # 0.1188 of the mean square is the least that a uniform quantiser of four levels can leave (Max, 1960).
    assert left.square().mean() / values.square().mean() == pytest.approx(0.1188, abs=0.004)


@pytest.mark.parametrize("integers", [INT8, INT4])
def test_off_by_half_a_step_at_most(integers: Integers) -> None:
    values = random_rows(2, 3)
    step = values.view(2, 3, -1).abs().amax(dim=2, keepdim=True) / integers.largest
    off = (integers.unpack(integers.pack(values.clone())) - values).view(2, 3, -1).abs()
    assert (off <= step * 0.5001).all()
    assert off.max() > step.min() * 0.4


@each
def test_what_rounding_cost_is_left(integers: Integers) -> None:
    values = random_rows(2, 3)
    left = values.clone()
    packed = integers.pack(left)
    assert left.any()
    assert torch.equal(left, values - integers.unpack(packed))


@each
def test_as_many_bytes_as_said(integers: Integers) -> None:
    assert integers.pack(random_rows(1, 3)).numel() == 3 * BLOCK * integers.bytes_per_value


@each
def test_zeros_stay_zeros(integers: Integers) -> None:
    assert integers.unpack(integers.pack(torch.zeros(1, BLOCK))).eq(0).all()


@each
def test_the_mean_is_that_of_all_rows(integers: Integers) -> None:
    packed = integers.pack(random_rows(3, 5))
    assert torch.equal(integers.mean(packed), integers.unpack(packed).mean(dim=0))


@each
def test_the_chunks_change_nothing(integers: Integers, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for chunk in (1, 2, 5, 100):
        monkeypatch.setattr(_integers, "CHUNK", chunk)
        rows = random_rows(2, 5)
        packed = integers.pack(rows)
        found.append((packed, rows, integers.unpack(packed), integers.mean(packed)))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
