"""Load of a GPU by others while a trial's steps are measured on it, and a clock that heat or the hardware holds down.

Its driver tells of that through NVML, which Python has in the package nvidia-ml-py. The rules are those of the native engine
(crates/engine/src/profile/sample/gpu.rs and crates/engine/src/profile/disturbance/gpu.rs).
"""

import contextlib
import os
import time
from typing import Any, NamedTuple

from .disturbance import CHUNK_S, Disturbance, mean

#: The namespace in which Linux numbers processes outside of all containers (PROC_PID_INIT_INO of include/linux/proc_ns.h).
NUMBERED_BY_THE_HOST = 0xEFFFFFFC
#: Bits by which a driver says what holds a clock down (nvml.h): heat, power, and hardware that does not say which.
HEAT, POWER, HARDWARE = 0x20 | 0x40, 0x04 | 0x80, 0x08


class Unwatched(Exception):
    """A GPU whose use by others is not told, with the reason."""


class GpuSample(NamedTuple):
    """A GPU at one moment; what it does not tell is `None`."""

    utilisation: Any = None
    other_utilisation: Any = None
    power_w: Any = None
    temperature_c: Any = None
    clock_mhz: Any = None
    #: Whether heat, or hardware that says no more, holds its clock down. Power does so whenever a large GPU is busy.
    is_held: bool = False


class GpuSampler:
    """A GPU as its driver's management library (NVML) sees it."""

    def __init__(self, uuid):
        """Finds a GPU by the identifier that PyTorch has of it. Raises `Unwatched`."""
        try:
            import pynvml
        except ImportError:
            raise Unwatched("that takes `pip install nvidia-ml-py`") from None
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            self._gpu = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except pynvml.NVMLError as error:
            raise Unwatched(f"NVML does not know it ({error})") from None
        self._told_us = 0

    def sample(self):
        """A look at the GPU."""
        rates, power = self._ask("nvmlDeviceGetUtilizationRates"), self._ask("nvmlDeviceGetPowerUsage")
        reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        return GpuSample(
            None if rates is None else rates.gpu / 100.0,
            self._other_utilisation(),
            None if power is None else power / 1e3,
            self._ask("nvmlDeviceGetTemperature", getattr(self._nvml, "NVML_TEMPERATURE_GPU", 0)),
            self._ask("nvmlDeviceGetClockInfo", getattr(self._nvml, "NVML_CLOCK_SM", 1)),
            bool(reasons & HEAT or (reasons & HARDWARE and not reasons & POWER)),
        )

    def _other_utilisation(self):
        """Part of the GPU that others kept busy since the last look; `None` where they cannot be told from this process."""
        running = self._ask("nvmlDeviceGetComputeRunningProcesses") or []
        told = self._ask("nvmlDeviceGetProcessUtilization", self._told_us)
        own = os.getpid()
        if told is None or all(process.pid != own for process in running):
            return None
        self._told_us = max((one.timeStamp for one in told), default=self._told_us)
        others = {}
        for one in told:
            if one.pid != own:
                others.setdefault(one.pid, []).append(one.smUtil / 100.0)
        return min(sum(map(mean, others.values())), 1.0)

    def _ask(self, name, *about):
        """The answer to a question; `None` where the driver, or this version of the library, does not tell."""
        try:
            return getattr(self._nvml, name)(self._gpu, *about)
        except (AttributeError, self._nvml.NVMLError):
            return None


class GpuWatch:
    """A GPU, as far as its driver tells of it: what takes the host's processors hardly slows it down."""

    def __init__(self, sampler):
        """Watches through a sampler; `None` tells nothing."""
        self._sampler = sampler
        self._samples = []
        self._last_s = time.monotonic()
        if sampler is not None:
            # Counters tell what happened since the last look: this one only begins.
            sampler.sample()

    def step_ended(self):
        """Takes note that a measured step is over."""
        if self._sampler is not None and time.monotonic() - self._last_s >= CHUNK_S:
            self._look()

    def finish(self):
        """Ends the watch and returns what it found."""
        if self._sampler is not None and not self._samples:
            self._look()
        samples = self._samples
        readings = {
            "gpu_utilisation": mean(known(sample.utilisation for sample in samples)),
            "gpu_power_w": mean(known(sample.power_w for sample in samples)),
            "gpu_temperature_c": max(known(sample.temperature_c for sample in samples), default=None),
            "gpu_clock_mhz": mean(known(sample.clock_mhz for sample in samples)),
        }
        return Disturbance(lost_on_gpu(samples), 1, readings)

    def _look(self):
        self._samples.append(self._sampler.sample())
        self._last_s = time.monotonic()


def why_unwatched(uuid):
    """Why the use of a GPU by others is not told; `None` where it is."""
    try:
        GpuSampler(uuid)
    except Unwatched as reason:
        return str(reason)
    with contextlib.suppress(OSError):
        if os.stat("/proc/self/ns/pid").st_ino != NUMBERED_BY_THE_HOST:
            return "this container numbers processes by itself, and the driver does not"
    return None


def lost_on_gpu(samples):
    """Share of a GPU's time that was lost: what others kept busy, or what a clock below its best cost."""
    others = mean(known(sample.other_utilisation for sample in samples)) or 0.0
    clocks = known(sample.clock_mhz for sample in samples)
    is_held = any(sample.is_held for sample in samples) and max(clocks, default=0.0) > 0.0
    slower = 1.0 - mean(clocks) / max(clocks) if is_held else 0.0
    return min(max(others, slower, 0.0), 1.0)


def known(values):
    """The values that there are."""
    return [value for value in values if value is not None]
