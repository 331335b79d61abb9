"""The device that trials compute on: memory, limits and clocks of a GPU, or of the processor."""

import contextlib
import gc
import os
import time

from .gpu_load import GpuSampler, GpuWatch, Unwatched
from .host_load import Busy, HostCounters, HostWatch, Load
from .process_state import ProcessState
from .profile_events import MARK

#: Bytes that a process may take beside a trial's memory on a processor: what libraries keep, thread stacks, rows.
MARGIN_BYTES = 512 << 20
#: What errors say that mean that there was no more memory.
OUT_OF_MEMORY_SIGNS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "bad_alloc",
    "cublas_status_alloc_failed",
)


class DeviceError(Exception):
    """A device that PyTorch cannot use."""


class Device:
    """A device, as the tuner names it (`cpu`, `cuda:1`) and as this process does, which sees the GPUs of its trial alone."""

    def __init__(self, name, torch, index=0):
        self.name = name
        self.is_gpu = name != "cpu"
        #: Number of the GPU in this process, and the device's name.
        self.index = index
        self.own_name = f"cuda:{index}" if self.is_gpu else "cpu"
        self._torch = torch
        self.process = ProcessState(torch)
        self._limits = None if self.is_gpu else data_limits()

    @classmethod
    def open(cls, name=None, index=0):
        """The device of this name; the GPU, or the processor, where none is given. Raises `DeviceError`.

        `index` is the number of a GPU among those that this process sees.
        """
        import torch

        name = name or ("cuda:0" if torch.cuda.is_available() else "cpu")
        if name != "cpu" and not name.startswith("cuda:"):
            raise DeviceError(f"`{name}` is no device of this worker: name `cpu`, or a GPU such as `cuda:0`")
        if name != "cpu" and not torch.cuda.is_available():
            raise DeviceError(f"PyTorch sees no GPU for `{name}`: install a build of torch for it, or name `cpu`")
        if name != "cpu" and index:
            torch.cuda.set_device(index)
        return cls(name, torch, index)

    @property
    def collectives(self):
        """The library by which ranks on such devices sum their gradients up."""
        return "nccl" if self.is_gpu else "gloo"

    def ready_links(self):
        """Makes GPUs go through the host that cannot reach one another: those boards stop with an error otherwise."""
        if not self.is_gpu:
            return
        from accelerate.utils import check_cuda_p2p_ib_support

        if not check_cuda_p2p_ib_support():
            for name in ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE"):
                os.environ.setdefault(name, "1")

    @property
    def memory_limiter(self):
        """The limiter of the process's memory beside the exact count, by the protocol's name."""
        return "address_space" if self._limits else "none"

    def synchronise(self):
        """Waits until all work is done."""
        if self.is_gpu:
            self._torch.cuda.synchronize()

    def is_lost(self):
        """Whether the device answers nothing more to this process."""
        try:
            self.synchronise()
        except RuntimeError:
            return True
        return False

    def mark(self):
        """A moment in the device's queue."""
        if not self.is_gpu:
            return time.perf_counter()
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start, end):
        """Seconds between two marks, once the device is synchronised."""
        return start.elapsed_time(end) / 1e3 if self.is_gpu else end - start

    def watch_load(self, ranks, is_busy=False):
        """Begins to watch what others do with the device of a trial on so many ranks.

        A machine that is busy is made up, for tests. What a GPU does not tell the search has said.
        """
        if is_busy:
            return HostWatch(Busy(), Load(threads=2, cores=2, ranks=1))
        if self.is_gpu:
            with contextlib.suppress(Unwatched):
                return GpuWatch(GpuSampler(self._torch.cuda.get_device_properties(self.index).uuid))
            return GpuWatch(None)
        host = HostCounters()
        return HostWatch(host, Load(max(self.threads(), 1), len(host.cpus), ranks))

    def reset_peak(self):
        """Starts a new peak of memory."""
        if self.is_gpu:
            self._torch.cuda.reset_peak_memory_stats()
            return
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as peak:
            peak.write("5")

    def peak(self):
        """Bytes since `reset_peak`: of tensors, which only a GPU counts by itself, and of the whole pool or process."""
        if self.is_gpu:
            return self._torch.cuda.max_memory_allocated(), self._torch.cuda.max_memory_reserved()
        return None, status_bytes("VmHWM")

    def highest(self, held_bytes, work):
        """Does the work and returns the most bytes of tensors that there were; before it there are those that are held.

        On a processor the takes and gives of PyTorch's allocator are recorded, those inside of ops too.
        """
        if self.is_gpu:
            self.reset_peak()
            work()
            self.synchronise()
            return self.peak()[0]
        profiler = self._torch.profiler
        with profiler.profile(activities=[profiler.ProfilerActivity.CPU], profile_memory=True) as recorded, self._limited():
            work()
        return held_bytes + most_taken(recorded.profiler.kineto_results.experimental_event_tree())

    def mark_phase(self, name):
        """A context that marks a phase of a step among the profiler's events."""
        return self._torch.profiler.record_function(MARK + name)

    def recorder(self):
        """A profiler of ops with their shapes and FLOPs, of a GPU's kernels, and of a processor's tensors."""
        profiler = self._torch.profiler
        kinds = [profiler.ProfilerActivity.CPU] + ([profiler.ProfilerActivity.CUDA] if self.is_gpu else [])
        return profiler.profile(activities=kinds, record_shapes=True, with_flops=True, profile_memory=not self.is_gpu)

    def recorded_peak(self, recorder, held_bytes):
        """The most bytes of tensors while a recorder ran, before which there were those that are held, and of pool or process."""
        most, whole = self.peak()
        if self.is_gpu:
            return most, whole
        return held_bytes + most_taken(recorder.profiler.kineto_results.experimental_event_tree()), whole

    def title(self):
        """What people call it."""
        return self._torch.cuda.get_device_properties(self.index).name if self.is_gpu else "cpu"

    def threads(self):
        """Threads that PyTorch computes with on the processor."""
        return self._torch.get_num_threads()

    def memory_bytes(self):
        """All memory of a GPU; `None` for the processor."""
        return self._torch.cuda.get_device_properties(self.index).total_memory if self.is_gpu else None

    def set_limit(self, limit_bytes, held_bytes=0):
        """Makes what goes above a limit, which includes the bytes that are held, out of memory; `None` lifts it."""
        if self.is_gpu:
            share = 1.0 if limit_bytes is None else min(limit_bytes / self.memory_bytes(), 1.0)
            self._torch.cuda.set_per_process_memory_fraction(share)
            return
        if not self._limits:
            return
        import resource

        soft, hard = self._limits
        if limit_bytes is not None:
            now = status_bytes("VmData") or 0
            most = now + max(limit_bytes - held_bytes, 0) + MARGIN_BYTES
            bounds = [bound for bound in (soft, hard) if bound != resource.RLIM_INFINITY]
            soft = min([most, *bounds])
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    @contextlib.contextmanager
    def _limited(self):
        """The limit up to the end of a context, behind which a profiler puts together what it recorded.

        The process is aborted where there is no memory for that, and the profiler's is none of the trial's.
        """
        try:
            yield
        finally:
            self.set_limit(None)

    def empty(self):
        """Gives memory back that nothing uses."""
        gc.collect()
        if self.is_gpu:
            with contextlib.suppress(RuntimeError):
                self._torch.cuda.empty_cache()


def most_taken(events):
    """The highest sum of takes and gives in a tree of recorded events."""
    waiting, changes = list(events), []
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.name == "[memory]":
            changes.append((event.start_time_ns, event.extra_fields.alloc_size))
    taken = most = 0
    # Gives of a moment come before its takes.
    for _, change in sorted(changes):
        taken += change
        most = max(most, taken)
    return most


def data_limits():
    """The limits on this process's data; `None` where the system does not keep them."""
    if status_bytes("VmData") is None:
        return None
    import resource

    return resource.getrlimit(resource.RLIMIT_DATA)


def status_bytes(key):
    """A field of this process's status in bytes, on Linux; `None` elsewhere."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    return None


def tensors_of(model):
    """The parameters and buffers of a model."""
    return [*model.parameters(), *model.buffers()]


def bytes_of(tensors):
    """Bytes of tensors, each storage once."""
    storages = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def weight_bytes(folder):
    """Bytes of the weight files in a model's folder."""
    endings = (".safetensors", ".bin")
    with contextlib.suppress(OSError):
        return sum(entry.stat().st_size for entry in os.scandir(folder) if entry.name.endswith(endings))
    return 0


def is_out_of_memory(error):
    """Whether an exception means that there was no more memory, which has many names."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return any(sign in text for sign in OUT_OF_MEMORY_SIGNS)
