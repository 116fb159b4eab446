"""What NVML says, in words; nothing where there is no driver."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from konvoi.telemetry.gpus import THROTTLE_REASONS, Gpus, sample_of, throttle_words


def has_driver() -> bool:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


@pytest.mark.skipif(has_driver(), reason="this host has a driver")
def test_without_a_driver_there_are_no_gpus() -> None:
    gpus = Gpus()
    assert (gpus.names(), gpus.sample()) == ([], [])


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        pytest.param(0x0, [], id="none"),
        pytest.param(0x1, [], id="idle"),
        pytest.param(0x4, ["power cap"], id="power"),
        pytest.param(0x4 + 0x1, ["power cap"], id="power and idle"),
        # Software and hardware both say that it is too hot: once is enough.
        pytest.param(0x20 + 0x40, ["heat"], id="heat twice"),
        pytest.param(0x8 + 0x40, ["hardware slowdown", "heat"], id="slowdown by heat"),
        pytest.param(0x8 + 0x80, ["hardware slowdown", "power brake"], id="slowdown by power"),
        pytest.param(0x8000, ["another reason"], id="one of a later driver"),
    ],
)
def test_reasons_in_words(reasons: int, words: list[str]) -> None:
    assert throttle_words(reasons) == words


def test_the_bits_are_those_of_nvml() -> None:
    names = {
        "SwPowerCap": "power cap",
        "HwSlowdown": "hardware slowdown",
        "SwThermalSlowdown": "heat",
        "HwThermalSlowdown": "heat",
        "HwPowerBrakeSlowdown": "power brake",
        "SyncBoost": "sync boost",
        "ApplicationsClocksSetting": "clock setting",
        "DisplayClockSetting": "display clock setting",
    }
    for name, word in names.items():
        assert THROTTLE_REASONS[getattr(pynvml, f"nvmlClocksEventReason{name}")] == word
    assert throttle_words(pynvml.nvmlClocksEventReasonGpuIdle) == []


def nvml_that_answers(**answers: Any) -> Any:
    """Stands in for a card, which a test cannot plug in: what it does not answer it does not support."""

    def not_supported(*_: Any) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def answering(answer: Any) -> Any:
        return lambda *_: answer

    asked = [name for name in dir(pynvml) if name.startswith("nvmlDeviceGet")]
    functions = {name: answering(answers[name]) if name in answers else not_supported for name in asked}
    return SimpleNamespace(NVMLError=pynvml.NVMLError, NVML_CLOCK_SM=pynvml.NVML_CLOCK_SM, **functions)


def test_a_gpu_in_the_units_of_the_events() -> None:
    nvml = nvml_that_answers(
        nvmlDeviceGetUtilizationRates=SimpleNamespace(gpu=97, memory=40),
        nvmlDeviceGetMemoryInfo=SimpleNamespace(total=16_000, used=9_000, free=7_000),
        nvmlDeviceGetPowerUsage=249_500,  # milliwatts
        nvmlDeviceGetClockInfo=1_245,
        nvmlDeviceGetMaxClockInfo=1_380,
        nvmlDeviceGetCurrentClocksEventReasons=0x4,
    )
    assert sample_of(nvml, handle=None) == {
        "busy_percent": 97,
        "memory_used_bytes": 9_000,
        "memory_total_bytes": 16_000,
        "power_watts": 249.5,
        "clock_mhz": 1_245,
        "max_clock_mhz": 1_380,
        "throttled_by": ["power cap"],
    }


def test_what_a_gpu_cannot_tell_is_null() -> None:
    told = sample_of(nvml_that_answers(nvmlDeviceGetPowerUsage=0), handle=None)
    # A card that draws nothing tells its power; one that cannot tell says null.
    assert told.pop("power_watts") == 0
    assert len(told) == 6
    assert set(told.values()) == {None}


def test_an_older_driver_is_asked_by_the_older_name() -> None:
    nvml = nvml_that_answers(nvmlDeviceGetCurrentClocksThrottleReasons=0x20)
    assert sample_of(nvml, handle=None)["throttled_by"] == ["heat"]
