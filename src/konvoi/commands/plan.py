"""konvoi plan: what a recipe would take on machines that nobody has paid for yet."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import typer

from konvoi import registry
from konvoi.analysis.wording import bit_rate
from konvoi.commands.output import aligned, print_json, write_output
from konvoi.commands.plan_recipe import (
    AUTO,
    Demand,
    alternatives,
    demand_of,
    fitting,
    most_exact_first,
    profile_of,
    ways_of,
    with_dtype,
)
from konvoi.config.recipe import Recipe, read, toml_value
from konvoi.errors import UserError
from konvoi.plan import Link, Profile, Setup, rates
from konvoi.plan.advice import advise
from konvoi.plan.devices import DEVICES
from konvoi.plan.hosts import read_hosts, read_measured
from konvoi.plan.outlook import ALONE, Outlook, Planner
from konvoi.plan.plot import svg

MAX_NODES = 100_000
SYNC_NAME = "sync.name"
WIDTH = 80


NODES, GPUS, NETWORK, LATENCY, SYNC = "1,2,4,8", "1", "1gbit", "0.2ms", "all"
"""Unless given; what is given in vain is refused."""


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    recipe: str
    overrides: list[str]
    nodes: str | None = None
    gpus: str | None = None
    device: str = "v100"
    network: str | None = None
    latency: str | None = None
    sync: str | None = None
    price: float | None = None
    dtype: str | None = None
    jitter: float | None = None
    hosts: Path | None = None
    plot: Path | None = None
    as_json: bool = False


def plan(request: Request) -> None:
    for_sync = [override for override in request.overrides if override.strip().startswith("sync.")]
    recipe = read(request.recipe, [override for override in request.overrides if override not in for_sync])
    # All of it is checked before the data is looked at, which may take seconds.
    _refuse_what_is_in_vain(request)
    setups = list(_setups(request))
    chosen = [override for override in for_sync if override.partition("=")[0].strip() == SYNC_NAME]
    for_sync = [override for override in for_sync if override not in chosen]
    names = _sync_names(_asked_sync(request.sync, chosen))
    if request.dtype and "ddp" not in names:
        raise UserError(f"--dtype {request.dtype} is for the rows of ddp, and there are none", hint="add ddp to --sync")
    demand = demand_of(recipe)
    profile = profile_of(request.device, request.recipe, demand)
    asked = with_dtype(ways_of(recipe, names, for_sync, demand.shapes), request.dtype)
    ways = fitting(recipe, asked)
    if not ways:
        raise UserError(
            f"{recipe.needs_equal_workers} does not go with {', '.join(asked)}: workers would part between exchanges",
            hint=f"plan without {recipe.needs_equal_workers}, or with another --sync",
        )
    planner = Planner(profile, demand.job, request.price)
    rows = [(row, setup) for network, setup in setups for row in planner.rows([(network, setup)], ways)]
    others = fitting(recipe, with_dtype(alternatives(recipe, demand.shapes), request.dtype))
    device = profile.device if profile.device in DEVICES else "worker"
    advice = advise(planner, rows, most_exact_first({**others, **ways}), device)
    outlooks = [row for row, _ in rows]
    if request.plot:
        write_output(request.plot, svg(outlooks, f"{request.recipe} on {profile.device}"))
    if request.as_json:
        print_json(_as_dict(request, profile, outlooks, advice))
    else:
        folded = (textwrap.fill(sentence, WIDTH, subsequent_indent="  ") for sentence in advice)
        notes = _left_out(recipe, asked, ways, outlooks, is_named=request.sync not in (None, SYNC) or bool(chosen))
        head = _head(request, profile, demand, notes)
        typer.echo("\n\n".join([head, *_tables(outlooks, profile), "\n".join(folded)]))


def _refuse_what_is_in_vain(request: Request) -> None:
    """It was meant to change something, and would not."""
    options = {
        "--nodes": request.nodes,
        "--gpus": request.gpus,
        "--network": request.network,
        "--latency": request.latency,
    }
    given = [option for option, value in options.items() if value is not None]
    if request.hosts and given:
        raise UserError(
            f"{', '.join(given)}: {request.hosts} says that of every host, and would overrule it",
            hint=f"leave {'it' if len(given) == 1 else 'them'} out, or change the file; --hosts replaces all of"
            f" {', '.join(options)}",
        )
    if request.latency is not None and all(map(_is_measured, _networks(request))):
        raise UserError(
            f"--latency {request.latency}: {request.network} has every link's own, as it was measured",
            hint="leave it out, or name a rate with --network, as in 1gbit",
        )


def _networks(request: Request) -> list[str]:
    return (NETWORK if request.network is None else request.network).split(",")


def _is_measured(network: str) -> bool:
    return network.endswith(".json")


def _setups(request: Request) -> Iterator[tuple[str, Setup]]:
    """Each with the name of its network."""
    for network, setup in _steady_setups(request):
        yield network, setup if request.jitter is None else replace(setup, jitter=request.jitter)


def _steady_setups(request: Request) -> Iterator[tuple[str, Setup]]:
    if request.hosts:
        yield str(request.hosts), read_hosts(request.hosts)
        return
    latency = rates.seconds(LATENCY if request.latency is None else request.latency)
    all_nodes, all_gpus = _counts(request.nodes, NODES, "--nodes"), _counts(request.gpus, GPUS, "--gpus")
    sizes = [(nodes, gpus) for nodes in all_nodes for gpus in all_gpus]
    for network in _networks(request):
        if _is_measured(network):
            measured = read_measured(Path(network))
            yield from ((network, measured.setup(nodes, gpus)) for nodes, gpus in sizes)
        else:
            bits = rates.bits_per_second(network)
            link = Link.of_bits(bits, latency)
            yield from ((bit_rate(bits), Setup.alike(nodes, link, gpus)) for nodes, gpus in sizes)


def _counts(given: str | None, usual: str, option: str) -> list[int]:
    """1,2,4"""
    text = usual if given is None else given
    try:
        counts = [int(word) for word in text.split(",")]
    except ValueError:
        counts = []
    if not counts or not all(1 <= count <= MAX_NODES for count in counts):
        raise UserError(f'{option} is "{text}"', hint=f"whole numbers from 1 on, as in {option} 1,2,4")
    return counts


def _asked_sync(given: str | None, overrides: Sequence[str]) -> str:
    """By --sync, or by the recipe's own key, as konvoi train takes it: --set sync.name=diloco."""
    if not overrides:
        return SYNC if given is None else given
    name = str(toml_value(overrides[-1].partition("=")[2].strip()))
    if not name:
        raise UserError(f"--set {overrides[-1]}: must be section.key=value", hint=f"as in --set {SYNC_NAME}=diloco")
    if given not in (None, name):
        raise UserError(
            f"--sync {given} and --set {overrides[-1]} ask for different ways to synchronise",
            hint="give one of them; --sync takes several, as in --sync ddp,diloco",
        )
    return name


def _sync_names(text: str) -> list[str]:
    known = [name for name in registry.names("sync") if name != AUTO]
    if text == "all":
        # The exact way first: the others are compared with it.
        return sorted(known, key=lambda name: name != "ddp")
    names = list(dict.fromkeys(text.split(",")))
    if AUTO in names:
        raise UserError('"auto" chooses among the others once a run has begun', hint=f"known: all, {', '.join(known)}")
    for name in names:
        registry.find("sync", name)
    return names


def _left_out(
    recipe: Recipe, asked: Iterable[str], ways: Iterable[str], rows: Sequence[Outlook], is_named: bool
) -> Iterator[str]:
    """Of the ways to synchronise that were asked for, those of which no row is, and why."""
    shown = {row.sync for row in rows}
    for name in asked:
        if name not in ways:
            yield f"{name} is left out: it does not go with {recipe.needs_equal_workers}"
        elif is_named and name not in shown and shown != {ALONE}:
            yield f"{name} is left out: it is for several hosts of which some have several workers"


def _head(request: Request, profile: Profile, demand: Demand, notes: Iterable[str]) -> str:
    amount = "pictures" if profile.images else "source and target tokens"
    lines = [
        f"{request.recipe} on {profile.device or 'this device'}: {profile.step_seconds:.3g} s a step alone,"
        f" {profile.amount:,.0f} {amount}",
        f"  {profile.source}",
    ]
    if demand.is_assumed:
        lines.append("  the data is not prepared here: full batches are assumed")
    lines += [f"  {_equal_data(demand)}", "  speed: against one device; MB: that each host sends in a step"]
    return "\n".join([*lines, *(f"  {note}" for note in notes)])


def _equal_data(demand: Demand) -> str:
    if demand.job.worker_steps is not None:
        return (
            f"hours for the same data: {demand.job.worker_steps:,.0f} steps of one worker; n workers take 1/n of them"
        )
    if demand.job.seconds is not None:
        return "the recipe ends by time: hours are the same, and faster set-ups see more data"
    return "hours are unknown until the data is prepared: the recipe counts epochs"


def _tables(rows: Sequence[Outlook], profile: Profile) -> Iterator[str]:
    """One for each network."""
    priced = any(row.cost is not None for row in rows)
    unit = "img/s" if profile.images else "tok/s"
    header = ("nodes  sync", "step s", unit, "speed", "eff", "hours", *(("cost",) if priced else ()), "MB", "bound")
    for network in dict.fromkeys(row.network for row in rows):
        of_network = [_cells(row, priced) for row in rows if row.network == network]
        yield f"{network}\n{aligned([header, *of_network], numbers=True)}"


def _cells(row: Outlook, priced: bool) -> tuple[str, ...]:
    found = row.prediction
    return (
        f"{row.place:<6} {row.sync}",
        _figure(found.step_seconds),
        _figure(row.tokens_per_second),
        f"{found.speed_up:.2f}" if found.speed_up < 10 else f"{found.speed_up:.1f}",
        f"{found.efficiency:.0%}",
        "-" if row.hours is None else _figure(row.hours),
        *(("-" if row.cost is None else _figure(row.cost),) if priced else ()),
        _figure(found.bytes_per_host / 1e6),
        found.bound,
    )


def _figure(value: float) -> str:
    """1.71, 36.5, 365, 12.34k, 134.1M: short enough for a column"""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= 9.9995 * size:
            return f"{value / size:.4g}{unit}"
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def _as_dict(request: Request, profile: Profile, rows: Sequence[Outlook], advice: list[str]) -> dict[str, Any]:
    known = asdict(profile)
    known["shapes"] = len(profile.shapes)
    return {
        "version": 1,
        "recipe": request.recipe,
        "device": profile.device,
        "profile": {**known, "parameters": profile.num_values, "step_seconds": profile.step_seconds},
        "rows": [row.as_dict() for row in rows],
        "advice": advice,
    }
