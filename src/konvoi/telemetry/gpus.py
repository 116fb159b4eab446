"""What the GPUs of this host do, by NVML; nothing where there is no driver. Does not import torch."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Bits of nvmlDeviceGetCurrentClocksEventReasons. That a GPU has nothing to do (bit 0x1) slows nobody down.
IDLE = 0x001
THROTTLE_REASONS = {
    0x002: "clock setting",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "heat",
    0x040: "heat",
    0x080: "power brake",
    0x100: "display clock setting",
    0x200: "board limit",
    0x400: "reliability limit",
}


def throttle_words(reasons: int) -> list[str]:
    """Why a GPU runs below its highest clock, each word once."""
    words = [word for bit, word in THROTTLE_REASONS.items() if reasons & bit]
    if reasons & ~(IDLE | sum(THROTTLE_REASONS)):
        words.append("another reason")
    return list(dict.fromkeys(words))


class Gpus:
    """All GPUs of the host, whoever uses them."""

    def __init__(self) -> None:
        # Imported here: only the sampler needs it, and most hosts have no use for it.
        self._nvml: Any = import_module("pynvml")
        self._handles = self._find()

    def _find(self) -> list[Any]:
        try:
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError:
            return []
        handles = (ask(self._nvml, "nvmlDeviceGetHandleByIndex", index) for index in range(count))
        return [handle for handle in handles if handle is not None]

    def names(self) -> list[str]:
        return [ask(self._nvml, "nvmlDeviceGetName", handle) or "unknown" for handle in self._handles]

    def sample(self) -> list[dict[str, Any]]:
        return [sample_of(self._nvml, handle) for handle in self._handles]


def sample_of(nvml: Any, handle: Any) -> dict[str, Any]:
    """One GPU now; null for what it cannot tell."""
    utilisation = ask(nvml, "nvmlDeviceGetUtilizationRates", handle)
    memory = ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    milliwatts = ask(nvml, "nvmlDeviceGetPowerUsage", handle)
    reasons = ask(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    if reasons is None:
        # The name that older drivers know.
        reasons = ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return {
        "busy_percent": getattr(utilisation, "gpu", None),
        "memory_used_bytes": getattr(memory, "used", None),
        "memory_total_bytes": getattr(memory, "total", None),
        "power_watts": None if milliwatts is None else milliwatts / 1000,
        "clock_mhz": ask(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
        "max_clock_mhz": ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM),
        "throttled_by": None if reasons is None else throttle_words(reasons),
    }


def ask(nvml: Any, function: str, *arguments: Any) -> Any:
    """None where the card (a MIG slice, one that fell off the bus) or an old driver has no answer."""
    try:
        return getattr(nvml, function)(*arguments)
    except nvml.NVMLError:
        return None
