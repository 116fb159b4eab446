"""The situation that people met: more machines on a slow network are slower than one, and nobody sees why."""

from __future__ import annotations

import json
from pathlib import Path

from tests.hosts import Hosts


def test_a_slow_link_between_two_hosts_is_found_and_named(tmp_path: Path, tiny_recipe: Path) -> None:
    # 60,000 parameters are 0.24 MB of gradients; at 2 Mbit/s they take a second, a step's arithmetic some 10 ms.
    with Hosts(2, tmp_path) as hosts:
        for host in hosts:
            host.limit(2)
        run = hosts.laptop.home / "slow"
        hosts.konvoi("train", tiny_recipe, "--run", run, "--cluster", hosts.file, "--set", 'train.duration="12 steps"')
        verdict = json.loads(hosts.konvoi("diagnose", run, "--json").stdout)
    assert (verdict["verdict"], verdict["kind"]) == ("network", "bandwidth")
