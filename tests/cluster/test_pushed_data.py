"""Data that the laptop has and the hosts do not: setup brings it, a training takes it."""

from __future__ import annotations

from pathlib import Path

from tests.hosts import Hosts

from konvoi.run_directory import RunDirectory


def test_hosts_without_the_corpus_train_on_what_was_brought(
    two_hosts: Hosts, tiny_recipe: Path, corpus: tuple[Path, Path]
) -> None:
    hosts, run = two_hosts, two_hosts.laptop.home / "brought"
    hosts.konvoi("cluster", "setup", "--recipe", tiny_recipe, "--cluster", hosts.file)
    for host in hosts:
        host.run(["mount", "-t", "tmpfs", "nothing", corpus[0].parent])
    for host in hosts:
        assert host.run(["ls", corpus[0].parent]) == ""
    hosts.konvoi("train", tiny_recipe, "--run", run, "--cluster", hosts.file, "--set", 'train.duration="4 steps"')
    assert RunDirectory(run).summary()["steps"] == 4
