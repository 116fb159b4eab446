"""Whether the GPUs that a training counts on are there, enough of them, and alike."""

from __future__ import annotations

from collections.abc import Iterator

from konvoi.cluster.checks import Finding
from konvoi.cluster.checks._hosts import judged, odd_ones, seen
from konvoi.cluster.facts import Facts
from konvoi.cluster.hosts import Host
from konvoi.cluster.survey import Survey

TITLE = "GPUs"
ORDER = 40


def examine(survey: Survey) -> Iterator[Finding]:
    problems = [finding for host, facts in seen(survey) for finding in _own_problems(host, facts)]
    models = {host.name: _models(facts) for host, facts in seen(survey)}
    fine = {host: words or "none: trains on its processors" for host, words in models.items()}
    return judged([*problems, *_unlike(models)], fine)


def _unlike(models: dict[str, str]) -> Iterator[Finding]:
    with_gpus = {host: words for host, words in models.items() if words}
    for host in (host for host in models if with_gpus and host not in with_gpus):
        # gloo here and NCCL there would wait for each other for ever.
        fix = "train on hosts of one sort, or hide the others' GPUs"
        yield Finding(host, "error", "no GPU, though other hosts have some", fix, "gpu-on-some")
    for odd in odd_ones(with_gpus):
        fix = "the slowest sets the pace: take GPUs of one sort"
        yield Finding(odd.host, "warning", f"{odd.value}; {odd.others}", fix, "gpu-differs")


def _own_problems(host: Host, facts: Facts) -> Iterator[Finding]:
    count = len(facts.gpus)
    if facts.gpu_problem:
        fix = "try nvidia-smi there; after an update of the driver, restart the host"
        yield Finding(host.name, "error", facts.gpu_problem, fix, "gpu-driver-fails")
    elif host.gpus is not None and count != host.gpus:
        fix = "there: nvidia-smi -L; is one lost, or the driver missing? Else correct gpus = and workers ="
        yield Finding(host.name, "error", f"{_gpus(count)}; cluster.toml says {host.gpus}", fix, "gpu-count")
    elif not count and facts.num_nvidia_cards:
        found = f"{facts.num_nvidia_cards} NVIDIA cards, but no driver"
        yield Finding(host.name, "warning", found, "install NVIDIA's driver there", "gpu-without-driver")
    if 0 < count < host.workers:
        fix = f"workers = {count} for this host in cluster.toml"
        yield Finding(host.name, "error", f"{_gpus(count)} for {host.workers} workers", fix, "gpu-too-few")
    torch = facts.environment.packages.get("torch", "")
    if count and torch.endswith("+cpu"):
        fix = "install torch for CUDA in the environment of the hosts"
        yield Finding(host.name, "warning", f"torch {torch} does not use its {_gpus(count)}", fix, "torch-without-gpu")


def _models(facts: Facts) -> str:
    """4 x NVIDIA A10G"""
    names = [gpu.name for gpu in facts.gpus]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
