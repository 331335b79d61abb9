"""Takes and gives of memory, marks and ops, as a profile has them."""

import contextlib
import json
import time
from types import SimpleNamespace

from . import cuda

_events = []
#: Marks and ops that ended while a profiler ran; `None` where none runs.
_spans = None


class ProfilerActivity:
    CPU = "cpu"


def take(size):
    """Takes bytes, or gives them back where there are fewer than none."""
    cuda.take(size)
    fields = SimpleNamespace(alloc_size=size)
    _events.append(SimpleNamespace(name="[memory]", children=[], start_time_ns=len(_events), extra_fields=fields))


@contextlib.contextmanager
def record_function(name):
    """Marks what runs within."""
    start = time.perf_counter()
    yield
    note(name, start)


def note(name, start, shapes=(), flops=0):
    """Notes a mark, or an op with the shapes of its inputs and its FLOPs, which ends now."""
    if _spans is None:
        return
    end = time.perf_counter()
    own_us = (end - start) * 1e6 if shapes else 0.0
    _spans.append(
        SimpleNamespace(
            name=name,
            device_type="DeviceType.CPU",
            time_range=SimpleNamespace(start=start * 1e6, end=end * 1e6),
            self_cpu_time_total=own_us,
            input_shapes=[list(shape) for shape in shapes],
            input_dtypes=["float"] * len(shapes),
            flops=flops,
        )
    )


class profile:
    def __init__(self, activities, profile_memory, record_shapes=False, with_flops=False):
        assert activities == [ProfilerActivity.CPU] and profile_memory

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        global _spans
        _spans = []
        _events.clear()
        self.profiler = SimpleNamespace(kineto_results=self)

    def stop(self):
        global _spans
        self._events, self._spans, _spans = list(_events), _spans, None

    def experimental_event_tree(self):
        return [SimpleNamespace(name="step", children=self._events)]

    def events(self):
        return self._spans

    def export_chrome_trace(self, path):
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": [{"name": span.name, "ph": "X"} for span in self._spans]}, file)
