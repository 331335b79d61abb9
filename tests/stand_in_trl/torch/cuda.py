"""GPUs, as many as `STAND_IN_GPUS` says: none where it says nothing. They count what is taken, and give no more than they may."""

import os
import time
from types import SimpleNamespace

#: Bytes of a GPU, and those that are always taken.
TOTAL_BYTES, BASE_BYTES = 22 << 30, 1 << 20
_held = _most = BASE_BYTES
_limit = TOTAL_BYTES


def device_count():
    return 0 if os.environ.get("CUDA_VISIBLE_DEVICES") == "" else int(os.environ.get("STAND_IN_GPUS", 0))


def is_available():
    return device_count() > 0


def get_device_properties(index):
    # An identifier that no driver knows: nobody watches it.
    return SimpleNamespace(name="NVIDIA L4", total_memory=TOTAL_BYTES, uuid="stand-in")


def take(size):
    """Takes bytes, or gives them back where there are fewer than none."""
    global _held, _most
    if not is_available():
        return
    if _held + size > _limit:
        raise RuntimeError("CUDA out of memory")
    _held += size
    _most = max(_most, _held)


def set_per_process_memory_fraction(share):
    global _limit
    _limit = share * TOTAL_BYTES


def reset_peak_memory_stats():
    global _most
    _most = _held


def max_memory_allocated():
    return _most


def max_memory_reserved():
    return _most


def synchronize():
    pass


def empty_cache():
    pass


class Event:
    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = time.perf_counter()

    def elapsed_time(self, other):
        return (other.at - self.at) * 1e3
