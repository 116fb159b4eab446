"""The verdict in words: one sentence to quote, and the numbers behind it, each in a line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean

from konvoi.analysis.devices import cores_busy_percent, gpus_busy_percent
from konvoi.analysis.findings import Findings, pause_seconds
from konvoi.analysis.network import link_bits_per_second, measured_bits_per_second
from konvoi.analysis.sync import exact_and_later, mostly_exact
from konvoi.analysis.verdict import Cause
from konvoi.analysis.wording import amount_of_bytes, bit_rate, counted, duration, listed, percent

# Said from this share of the time on, also when it is not the verdict.
WORTH_SAYING = 0.05
HARDLY = 0.01
BUSY_PERCENT = 80.0
WHY = {
    "less processor": "because it gets less processor time",
    "longer batches": "because its batches are longer",
    "slow input": "because its input is slow",
    "slow device": "because its device is slower",
    "unknown": "and nothing that was measured says why",
}


def sentence_of(found: Findings, cause: Cause, doubts: list[str]) -> str:
    times, step = found.times, found.step_seconds
    if cause == "unknown":
        return f"Can't tell what binds this run: {'; '.join(doubts)}."
    if cause == "start-up":
        whole = "of the run" if found.run.status == "finished" else "of the run as planned"
        return (
            f"Start-up: {duration(times.start_up)} pass before the first step, {percent(found.start_up_share)} {whole}."
        )
    if cause == "straggler":
        return _straggler_sentence(found)
    if cause == "network":
        return _network_sentence(found)
    if cause == "input":
        share = percent(times.slowest_input / step)
        return f"Input: a step of {duration(step)} waits {duration(times.slowest_input)} ({share}) for its data."
    if cause in ("evaluation", "checkpointing"):
        return _pause_sentence(found, cause)
    share = percent(times.of_step("compute"))
    return (
        f"Compute: {share} of a step of {duration(step)} is forward, backward and optimiser;"
        f" no cause that slows it takes more than {percent(max(found.costs.values()))}."
    )


def _straggler_sentence(found: Findings) -> str:
    slow = found.straggler
    assert slow is not None
    where = f" on {slow.host}" if slow.host else ""
    who = f"rank {slow.rank}{where}" if slow.rank is not None else "one of the other ranks"
    cost = f"{duration(slow.seconds)} of a step of {duration(found.step_seconds)}"
    share = percent(slow.seconds / found.step_seconds)
    return f"Straggler: the others wait for {who}, {cost} ({share}), {WHY[slow.why]}."


def _network_sentence(found: Findings) -> str:
    exchange, share = found.exchange, found.times.of_step("moving")
    cost = f"{duration(share * found.step_seconds)} of a step of {duration(found.step_seconds)} ({percent(share)})"
    if exchange.behind_steps:
        return f"Network: {cost} pass in the exchange; {_too_late(found)}."
    if exchange.kind == "latency":
        how = (
            f"each of {exchange.num_collectives:.0f} collectives takes {duration(exchange.latency)} however small it is"
        )
    elif exchange.num_bytes:
        how = f"{amount_of_bytes(exchange.num_bytes)} a step travel at {bit_rate(exchange.bits_per_second)}"
    else:
        how = "gradients are under way and nothing hides it"
    return f"Network{f' ({exchange.kind})' if exchange.kind else ''}: {cost} pass in the exchange of gradients; {how}."


def _too_late(found: Findings) -> str:
    """Why what travels behind other steps costs time all the same."""
    both, num_bytes = exact_and_later(found.run), found.exchange.num_bytes
    if both and mostly_exact(found.run):
        return f"most of it in the first {both[0].num_steps:,} steps, which average gradients as ddp does"
    sent = f"{amount_of_bytes(num_bytes)} a step travel" if num_bytes else "weights travel"
    return f"{sent} behind other steps and come too late"


def _pause_sentence(found: Findings, cause: Cause) -> str:
    times = found.times
    seconds, count, noun = (
        (times.evaluation, times.num_evaluations, "evaluation")
        if cause == "evaluation"
        else (times.checkpointing, times.num_checkpoints, "checkpoint")
    )
    each = duration(pause_seconds(found.run, cause))
    takes = f"{'takes' if count == 1 else 'take'} {percent(seconds / times.training)} of the training"
    return f"{cause.capitalize()}: {counted(count, noun)} of {each} {takes}."


def evidence_of(found: Findings, cause: Cause) -> list[str]:
    parts = (_around_the_steps, _in_a_step, _slow_rank, _exchange, _cores, _busy_is_not_useful)
    lines = [line for part in parts for line in part(found)]
    if cause == "start-up" and found.costs:
        rival = max(found.costs, key=lambda name: found.costs[name])
        lines.append(f"after the start-up the largest cause is {rival}, with {percent(found.costs[rival])}")
    return lines


def _around_the_steps(found: Findings) -> Iterator[str]:
    times = found.times
    around = {
        "start-up": times.start_up,
        counted(times.num_evaluations, "evaluation"): times.evaluation,
        counted(times.num_checkpoints, "checkpoint"): times.checkpointing,
        "nothing that is measured": times.unaccounted,
    }
    said = [f"{duration(seconds)} in {name}" for name, seconds in around.items() if seconds > HARDLY * times.total]
    if times.num_steps:
        in_steps = f"{duration(times.total)}: {duration(times.steps)} in {counted(times.num_steps, 'step')}"
        yield ", ".join([in_steps, *said])


def _in_a_step(found: Findings) -> Iterator[str]:
    """Means over the ranks; without what is hardly there."""
    if not found.times.ranks:
        return
    names = {
        "compute": "compute",
        "input": "input",
        "waiting": "waiting for other ranks",
        "moving": "network",
        "other": "other",
    }
    shares = {words: found.times.of_step(name) for name, words in names.items()}
    said = [f"{words} {percent(share)}" for words, share in shares.items() if share >= HARDLY]
    median = f"median {duration(found.times.median_step_seconds)} of {found.times.num_usable_steps:,}"
    yield f"a step of {duration(found.step_seconds)} on average ({median}): {', '.join(said)}"


def _slow_rank(found: Findings) -> Iterator[str]:
    """The slowest where it costs something; else whether the ranks take turns at being the last."""
    slow, waiting = found.straggler, found.times.of_step("waiting")
    if slow and found.costs["straggler"] >= WORTH_SAYING:
        who = f"rank {slow.rank}" if slow.rank is not None else "one of the other ranks"
        work = f"works {duration(slow.own_work_seconds)} a step, the others {duration(slow.others_work_seconds)}"
        yield f"{who} {work}: " + "; ".join(slow.reasons)
    elif waiting >= 2 * WORTH_SAYING:
        yield f"the ranks take turns at being the last: on average each waits {percent(waiting)} of a step for another"


def _exchange(found: Findings) -> Iterator[str]:
    exchange = found.exchange
    if not exchange.num_bytes:
        return
    sends = f"each rank sends {amount_of_bytes(exchange.num_bytes)} a step"
    if exchange.behind_steps:
        yield _behind_steps(found)
    else:
        yield (
            f"{sends} in {counted(round(exchange.num_collectives), 'collective')}: {duration(exchange.seconds)} under"
            f" way, {duration(exchange.exposed)} of it with nothing else to do;"
            f" a collective of a few bytes takes {duration(exchange.latency)}"
        )
    link, measured = link_bits_per_second(found.run), measured_bits_per_second(found.run)
    rates = [f"gradients travel at {bit_rate(exchange.bits_per_second)}"] if exchange.bits_per_second else []
    rates += [f"the interface sends up to {bit_rate(measured)} in a second"] if measured else []
    rates += [f"the link is said to carry {bit_rate(link)}"] if link else []
    if rates:
        yield ", ".join(rates)


def _behind_steps(found: Findings) -> str:
    """Of exact steps apart: these have nothing to hide behind."""
    exchange, both = found.exchange, exact_and_later(found.run)
    if not both:
        sends = f"each rank sends {amount_of_bytes(exchange.num_bytes)} a step, which travel behind other steps"
        return f"{sends}; for {duration(exchange.exposed)} of a step it has nothing else to do"
    exact, later = both
    first = "the first step" if exact.num_steps == 1 else f"each of the first {exact.num_steps:,} steps"
    sent, later_sent = (
        "" if math.isnan(spell.bytes_sent) else f" sends {amount_of_bytes(spell.bytes_sent)} and" for spell in both
    )
    return (
        f"{first} averages gradients as ddp does,{sent} stands still for {duration(exact.still_seconds)};"
        f" a later one{later_sent} stands still for {duration(later.still_seconds)}: its bytes travel behind others"
    )


def _cores(found: Findings) -> Iterator[str]:
    ranks = found.times.ranks
    delay = (
        fmean(rank.run_delay / rank.step for rank in ranks) if ranks and all(rank.step > 0 for rank in ranks) else 0.0
    )
    if delay >= WORTH_SAYING:
        yield f"ready to run but without a core for {percent(delay)} of a step: too few cores for all that runs there"
    busy = {name: value for name, host in found.run.hosts.items() if (value := cores_busy_percent(host)) is not None}
    if busy:
        yield "cores busy: " + listed([f"{name} {value:.0f} %" for name, value in busy.items()])


def _busy_is_not_useful(found: Findings) -> Iterator[str]:
    busy, idle = gpus_busy_percent(found.run), found.times.of_step("moving") + found.times.of_step("waiting")
    if busy is not None and busy >= BUSY_PERCENT and idle >= 0.2:
        yield (
            f"the GPUs say {busy:.0f} % busy, but {percent(idle)} of a step is communication:"
            " a GPU that waits in a collective counts as busy"
        )
