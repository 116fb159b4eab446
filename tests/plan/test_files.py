"""Profiles, hosts and measured links as files; rates and times as people write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from konvoi.errors import UserError
from konvoi.plan import Profile, devices, rates, store
from konvoi.plan.hosts import read_hosts, read_measured

PROFILE = Profile(0.1, 0.2, 0.03, shapes=((3, 4), (5,)), target_tokens=100.5, cores=2, device="v100", recipe="demo")


@pytest.mark.parametrize(
    "text,expected",
    [("100mbit", 1e8), ("1gbit", 1e9), ("2.5 Gbit/s", 2.5e9), ("800kbit", 8e5), ("10Gbitps", 1e10)],
)
def test_rates_are_read(text: str, expected: float) -> None:
    assert rates.bits_per_second(text) == expected


@pytest.mark.parametrize("text", ["", "100", "mbit", "-1mbit", "0mbit", "1e3mbit", "1tbit", "fast"])
def test_what_is_no_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UserError) as caught:
        rates.bits_per_second(text)
    assert f'"{text}" is no rate' in caught.value.problem
    assert "100mbit" in caught.value.hint


def test_bits_and_bytes_are_not_guessed() -> None:
    with pytest.raises(UserError) as caught:
        rates.bits_per_second("100mb")
    assert "100mbit" in caught.value.hint and "800mbit" in caught.value.hint


@pytest.mark.parametrize("text,expected", [("0.2ms", 2e-4), ("50us", 5e-5), ("1 s", 1.0)])
def test_times_are_read(text: str, expected: float) -> None:
    assert rates.seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "2", "0ms", "2 min"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is no time"):
        rates.seconds(text)


def test_a_profile_comes_back_as_it_was_written(tmp_path: Path) -> None:
    store.write(PROFILE, tmp_path / "demo.profile.json")
    assert store.read(tmp_path / "demo.profile.json") == PROFILE


@pytest.mark.parametrize(
    "change,problem",
    [
        ({"format": "something else"}, "is no profile"),
        ({"version": 2}, "version 2, this Konvoi reads 1"),
        ({"forward_secs": 1}, "forward_secs: no such key"),
        ({"backward_seconds": "slow"}, "backward_seconds: "),
        ({"backward_seconds": -1.0}, "must not be negative"),
        ({"backward_seconds": float("nan")}, "must not be negative"),
        ({"forward_seconds": 0.0, "backward_seconds": 0.0, "optimiser_seconds": 0.0}, "takes no time"),
        ({"shapes": "all"}, "shapes: "),
    ],
)
def test_a_profile_is_read_strictly(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    file = tmp_path / "x.profile.json"
    store.write(PROFILE, file)
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(UserError) as caught:
        store.read(file)
    assert problem in caught.value.problem
    assert "konvoi profile" in caught.value.hint


@pytest.mark.parametrize("content", [None, "", "[1]", "no json"])
def test_a_file_that_is_missing_or_nothing_is_said_to_be(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "x.json").write_text(content)
    with pytest.raises(UserError):
        store.read(tmp_path / "x.json")


HOSTS = """
jitter = 0.05

[[hosts]]
name = "old"
count = 3
link = "100mbit"
latency = "1ms"
speed = 0.5

[[hosts]]
link = "1gbit"
workers = 2
"""


def test_hosts_that_differ_are_read(tmp_path: Path) -> None:
    (tmp_path / "hosts.toml").write_text(HOSTS)
    setup = read_hosts(tmp_path / "hosts.toml")
    assert [host.workers for host in setup.hosts] == [1, 1, 1, 2]
    assert [host.link.bytes_per_second for host in setup.hosts] == [12.5e6] * 3 + [125e6]
    assert (setup.hosts[0].link.round_trip_seconds, setup.slowest, setup.jitter) == (1e-3, 0.5, 0.05)


@pytest.mark.parametrize(
    "text,problem",
    [
        ("", "hosts"),
        ("hosts = []", "must be one at least"),
        ("[[hosts]]\nlink = '100mb'", "bits or bytes?"),
        ("[[hosts]]\nlinks = '1gbit'", "no such key"),
        ("[[hosts]]\nlink = '1gbit'\nspeed = 0", "hosts.0.speed"),
        ("[[hosts", "TOML"),
    ],
)
def test_a_wrong_hosts_file_is_explained(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "hosts.toml").write_text(text)
    with pytest.raises(UserError) as caught:
        read_hosts(tmp_path / "hosts.toml")
    assert problem in caught.value.problem


def _link(source: str, target: str, megabytes: float | None, milliseconds: float | None = 0.4) -> dict[str, Any]:
    latency = None if milliseconds is None else milliseconds / 1e3
    return {
        "source": source,
        "target": target,
        "bytes_per_second": megabytes and megabytes * 1e6,
        "latency_seconds": latency,
    }


def test_measured_links_make_a_ring_in_the_order_of_the_hosts(tmp_path: Path) -> None:
    names, rate = ("a", "b", "c"), {"ab": 10, "bc": 20, "ca": 30, "ba": 40, "cb": 50, "ac": 60}
    rows = [_link(s, t, rate[s + t]) for s in names for t in names if s != t]
    (tmp_path / "cluster.check.json").write_text(json.dumps({"links": rows, "all_reduce": None}))
    measured = read_measured(tmp_path / "cluster.check.json")
    three, two, one = (measured.setup(count, 1) for count in (3, 2, 1))
    # a -> b -> c -> a
    assert [host.link.bytes_per_second for host in three.hosts] == [10e6, 20e6, 30e6]
    # a -> b -> a
    assert [host.link.bytes_per_second for host in two.hosts] == [10e6, 40e6]
    assert two.hosts[0].link.round_trip_seconds == pytest.approx(4e-4)
    assert one.num_workers == 1
    with pytest.raises(UserError, match="knows 3 hosts, not 4"):
        measured.setup(4, 1)


@pytest.mark.parametrize(
    "content,problem",
    [
        ({"links": []}, "no link was measured"),
        ({"links": [_link("a", "b", None, None)]}, "no link was measured"),
        ({"findings": []}, "is not what konvoi cluster check writes"),
        ([], "is not what konvoi cluster check writes"),
    ],
)
def test_what_no_check_has_written_is_refused(tmp_path: Path, content: Any, problem: str) -> None:
    (tmp_path / "x.check.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=problem):
        read_measured(tmp_path / "x.check.json")


def test_a_link_that_was_not_measured_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.check.json").write_text(json.dumps({"links": [_link("a", "b", 10), _link("b", "a", None)]}))
    with pytest.raises(UserError, match="from b to a"):
        read_measured(tmp_path / "x.check.json").setup(2, 1)


def test_every_device_says_where_its_speed_is_from() -> None:
    assert len(devices.DEVICES) > 5
    for device in devices.DEVICES.values():
        assert device.flops_per_second > 0
        assert device.source.startswith("estimate") != device.is_measured


def test_a_v100_takes_a_third_of_a_second_for_the_reference_step() -> None:
    # 7,802 target tokens of 367.4 MFLOP
    profile = devices.profile_of(devices.find("v100"), 7802 * 367.4e6)
    assert profile.step_seconds == pytest.approx(0.33, rel=0.01)
    assert profile.backward_seconds == pytest.approx(2 * profile.forward_seconds)
