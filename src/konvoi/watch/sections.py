"""The parts of the screen: each gives its lines for a width."""

from __future__ import annotations

import math
import time

from rich.text import Text

from konvoi.analysis.answers.faults import incidents, stalls, teller
from konvoi.analysis.curve import LOWER_IS_BETTER
from konvoi.analysis.record import HostRecord
from konvoi.analysis.wording import counted, metric_name, score
from konvoi.watch import measures
from konvoi.watch.draw import (
    clock_words,
    cut,
    fitting,
    flowing,
    folded,
    legend,
    meter,
    milliseconds,
    sparkline,
    stacked,
)
from konvoi.watch.live import Snapshot
from konvoi.watch.measures import RankNow

STATUS_STYLES = {"running": "bold green", "finished": "bold cyan", "died": "bold red", "failed": "bold red"}
LABEL_WIDTH = 9
# Phases that nobody could see in the bar are not in the legend either.
LEGEND_SHARE = 0.005
MAX_VERDICT_LINES = 3
MIN_BAR_WIDTH = 14
# Of a line; on a narrower one only the numbers stay.
MIN_CURVE_WIDTH = 30
MIN_WIDTH_FOR_HOSTS = 70
BUSY_LINK = 0.8
# A step, an evaluation or a checkpoint may take this long without anybody asking whether the run is alive.
QUIET_SECONDS = 15.0


def header(view: Snapshot, width: int) -> list[Text]:
    run = view.run
    hosts = sorted({rank.host for rank in run.ranks.values() if rank.host} or set(run.hosts))
    on_hosts = f" on {', '.join(hosts)}" if 0 < len(hosts) <= 3 else f" on {len(hosts)} hosts" if hosts else ""
    workers = f"{run.num_workers} worker{'s' if run.num_workers > 1 else ''}{on_hosts}"
    device = " ".join(str(run.summary[key]) for key in ("precision", "device") if run.summary.get(key))
    lines = [fitting([Text(run.name, "bold"), _status(view), workers, device], width)]
    if run.status == "died" and view.last_event_at:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(view.last_event_at))
        lines.append(cut(Text(f"last event at {at}, {clock_words(view.silent_seconds)} ago", "red"), width))
    return lines


def faults(view: Snapshot, width: int) -> list[Text]:
    """How often somebody was lost and the run went on, how long it stood still, and what was the last of it."""
    told = teller(view.run)
    if not told.faults:
        return []
    lost_seconds = stalls(told)
    counts = f"{counted(len(told.faults), 'fault')}, {counted(len(lost_seconds), 'restart')}"
    counts += f", {sum(lost_seconds):,.1f} s without a step" if lost_seconds else ""
    last = incidents(view.run)[-1]
    words = f"  last: {last.who}: {last.what}" if last.who else f"  last: {last.what}"
    return [cut(Text.assemble((counts, "bold yellow"), printable(words)), width)]


def _status(view: Snapshot) -> Text:
    status = view.run.status
    if status == "not started":
        return Text("not started, waiting for its first event", "bold yellow")
    step_seconds = measures.step_seconds(view.run.first)
    quiet_seconds = QUIET_SECONDS if math.isnan(step_seconds) else max(QUIET_SECONDS, 3 * step_seconds)
    if status == "running" and view.last_event_at and view.silent_seconds > quiet_seconds:
        return Text(f"running, no event for {clock_words(view.silent_seconds)}", "bold yellow")
    return Text(status, STATUS_STYLES.get(status, "bold yellow"))


def progress(view: Snapshot, width: int) -> list[Text]:
    now = view.progress
    steps = f"step {now.step:,}" + (f" of {now.total_steps:,}" if now.total_steps else "")
    times = f"{clock_words(now.seconds)} gone"
    if now.seconds_left is not None:
        times += f", {clock_words(now.seconds_left)} left"
    if now.share is None:
        return [fitting([steps, times], width)]
    percent = f"{100 * now.share:3.0f} %"
    words = f"{percent}  {steps}  {times}"
    if width - len(words) < MIN_BAR_WIDTH:
        return [_bar_and_words(now.share, percent, width), fitting([steps, times], width)]
    return [_bar_and_words(now.share, words, width)]


def _bar_and_words(share: float, words: str, width: int) -> Text:
    return cut(meter(share, width - len(words) - 1, "green").append(f" {words}"), width)


def curves(view: Snapshot, width: int) -> list[Text]:
    """Loss in training, loss and score on held-out data, speed."""
    run, lines = view.run, []
    losses = measures.latest(run.first)["loss"]
    if len(losses):
        lines.append(_curve("loss", view.history.losses, [f"{measures.mean(losses):.3f}"], width))
    for metric in dict.fromkeys(("loss", run.metric)):
        if scores := measures.scores_of(run, metric):
            lines.append(_score_curve(metric, scores, width))
    if found := measures.speed(run):
        lines.append(_curve("speed", view.history.speeds, [f"{found[0]:,.0f} {found[1]}"], width))
    return lines


def _score_curve(metric: str, scores: list[tuple[int, float]], width: int) -> Text:
    better = min if metric in LOWER_IS_BETTER else max
    best_step, best = better(scores, key=lambda at: at[1])
    words = [score(scores[-1][1], metric), f"best {score(best, metric)}", f"at step {best_step:,}"]
    return _curve(metric_name(metric), [value for _, value in scores], words, width)


def _curve(name: str, values: list[float], words: list[str], width: int) -> Text:
    label = Text(f"{name:<{LABEL_WIDTH - 1}.{LABEL_WIDTH - 1}}", "dim")
    if width < MIN_CURVE_WIDTH:
        return fitting([label, *words], width, gap=" ")
    curve_width = max(8, min(60, width - LABEL_WIDTH - 38))
    curve = sparkline(values, curve_width).ljust(curve_width)
    return fitting([Text.assemble(label, " ", (curve, "cyan")), *words], width)


def ranks(view: Snapshot, width: int, max_ranks: int) -> list[Text]:
    """The mean step of each rank, as a bar of its phases, and what the phases take on the average."""
    shown = view.ranks
    longest_seconds = max((rank.seconds for rank in shown), default=0.0)
    if longest_seconds <= 0:
        return []
    lines = [_rank_line(rank, longest_seconds, width) for rank in shown[:max_ranks]]
    if len(shown) > max_ranks:
        lines.append(cut(Text(f"and {len(shown) - max_ranks} of {len(shown)} ranks more", "dim"), width))
    names = dict.fromkeys(name for rank in shown for name in rank.phases)
    means = {name: sum(rank.phases.get(name, 0.0) for rank in shown) / len(shown) for name in names}
    visible = {name: seconds for name, seconds in means.items() if seconds >= LEGEND_SHARE * longest_seconds}
    whole = Text(f"step {milliseconds(sum(means.values()))}", "bold")
    return lines + flowing([whole, *legend(visible)], width)


def _rank_line(rank: RankNow, longest_seconds: float, width: int) -> Text:
    host = rank.host if width >= MIN_WIDTH_FOR_HOSTS else ""
    bar_width = max(8, width - LABEL_WIDTH - len(rank.speed) - 2 - (len(host) + 2 if host else 0))
    bar = stacked(rank.phases, bar_width, longest_seconds)
    bar.pad_right(bar_width - bar.cell_len)
    label = Text.assemble((f"rank {rank.rank}".ljust(LABEL_WIDTH), "dim"), bar)
    return fitting([label, rank.speed, host], width)


def hosts(view: Snapshot, width: int, max_hosts: int) -> list[Text]:
    found = [host for host in view.run.hosts.values() if host.samples]
    lines = [line for host in found[:max_hosts] for line in _host_lines(host, width)]
    if len(found) > max_hosts:
        lines.append(cut(Text(f"and {len(found) - max_hosts} of {len(found)} hosts more", "dim"), width))
    return lines


def _host_lines(host: HostRecord, width: int) -> list[Text]:
    parts = [*_network(host), *_machine(host), *_gpus(host)]
    lines = flowing(parts, width - LABEL_WIDTH)
    labels = [f"{host.name[: LABEL_WIDTH - 1]:<{LABEL_WIDTH}}"] + [" " * LABEL_WIDTH] * len(lines)
    return [Text.assemble((label, "dim"), line) for label, line in zip(labels, lines, strict=False)]


def _network(host: HostRecord) -> list[Text]:
    found = measures.traffic(host)
    if found is None:
        return []
    words = f"in {found.in_bits_per_second / 1e6:,.0f} out {found.out_bits_per_second / 1e6:,.0f}"
    if found.share is None or not found.link_bits_per_second:
        return [Text(f"{words} Mbit/s")]
    bar = meter(found.share, 8, "red" if found.share > BUSY_LINK else "green")
    link = f"{words} of {found.link_bits_per_second / 1e6:,.0f} Mbit/s"
    return [Text(link), bar.append(f" {100 * found.share:.0f} %")]


def _machine(host: HostRecord) -> list[Text]:
    parts = []
    if math.isfinite(cpu := measures.cpu_percent(host)):
        parts.append(Text(f"CPU {cpu:.0f} %"))
    used, whole = host.samples[-1].get("memory_used_bytes"), host.about.get("memory_bytes")
    if used and whole:
        parts.append(Text(f"RAM {used / 1e9:.1f} of {whole / 1e9:.0f} GB"))
    return parts


def _gpus(host: HostRecord) -> list[Text]:
    lines = []
    for number, gpu in enumerate(host.samples[-1].get("gpus") or []):
        line = Text(f"GPU {number}")
        if gpu.get("busy_percent") is not None:
            line.append(f" {gpu['busy_percent']:.0f} %")
        if gpu.get("memory_used_bytes") is not None and gpu.get("memory_total_bytes"):
            line.append(f", {gpu['memory_used_bytes'] / 1e9:.1f} of {gpu['memory_total_bytes'] / 1e9:.0f} GB")
        if gpu.get("power_watts") is not None:
            line.append(f", {gpu['power_watts']:.0f} W")
        if gpu.get("throttled_by"):
            line.append(f", slowed down by {', '.join(gpu['throttled_by'])}", "red")
        lines.append(line)
    return lines


def verdict(view: Snapshot, width: int) -> list[Text]:
    found = view.verdict
    if found is None:
        return []
    head, colon, rest = found.sentence.partition(":")
    style = "bold green" if found.verdict == "compute" else "bold yellow"
    lines = folded(Text.assemble((head + colon, style), rest), width, MAX_VERDICT_LINES)
    if found.advice:
        best = found.advice[0]
        gain = f"{best.words}: {best.before_seconds:.2f} -> {best.after_seconds:.2f} s"
        lines += folded(Text.assemble(("next: ", "bold"), gain, f" ({best.how})" if best.how else ""), width, 2)
    return lines


def evaluation(view: Snapshot, width: int) -> list[Text]:
    if not view.run.evaluations:
        return []
    last = view.run.evaluations[-1]
    words = [f"evaluation at step {last['step']:,}:", *measures.evaluation_words(last)]
    if last.get("seconds") is not None:
        words.append(f"({last['seconds']:.1f} s)")
    return [fitting(words, width)]


def log(view: Snapshot, width: int, num_lines: int) -> list[Text]:
    lines = view.log_lines[-num_lines:] if num_lines > 0 else []
    return [cut(Text(printable(line), "dim"), width) for line in lines]


def printable(line: str) -> str:
    """Whatever a terminal would obey is left out."""
    return "".join(sign if sign.isprintable() else " " for sign in line)
