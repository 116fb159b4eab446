"""What to do next, and what each would bring by a small model of the measured numbers (docs/diagnosis.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from konvoi.analysis.devices import cores_busy_percent
from konvoi.analysis.findings import Findings
from konvoi.analysis.length import planned
from konvoi.analysis.network import is_one_host
from konvoi.analysis.sync import exact_and_later, mostly_exact, way_of
from konvoi.analysis.verdict import Advice, Cause
from konvoi.analysis.wording import bit_rate

# What brings less is not worth the change.
MIN_GAIN = 1.03
MAX_ADVICE = 4
ACCUMULATE = 4
RARER = 4
BYTES_PER_FLOAT = 4
# Of diloco as it is unless told otherwise: half a byte for each weight, once in so many steps; with Muon a momentum of
# most of them besides.
LOCAL_STEPS, LOCAL_BYTES, MOMENTUM_BYTES = 6, 0.5, 1.0
# For a run that has no second machine yet: the network that most have.
ASSUMED_BITS_PER_SECOND = 1e9
IDLE_PERCENT = 60.0


def advise(found: Findings, cause: Cause) -> list[Advice]:
    """The best first; only what applies to this run and would be felt."""
    if not found.times.ranks or found.step_seconds <= 0 or cause == "unknown":
        return []
    models = {
        "compute": (_mixed_precision, _threads, _fewer_than_cores, _larger_steps, _more_machines),
        "network": (
            *(_local_steps, _more_local_steps, _fewer_exact_steps),
            *(_half_precision, _accumulate, _larger_buckets, _alone),
        ),
        "input": (_loader_processes, _faster_input),
        "straggler": (_mend_straggler, _without_straggler),
        "evaluation": (_evaluate_less_often, _fewer_sentences),
        "checkpointing": (_save_less_often, _save_elsewhere),
        "start-up": (_longer_run,),
    }[cause]
    advice = [item for model in models for item in model(found)]
    felt = [item for item in advice if item.gain >= MIN_GAIN]
    return sorted(felt, key=lambda item: -item.gain)[:MAX_ADVICE]


def _half_precision(found: Findings) -> Iterator[Advice]:
    """Not where auto chose: it would have taken that."""
    way = way_of(found.run)
    if way.name != "ddp" or not way.prefix:
        return
    after = found.step_seconds - found.exchange.exposed + found.exchange.exposed_if(bytes_factor=0.5)
    # Inside a host they go on in full.
    words = "half precision gradients" + (" between the hosts, at best" if way.prefix != "sync" else "")
    yield Advice(words, f"--set {way.prefix}.name=fp16", found.step_seconds, after)


def _local_steps(found: Findings) -> Iterator[Advice]:
    """Not on one host: its memory is no slow link, and weights that part cost some of the score."""
    run, way = found.run, way_of(found.run)
    # With weights that part, neither a moving average of them goes nor batch norm over all workers.
    is_refused = run.setting("train.ema_decay") or run.setting("model.sync_batch_norm")
    if way.name != "ddp" or not way.prefix or is_one_host(run) or is_refused:
        return
    bytes_per_value = LOCAL_BYTES + (MOMENTUM_BYTES if run.setting("optim.name") == "muon" else 0)
    rarer = 1 / LOCAL_STEPS
    left = found.exchange.exposed_if(bytes_factor=rarer * bytes_per_value / BYTES_PER_FLOAT, collectives_factor=rarer)
    words = (
        f"one exchange in {LOCAL_STEPS} steps, the workers' weights parting meanwhile, which costs some of the score"
    )
    after = found.step_seconds - found.exchange.exposed + left
    how = f"--set {way.prefix}.name=diloco"
    if way.prefix == "sync" and run.num_workers > int(run.summary.get("hosts") or 1):
        how = "--set sync.name=hierarchical --set sync.between.name=diloco"
    yield Advice(words, how, found.step_seconds, after)


def _more_local_steps(found: Findings) -> Iterator[Advice]:
    """What came too late has twice the time; as long as anybody waits for it, the link is busy all the time."""
    way, step, exposed = way_of(found.run), found.step_seconds, found.exchange.exposed
    local_steps = way.number("local_steps")
    if not way.is_behind_steps or not way.prefix or not local_steps or mostly_exact(found.run):
        return
    rest = step - exposed
    words = "half as many exchanges, which costs more of the score, at best"
    how = f"--set {way.prefix}.local_steps={2 * local_steps}"
    yield Advice(words, how, step, rest + max(0.0, step / 2 - rest))


def _fewer_exact_steps(found: Findings) -> Iterator[Advice]:
    way, both = way_of(found.run), exact_and_later(found.run)
    if not way.prefix or not both or not mostly_exact(found.run):
        return
    exact, later = both
    num_steps = exact.num_steps + later.num_steps
    before = found.times.steps / max(1, found.times.num_steps)
    saved = exact.num_steps * (exact.still_seconds - later.still_seconds) / num_steps
    words = "no exact steps at first, which costs some of the score, seconds of all steps"
    yield Advice(words, f"--set {way.prefix}.exact_steps=0", before, max(0.0, before - saved))


def _accumulate(found: Findings) -> Iterator[Advice]:
    """A step then takes more micro-batches and exchanges once; compared by the micro-batch."""
    now = _accumulated(found)
    per_batch = found.step_seconds / now
    once = found.times.of_step("moving") * found.step_seconds / now
    words = f"exchange once in {ACCUMULATE * now} micro-batches, seconds by the micro-batch"
    if found.exchange.behind_steps:
        words = f"{ACCUMULATE * now} micro-batches in a step, seconds by the micro-batch"
    yield Advice(words, f"--set train.accumulate={ACCUMULATE * now}", per_batch, per_batch - once + once / ACCUMULATE)


def _accumulated(found: Findings) -> int:
    value = found.run.setting("train.accumulate", 1)
    return value if isinstance(value, int) and value > 0 else 1


def _larger_buckets(found: Findings) -> Iterator[Advice]:
    """Fewer collectives: helps against latency alone."""
    exchange = found.exchange
    if exchange.kind == "latency" and exchange.num_collectives >= 4 and found.run.setting("sync.name", "ddp") == "ddp":
        factor = 1 / RARER
        after = found.step_seconds - exchange.exposed + exchange.exposed_if(collectives_factor=factor)
        size = RARER * float(found.run.setting("sync.bucket_megabytes", 25.0))
        yield Advice("fewer, larger collectives", f"--set sync.bucket_megabytes={size:g}", found.step_seconds, after)


def _alone(found: Findings) -> Iterator[Advice]:
    """One worker does as much in the work of a step as all of them together in their part of one."""
    workers, now = found.run.num_workers, _accumulated(found)
    alone = min(rank.work for rank in found.times.ranks) / now
    words = f"one worker instead of {workers}, seconds by the micro-batch"
    yield Advice(words, "--workers 1", found.step_seconds / (workers * now), alone)


def _loader_processes(found: Findings) -> Iterator[Advice]:
    """Pictures are decoded ahead: a step takes as long as the longer of computing and decoding."""
    if found.run.setting("task.name") != "classification":
        return
    processes = found.run.setting("batching.processes", 1)
    if not isinstance(processes, int):
        return
    step, waits = found.step_seconds, found.times.slowest_input
    # Without a process of its own, decoding takes what the step waits; else the processes are at it all the time.
    decoding = waits if processes == 0 else processes * step
    wanted = max(processes + 1, math.ceil(decoding / (step - waits))) if step > waits else processes + 1
    after = max(step - waits, decoding / wanted)
    yield Advice("more processes that decode, if cores are free", f"--set batching.processes={wanted}", step, after)


def _faster_input(found: Findings) -> Iterator[Advice]:
    after = found.step_seconds - found.times.slowest_input
    how = "keep the data on a local disk; see what else reads there"
    if found.run.setting("batching.bpe_dropout", 0.0):
        how = "--set batching.bpe_dropout=0, or keep the data on a local disk"
    yield Advice("input that keeps up, at best", how, found.step_seconds, after)


def _mend_straggler(found: Findings) -> Iterator[Advice]:
    slow = found.straggler
    assert slow is not None
    where = slow.host or (f"the host of rank {slow.rank}" if slow.rank is not None else "the other hosts")
    words, how = {
        "less processor": (
            "as much processor for all ranks",
            f"end other programs on {where}, or use fewer threads there",
        ),
        "longer batches": ("batches of equal length for all ranks", "spread the data evenly over the ranks"),
        "slow input": ("input as fast as that of the others", f"look at the disk and the loader of {where}"),
        "slow device": ("a device like those of the others", f"look at heat, power and clocks of {where}"),
        "unknown": ("all ranks as fast as the others", f"look at {where}: konvoi watch, top"),
    }[slow.why]
    yield Advice(words, how, found.step_seconds, found.step_seconds - slow.seconds)


def _without_straggler(found: Findings) -> Iterator[Advice]:
    slow, workers = found.straggler, found.run.num_workers
    assert slow is not None
    # One that is left alone has nothing to exchange.
    step = slow.others_work_seconds if workers == 2 else found.step_seconds - slow.seconds
    now = _accumulated(found)
    before, after = found.step_seconds / (workers * now), step / ((workers - 1) * now)
    who = f"rank {slow.rank}" if slow.rank is not None else "the slow rank"
    words = f"go on without {who}, seconds by the micro-batch"
    yield Advice(words, f"train with {workers - 1} instead of {workers} workers", before, after)


def _evaluate_less_often(found: Findings) -> Iterator[Advice]:
    yield from _less_often(found, "evaluate.every", found.times.evaluation, "evaluate a quarter as often")


def _save_less_often(found: Findings) -> Iterator[Advice]:
    every = "checkpoint.every" if found.run.setting("checkpoint.every") else "evaluate.every"
    yield from _less_often(found, every, found.times.checkpointing, "save a quarter as often")


def _less_often(found: Findings, key: str, seconds: float, words: str) -> Iterator[Advice]:
    times, every = found.times, planned(found.run, key)
    rarer = f'--set {key}="{every.count * RARER:g} {every.unit}s"' if every else f"--set {key}=..."
    before = times.training / max(1, times.num_steps)
    saved = seconds / max(1, times.num_steps) * (1 - 1 / RARER)
    yield Advice(f"{words}, seconds by the step with all around it", rarer, before, before - saved)


def _fewer_sentences(found: Findings) -> Iterator[Advice]:
    sentences = [event.get("sentences") for event in found.run.evaluations]
    if not sentences or not isinstance(sentences[-1], int) or sentences[-1] < 400:
        return
    wanted = max(200, sentences[-1] // RARER)
    times = found.times
    before = times.training / max(1, times.num_steps)
    saved = times.evaluation / max(1, times.num_steps) * (1 - wanted / sentences[-1])
    words = "translate fewer sentences, seconds by the step with all around it, at best"
    yield Advice(words, f"--set evaluate.max_sentences={wanted}", before, before - saved)


def _save_elsewhere(found: Findings) -> Iterator[Advice]:
    times = found.times
    before = times.training / max(1, times.num_steps)
    after = before - times.checkpointing / max(1, times.num_steps)
    how = "put the run directory on a local or faster disk"
    yield Advice("checkpoints that take no time, seconds by the step, at best", how, before, after)


def _longer_run(found: Findings) -> Iterator[Advice]:
    times = found.times
    num_steps = max(1, times.num_steps)
    before = times.total / num_steps
    after = (times.start_up + RARER * times.training) / (RARER * num_steps)
    words = f"one run {RARER} times as long instead of {RARER} short ones, seconds by the step"
    yield Advice(words, f'--set train.duration="{RARER * num_steps} steps"', before, after)


def _mixed_precision(found: Findings) -> Iterator[Advice]:
    summary = found.run.summary
    if not str(summary.get("device", "cpu")).startswith("cuda") or summary.get("precision") != "fp32":
        return
    compute = found.times.of_step("compute") * found.step_seconds
    words = "mixed precision, if the GPU computes twice as fast in it"
    yield Advice(words, "--set train.precision=auto", found.step_seconds, found.step_seconds - compute / 2)


def _threads(found: Findings) -> Iterator[Advice]:
    """Cores that stand idle, shared out among the ranks of the host; at best each thread more brings its share."""
    first = found.run.first
    host, threads = found.run.hosts.get(first.host), first.started[-1].get("threads") if first.started else None
    cores, busy = host.about.get("cores") if host else None, cores_busy_percent(host)
    if str(found.run.summary.get("device", "cpu")) != "cpu" or busy is None or busy > IDLE_PERCENT:
        return
    if not (isinstance(threads, int) and isinstance(cores, int) and threads > 0):
        return
    wanted = cores // max(1, sum(rank.host == first.host for rank in found.run.ranks.values()))
    if wanted > threads:
        compute = found.times.of_step("compute") * found.step_seconds
        after = found.step_seconds - compute * (1 - threads / wanted)
        words = "more threads for each worker, at best"
        yield Advice(words, f"--set train.threads={wanted}", found.step_seconds, after)


def _fewer_than_cores(found: Findings) -> Iterator[Advice]:
    delay = min(rank.run_delay for rank in found.times.ranks)
    words, how = "a core for every thread, at best", "end what else runs there, or use fewer workers or threads"
    yield Advice(words, how, found.step_seconds, max(0.0, found.step_seconds - delay))


def _larger_steps(found: Findings) -> Iterator[Advice]:
    if found.run.num_workers > 1:
        yield from _accumulate(found)


def _more_machines(found: Findings) -> Iterator[Advice]:
    """Twice as many that are like these; the exchange grows with the ring, or is new to the network."""
    workers, exchange, step = found.run.num_workers, found.exchange, found.step_seconds
    # Of a ring each sends 2 (n - 1) / n of the gradient: from n to 2 n workers that is (n - 1/2) / (n - 1) as much.
    more = (workers - 0.5) / (workers - 1) if workers > 1 else 1.0
    if is_one_host(found.run):
        num_bytes = more * exchange.num_bytes or BYTES_PER_FLOAT * float(found.run.summary.get("parameters") or 0)
        if not num_bytes:
            return
        travel = 8 * num_bytes / ASSUMED_BITS_PER_SECOND
        after = max(step, travel) if exchange.behind_steps else step + travel
        words = f"a second machine like this one over {bit_rate(ASSUMED_BITS_PER_SECOND)}"
        how = "start it on both, with the same micro-batches"
    else:
        grown = exchange.exposed_if(bytes_factor=more, collectives_factor=2.0)
        words, after = "twice as many machines like these", step - exchange.exposed + grown
        how = f"train with {2 * workers} workers"
    now = workers * _accumulated(found)
    yield Advice(f"{words}, seconds by the micro-batch", how, step / now, after / (2 * now))
