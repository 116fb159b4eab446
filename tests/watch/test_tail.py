"""Only what is new is read."""

from __future__ import annotations

import json
import os

from konvoi.errors import UserError
from konvoi.watch.tail import Replaced, Tail, parsed


def test_each_line_comes_once(tmp_path):
    file = tmp_path / "file"
    tail = Tail(file)
    assert list(tail.lines()) == []
    file.write_text("1\n2\n")
    assert list(tail.lines()) == [b"1\n", b"2\n"]
    assert list(tail.lines()) == []
    with file.open("a") as more:
        more.write("3\n")
    assert list(tail.lines()) == [b"3\n"]


def test_half_a_line_comes_when_it_is_whole(tmp_path):
    file = tmp_path / "file"
    file.write_text("1\n2")
    tail = Tail(file)
    assert list(tail.lines()) == [b"1\n"]
    assert list(tail.lines()) == []
    file.write_text("1\n234\n5\n")
    assert list(tail.lines()) == [b"234\n", b"5\n"]


def test_a_file_that_became_shorter_is_read_from_its_start(tmp_path):
    file = tmp_path / "file"
    file.write_text("1\n2\n3\n")
    tail = Tail(file)
    assert len(list(tail.lines())) == 3
    file.write_text("4\n")
    assert list(tail.lines()) == [b"4\n"]


def test_the_last_lines_of_a_long_file(tmp_path):
    file = tmp_path / "log.txt"
    assert Tail(file).last_lines(2) == []
    file.write_text("".join(f"{number}\n" for number in range(10_000)))
    assert Tail(file).last_lines(2) == ["9998", "9999"]


def test_a_replaced_file_is_read_once_for_each_change(tmp_path):
    file, times_read = tmp_path / "summary.json", []

    def read():
        times_read.append(1)
        return json.loads(file.read_text())

    replaced = Replaced(file, read)
    assert replaced.value() == {}
    file.write_text('{"steps": 1}')
    assert replaced.value() == replaced.value() == {"steps": 1}
    assert len(times_read) == 1
    file.write_text('{"steps": 20}')
    assert replaced.value() == {"steps": 20}


def test_what_cannot_be_read_stays_as_it_was(tmp_path):
    file, is_damaged = tmp_path / "summary.json", []

    def read():
        if is_damaged:
            raise UserError("cannot be read")
        return {"steps": 1}

    file.write_text("{}")
    replaced = Replaced(file, read)
    assert replaced.value() == {"steps": 1}
    is_damaged.append(True)
    os.utime(file, (1, 1))
    assert replaced.value() == {"steps": 1}


def test_a_line_that_is_no_event_is_empty():
    assert parsed(b'{"kind": "step"}\n') == {"kind": "step"}
    assert parsed(b'{"kind": "st\n') == parsed(b"[1]\n") == {}
