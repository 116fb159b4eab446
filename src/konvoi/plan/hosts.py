"""Hosts that differ: from a small TOML, or from what `konvoi cluster check` measured."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PositiveFloat, PositiveInt, ValidationError

from konvoi.config.section import Section
from konvoi.errors import UserError
from konvoi.plan import rates
from konvoi.plan.setup import Host, Link, Setup

# A rate that was measured over a connection has paid for its headers already.
MEASURED_OVERHEAD = 1.02


def _parsed(read: Any) -> BeforeValidator:
    def parse(text: Any) -> float:
        try:
            return float(read(str(text)))
        except UserError as error:
            raise ValueError(f"{error.problem}: {error.hint}") from None

    return BeforeValidator(parse)


class HostTable(Section):
    """[[hosts]]"""

    link: Annotated[float, _parsed(rates.bits_per_second)]
    """To the next host, as in "1gbit"."""
    latency: Annotated[float, _parsed(rates.seconds)] = 2e-4
    """There and back, as ping shows it."""
    count: PositiveInt = 1
    """So many hosts of this kind, one after another."""
    workers: PositiveInt = 1
    speed: PositiveFloat = 1.0
    """Of each worker, against the device."""
    name: str = ""

    def hosts(self) -> list[Host]:
        return [Host(Link.of_bits(self.link, self.latency), self.workers, self.speed, self.name)] * self.count


def _not_empty(tables: tuple[HostTable, ...]) -> tuple[HostTable, ...]:
    if not tables:
        raise ValueError("must be one at least")
    return tables


class HostsFile(Section):
    hosts: Annotated[tuple[HostTable, ...], AfterValidator(_not_empty)]
    jitter: float = Field(0.0, ge=0, lt=1)
    """How much a worker's step varies by itself, as a share."""


def read_hosts(file: Path) -> Setup:
    try:
        found = HostsFile.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{file}: cannot be read as TOML: {error}", hint="docs/plan.md shows one") from None
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, p['loc']))}: {_words(p)}" for p in error.errors()]
        raise UserError(f"{file}:\n" + "\n".join(lines), hint="docs/plan.md shows one") from None
    return Setup(tuple(host for table in found.hosts for host in table.hosts()), found.jitter)


def _words(problem: Any) -> str:
    if problem["type"] == "extra_forbidden":
        return f"no such key (allowed: {', '.join(HostTable.model_fields)})"
    return str(problem["msg"]).removeprefix("Value error, ")


@dataclass(frozen=True)
class MeasuredLinks:
    """Between every two hosts of a cluster, in each direction."""

    hosts: tuple[str, ...]
    links: dict[tuple[str, str], Link]
    origin: str

    def setup(self, num_hosts: int, workers: int) -> Setup:
        """The first hosts of the cluster, in the ring that their ranks make."""
        if num_hosts > len(self.hosts):
            known = ", ".join(self.hosts)
            raise UserError(f"{self.origin} knows {len(self.hosts)} hosts, not {num_hosts}", hint=f"known: {known}")
        chosen = self.hosts[:num_hosts]
        hosts = [Host(self._link(a, b), workers, name=a) for a, b in zip(chosen, _next(chosen), strict=True)]
        return Setup(tuple(hosts), wire_overhead=MEASURED_OVERHEAD)

    def _link(self, source: str, target: str) -> Link:
        if source == target:
            return Link(float("inf"))
        if (source, target) not in self.links:
            raise UserError(
                f"{self.origin}: nothing was measured from {source} to {target}",
                hint="konvoi cluster check measures it",
            )
        return self.links[source, target]


def _next(names: Sequence[str]) -> list[str]:
    return [*names[1:], *names[:1]]


def read_measured(file: Path) -> MeasuredLinks:
    """What `konvoi cluster check` left beside the cluster file."""
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))["links"]
        measured = [row for row in rows if row["bytes_per_second"] and row["latency_seconds"] is not None]
        links = {
            (row["source"], row["target"]): Link(float(row["bytes_per_second"]), float(row["latency_seconds"]))
            for row in measured
        }
        hosts = tuple(dict.fromkeys(str(row["source"]) for row in rows))
    except FileNotFoundError:
        raise UserError(f"there is no file {file}", hint="konvoi cluster check writes it") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{file} is not what konvoi cluster check writes: {error!r}", hint="run konvoi cluster check again"
        ) from None
    if not links:
        raise UserError(f"{file}: no link was measured", hint="run konvoi cluster check, without --quick")
    return MeasuredLinks(hosts, links, str(file))
