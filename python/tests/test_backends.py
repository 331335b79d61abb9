"""The worker of `backend: trl` and `unsloth` without PyTorch: what it reads and writes, and what it counts.

    python3 -m unittest discover -s python/tests -p test_backends.py
"""

import concurrent.futures
import contextlib
import io
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
import unittest.mock
from pathlib import Path

try:
    import peft_tune.backends  # noqa: F401 - as a user has it
except ImportError:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peft_tune.backends import (
    base_model,
    device,
    disturbance,
    evaluation,
    faults,
    first_adapter,
    gpu_load,
    host_load,
    kinds,
    launched,
    losses,
    preference,
    probe,
    profile_events,
    protocol,
    rank_group,
    ranks,
    rewards,
    rival,
    serve,
    settings,
    steady,
    tools,
    trainer,
    trial_files,
    unsloth,
)
from peft_tune.backends.control import Control
from peft_tune.backends.device import Device
from peft_tune.backends.process_state import ProcessState

#: Tables that tests of the native engine write.
GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden" / "backends"


class Wire:
    """A pipe that a worker writes to, and its lines."""

    def __init__(self):
        self._reader, writer = os.pipe()
        self._writer = writer
        self.outbox = protocol.Outbox(writer)
        self._lines = os.fdopen(self._reader, "rb")

    def next(self):
        return json.loads(self._lines.readline())

    def stop_reading(self):
        """Reads no more, so that whoever writes learns that nobody does."""
        self._lines.close()

    def close(self):
        self.stop_reading()
        os.close(self._writer)


class OnAWire(unittest.TestCase):
    def setUp(self):
        self.wire = Wire()
        self.addCleanup(self.wire.close)
        self.control = Control(self.wire.outbox)

    def later(self, work, *given):
        """Starts work in a thread, which ends before the wire does: the next one may have the same descriptor."""
        thread = threading.Thread(target=work, args=given, daemon=True)
        thread.start()
        self.addCleanup(self.ended, thread)
        return thread

    def ended(self, thread):
        """Waits for the end of a thread that has nobody to write to."""
        self.wire.stop_reading()
        thread.join(5)
        self.assertFalse(thread.is_alive())


class Messages(OnAWire):
    def test_a_message_is_one_line(self):
        self.wire.outbox.say(protocol.phase(2**64 - 1, "train"))
        self.assertEqual(self.wire.next(), {"event": "phase", "number": 2**64 - 1, "phase": "train"})

    def test_what_is_not_finite_is_left_out(self):
        self.assertEqual(protocol.clean({"a": 1, "b": math.nan, "c": math.inf, "d": None}), {"a": 1.0})
        told = protocol.step(1, "train", {"step": 1, "loss": 2.0, "grad_norm": math.inf})
        self.assertIsNone(told["step"]["grad_norm"])
        with self.assertRaises(ValueError):
            self.wire.outbox.say({"loss": math.nan})

    def test_a_greeting_tells_the_version(self):
        hello = protocol.hello("0.1.0", "cpu", 2, [0, 1], "address_space")
        self.assertEqual((hello["protocol"], hello["process"]), (protocol.PROTOCOL, os.getpid()))
        self.assertEqual(hello["capabilities"], ["cancel", "hold", "turns", "stop"])

    def test_an_error_is_cut(self):
        message = protocol.crashed("train", RuntimeError("x" * 5000))["message"]
        self.assertTrue(message.startswith("RuntimeError: xx"))
        self.assertEqual(len(message), protocol.MOST_CHARACTERS)


class Holds(OnAWire):
    def test_a_hold_lasts_until_it_is_taken_back(self):
        self.assertEqual(self.control.wait_while_held(1), 0.0)
        self.control.hold(7)
        waited = []
        thread = self.later(lambda: waited.append(self.control.wait_while_held(1)))
        self.assertEqual(self.wire.next(), {"event": "held", "turn": 7})
        time.sleep(0.03)
        self.control.resume()
        thread.join(5)
        self.assertGreater(waited[0], 0.02)

    def test_a_hold_that_follows_on_another_is_answered_too(self):
        self.control.hold(1)
        thread = self.later(self.control.wait_while_held, 1)
        self.assertEqual(self.wire.next()["turn"], 1)
        self.control.hold(2)
        self.assertEqual(self.wire.next()["turn"], 2)
        self.control.resume()
        thread.join(5)
        self.assertFalse(thread.is_alive())

    def test_a_profile_phase_waits_for_its_own_turn_and_no_longer_than_its_trial(self):
        self.assertEqual(self.control.wait_for_turn(1), 0.0)
        self.control.take_turns(True)
        self.control.hold(3)
        self.control.grant(1)
        self.control.wait_for_turn(1)
        self.assertEqual(self.control.wait_while_held(1), 0.0)
        thread = self.later(self.control.wait_for_turn, 2)
        self.control.grant(1)
        self.control.cancel(2)
        thread.join(5)
        self.assertFalse(thread.is_alive())
        self.assertTrue(self.control.is_stopped(2) and not self.control.is_stopped(1))

    def test_a_trial_that_was_cancelled_may_run_again(self):
        self.control.cancel(1)
        self.control.hold(4)
        self.control.begin(1)
        self.assertFalse(self.control.is_stopped(1))
        self.assertEqual(self.control.wait_while_held(1), 0.0)

    def test_requests_go_on_to_where_the_trial_runs_those_that_came_before_it_too(self):
        said = []
        self.control.hold(1)
        self.control.grant(5)
        self.control.hold(2)
        self.control.cancel(5)
        self.control.cancel(4)
        self.control.relay_to(5, said.append)
        self.control.resume()
        self.control.set_under_way(5)
        self.control.coordinator_gone()
        self.control.relay_to(5, None)
        self.control.hold(3)
        requests = [(one["request"], one.get("number", one.get("turn"))) for one in said]
        expected = [("cancel", 5), ("measure", 5), ("hold", 2), ("resume", None), ("cancel", 5)]
        self.assertEqual(requests, expected)

    def test_nobody_is_waited_for_who_does_not_read(self):
        closed = Wire()
        closed.close()
        control = Control(closed.outbox)
        control.hold(1)
        control.wait_while_held(1)
        self.assertTrue(control.is_alone() and control.is_stopped(1))


class Requests(OnAWire):
    def setUp(self):
        super().setUp()
        self.all_told = threading.Event()
        self.addCleanup(self.all_told.set)

    def lines(self, *requests):
        """Lines of requests, the last of which is to stop; the tuner closes its end after the worker's last line."""
        yield from (json.dumps(request).encode() + b"\n" for request in requests)
        yield from (b"garbage\n", b'{"request": "stop"}\n')
        self.all_told.wait(5)

    def serve(self, *requests):
        """Serves requests, and returns the trials that ran and what was said of the rest."""
        ran = []

        def run(request):
            self.assertEqual(self.control.under_way(), request["number"])
            ran.append(request["number"])

        with contextlib.redirect_stderr(io.StringIO()) as told:
            serve.serve(self.lines(*requests), self.wire.outbox, self.control, run, lambda: None)
        return ran, told.getvalue()

    def test_trials_run_in_turn_and_what_is_no_request_is_passed_over(self):
        hello = {"request": "hello", "protocol": protocol.PROTOCOL, "version": "0", "heartbeat_s": 0}
        trials = [{"request": "trial", "number": number} for number in (3, 4)]
        ran, told = self.serve(hello, trials[0], {"request": "fly"}, trials[1])
        self.assertEqual(ran, [3, 4])
        self.assertIn("not a request", told)
        self.assertEqual(self.wire.next(), {"event": "bye"})

    def test_a_tuner_of_another_version_is_refused(self):
        hello = {"request": "hello", "protocol": 3, "version": "0.0.9", "heartbeat_s": 0}
        with self.assertRaisesRegex(serve.OtherProtocol, r"speaks protocol 3 \(peft-tune 0.0.9\)"):
            self.serve(hello)

    def test_signs_of_life_come_while_a_trial_hangs(self):
        self.control.set_under_way(5)
        self.later(serve.Heartbeat(0.01, self.wire.outbox, self.control).run)
        for _ in range(2):
            beat = self.wire.next()
            self.assertEqual((beat["event"], beat["number"]), ("heartbeat", 5))


class Steady(unittest.TestCase):
    def test_a_warm_up_ends_when_two_steps_agree(self):
        detector = steady.WarmupDetector(10)
        for seconds in (9.0, 4.0, 2.0):
            detector.push(seconds, 100)
            self.assertFalse(detector.is_over)
        detector.push(2.1, 100)
        self.assertTrue(detector.is_over)

    def test_a_warm_up_compares_by_token_and_gives_up_at_its_limit(self):
        detector = steady.WarmupDetector(10)
        for seconds, tokens in ((5.0, 100), (1.0, 100), (2.0, 200)):
            detector.push(seconds, tokens)
        self.assertTrue(detector.is_over)
        self.assertTrue(steady.WarmupDetector(0).is_over)
        detector = steady.WarmupDetector(2)
        detector.push(8.0, 1)
        detector.push(4.0, 1)
        self.assertTrue(detector.is_over)

    def test_one_slow_step_does_not_move_the_median(self):
        found = steady.throughput([(1.0, 100), (1.0, 100), (5.0, 100)])
        self.assertEqual((found.tokens_per_s, found.spread), (100.0, 0.0))
        self.assertAlmostEqual(found.slow_steps, 1 / 3)
        self.assertIsNone(steady.throughput([]))

    def test_the_median_of_few_steps_may_lie_in_their_whole_range(self):
        self.assertEqual(steady.median([3.0, 1.0]), 2.0)
        self.assertEqual(steady.median_interval([1.0, 2.0, 5.0]), 2.0)
        self.assertIsNone(steady.median([]))

    def test_a_profile_has_a_warm_up_and_then_its_steps(self):
        begun = []

        def watch():
            begun.append(pushed)
            return host_load.HostWatch(host_load.Busy(), TWO_PROCESSORS)

        pushed = 0
        profile = steady.Profile({"steps": 2, "max_warmup_steps": 3}, watch)
        while not profile.is_over:
            pushed += 1
            seconds = {"total": 1.0, "data": 0.1, "forward": 0.2, "backward": 0.5, "optimizer": 0.2}
            profile.push({"tokens": 50, "seconds": seconds})
        metrics = profile.metrics()
        self.assertEqual((pushed, metrics["warmup_steps"], metrics["measured_steps"]), (5, 3, 2))
        # The watch is beside the measured steps alone.
        self.assertEqual((begun, profile.disturbance().lost), ([3], 0.5))
        steady.Profile({"steps": 1, "max_warmup_steps": 0}, watch)
        self.assertEqual(len(begun), 2)
        self.assertEqual((metrics["throughput"], metrics["step_s"], metrics["backward_s"]), (50.0, 1.0, 0.5))

    @unittest.skipUnless(GOLDEN.is_dir(), "the engine's numbers are not here")
    def test_the_numbers_are_the_engine_s(self):
        for case in json.loads((GOLDEN / "steady.json").read_text()):
            found = steady.throughput([tuple(step) for step in case["steps"]])
            for name in ("tokens_per_s", "spread", "interval"):
                self.assertAlmostEqual(getattr(found, name), case[name], delta=1e-9 * max(abs(case[name]), 1.0))


#: A measurement with as many threads as there are processors.
TWO_PROCESSORS = host_load.Load(threads=2, cores=2, ranks=1)


class Scripted:
    """Counters that were written down."""

    def __init__(self, readings):
        self._readings = [host_load.Counters(**reading) for reading in readings]

    def read(self):
        return self._readings.pop(0)


def busy_for(seconds):
    """Keeps a processor busy."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


class HostLoads(unittest.TestCase):
    @unittest.skipUnless(GOLDEN.is_dir(), "the engine's numbers are not here")
    def test_what_was_lost_is_what_the_engine_says(self):
        for case in json.loads((GOLDEN / "disturbed.json").read_text())["host"]:
            watch = host_load.HostWatch(Scripted(case["readings"]), host_load.Load(**case["load"]))
            for _ in case["readings"][2:]:
                watch.step_ended()
            found = watch.finish()
            readings = found.readings
            for value, expected in (
                (found.lost, case["lost"]),
                (found.share(), case["share"]),
                (readings["own_cpu_share"], case["own_share"]),
                (readings["cpu_pressure"], case["waiting_share"]),
                (readings["other_cores"], case["other_cores"]),
                (readings["clock_mhz"], case["clock_mhz"]),
            ):
                if expected is None:
                    self.assertIsNone(value, case)
                else:
                    self.assertAlmostEqual(value, expected, delta=1e-9, msg=case)

    def test_the_files_of_linux_are_read(self):
        with tempfile.TemporaryDirectory() as root:
            for file, text in (
                ("proc/pressure/cpu", "some avg10=1.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 total=0\n"),
                ("proc/stat", "cpu  999 0 0 0\ncpu0 100 20 30 5000 70 4 6 50 0 0\ncpu1 900 0 0 0\ncpu2 0 0 40 0\nintr 7\n"),
                ("sys/devices/system/cpu/cpu2/cpufreq/scaling_cur_freq", "2400000\n"),
                ("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "<unknown>\n"),
            ):
                path = Path(root, file)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            counters = host_load.HostCounters(root)
            counters.cpus = [0, 2]
            found = counters.read()
            self.assertEqual((found.waiting_s, found.clock_mhz, found.stolen_s), (2.5, 2400.0, 0.5))
            self.assertAlmostEqual(found.busy_s, 2.0)
        with tempfile.TemporaryDirectory() as root:
            found = host_load.HostCounters(root).read()
            self.assertEqual((found.waiting_s, found.busy_s, found.clock_mhz), (None, None, None))
            self.assertGreater(found.own_s, 0.0)

    @unittest.skipUnless(sys.platform == "linux", "the clocks of other processes are Linux'")
    def test_processes_that_read_rows_are_no_others(self):
        counters = host_load.HostCounters()
        reader = multiprocessing.get_context("fork").Process(target=busy_for, args=(60.0,), daemon=True)
        reader.start()
        try:
            while (read := counters.read()).own_s - time.process_time() < 0.05:
                time.sleep(0.01)
        finally:
            reader.kill()
            reader.join()
        self.assertIsNone(read.waiting_s)
        # What it has used is not lost when it ends.
        self.assertGreater(counters.read().own_s - time.process_time(), 0.04)

    @unittest.skipUnless(sys.platform == "linux", "others are counted on Linux")
    def test_a_loop_that_takes_the_processors_is_noticed(self):
        cpus = len(host_load.HostCounters().cpus)
        loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cpus)]
        try:
            began, share = time.monotonic(), 0.0
            # A busy machine may not let a loop run for a while.
            while not share and time.monotonic() - began < 60:
                watch = host_load.HostWatch(host_load.HostCounters(), host_load.Load(cpus, cpus, 1))
                for _ in range(3):
                    busy_for(0.1)
                    watch.step_ended()
                share = watch.finish().share()
        finally:
            for loop in loops:
                loop.kill()
                loop.wait()
        self.assertGreater(share, 0.0)

    def test_a_disturbed_measurement_is_marked_with_what_it_may_have_lost(self):
        metrics = {"throughput": 500.0, "throughput_interval": 0.02}
        disturbance.mark(metrics, 0.0)
        self.assertEqual(metrics, {"throughput": 500.0, "throughput_interval": 0.02})
        disturbance.mark(metrics, 0.5)
        self.assertEqual((metrics["disturbed"], metrics["throughput_interval"]), (0.5, 1.0))
        metrics = {}
        disturbance.mark(metrics, 7.0)
        self.assertAlmostEqual(metrics["throughput_interval"], 9.0)


class StandInNvml(types.ModuleType):
    """The library of a driver that knows one GPU, on which this process and another compute."""

    class NVMLError(Exception):
        pass

    def __init__(self):
        super().__init__("pynvml")
        self.clock, self.reasons, self.asked = 2000, 0x04, []
        self.processes = [os.getpid(), 7]

    def nvmlInit(self):  # noqa: N802 - the library's name, as those below
        self.asked.append("init")

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        if uuid != "GPU-1a":
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetComputeRunningProcesses(self, gpu):  # noqa: N802
        return [types.SimpleNamespace(pid=process) for process in self.processes]

    def nvmlDeviceGetProcessUtilization(self, gpu, since):  # noqa: N802
        self.asked.append(since)
        told = [(os.getpid(), 90, 5), (7, 20, 6), (7, 40, 7), (8, 10, 6)]
        return [types.SimpleNamespace(pid=pid, smUtil=used, timeStamp=at) for pid, used, at in told]

    def nvmlDeviceGetClockInfo(self, gpu, kind):  # noqa: N802
        return self.clock

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu):  # noqa: N802
        return self.reasons

    def nvmlDeviceGetPowerUsage(self, gpu):  # noqa: N802
        raise self.NVMLError("Not Supported")


class GpuLoads(unittest.TestCase):
    def setUp(self):
        self.nvml = StandInNvml()
        patched = unittest.mock.patch.dict(sys.modules, pynvml=self.nvml)
        patched.start()
        self.addCleanup(patched.stop)

    def test_others_are_told_from_this_process(self):
        sampler = gpu_load.GpuSampler("1a")
        found = sampler.sample()
        self.assertAlmostEqual(found.other_utilisation, 0.4)
        self.assertEqual((found.clock_mhz, found.power_w, found.temperature_c, found.is_held), (2000, None, None, False))
        sampler.sample()
        self.assertEqual(self.nvml.asked, ["init", 0, 7])
        # The driver's numbers are others than those of a container.
        self.nvml.processes = [31, 32]
        self.assertIsNone(sampler.sample().other_utilisation)

    def test_a_measurement_has_what_the_driver_told_meanwhile(self):
        watch = gpu_load.GpuWatch(gpu_load.GpuSampler("1a"))
        watch.step_ended()
        found = watch.finish()
        self.assertAlmostEqual(found.share(), 0.4)
        self.assertEqual((found.readings["gpu_clock_mhz"], found.readings["gpu_power_w"]), (2000, None))
        unknown = gpu_load.GpuWatch(None)
        unknown.step_ended()
        self.assertEqual((unknown.finish().share(), set(unknown.finish().readings.values())), (0.0, {None}))

    @unittest.skipUnless(GOLDEN.is_dir(), "the engine's numbers are not here")
    def test_what_was_lost_is_what_the_engine_says(self):
        for case in json.loads((GOLDEN / "disturbed.json").read_text())["gpu"]:
            samples = [gpu_load.GpuSample(**sample) for sample in case["samples"]]
            self.assertAlmostEqual(gpu_load.lost_on_gpu(samples), case["lost"], delta=1e-9)

    def test_a_clock_is_held_by_heat_or_by_hardware_that_says_no_more(self):
        for reasons, is_held in ((0x01, False), (0x04, False), (0x48, True), (0x24, True), (0x08, True), (0x88, False)):
            self.nvml.reasons = reasons
            self.assertEqual(gpu_load.GpuSampler("1a").sample().is_held, is_held, hex(reasons))

    @unittest.skipUnless(sys.platform == "linux", "namespaces are Linux'")
    def test_why_a_gpu_is_not_watched_is_said(self):
        self.assertIn("NVML does not know it (Not Found)", gpu_load.why_unwatched("2b"))
        with unittest.mock.patch.object(gpu_load, "NUMBERED_BY_THE_HOST", os.stat("/proc/self/ns/pid").st_ino):
            self.assertIsNone(gpu_load.why_unwatched("1a"))
        with unittest.mock.patch.object(gpu_load, "NUMBERED_BY_THE_HOST", 0):
            self.assertIn("this container", gpu_load.why_unwatched("1a"))
        with unittest.mock.patch.dict(sys.modules, pynvml=None):
            self.assertIn("pip install nvidia-ml-py", gpu_load.why_unwatched("1a"))

    def test_a_device_is_watched_as_what_it_is(self):
        cuda = StandInCuda()
        cuda.get_device_properties = lambda index: types.SimpleNamespace(uuid="1a")
        gpu = Device("cuda:0", types.SimpleNamespace(cuda=cuda)).watch_load(1)
        self.assertAlmostEqual(gpu.finish().lost, 0.4)
        torch = types.SimpleNamespace(get_num_threads=lambda: 2)
        self.assertIn("own_cpu_share", Device("cpu", torch).watch_load(1).finish().readings)
        self.assertEqual(Device("cpu", torch).watch_load(1, is_busy=True).finish().share(), 0.75)


class StandInCuda:
    """What a device asks of `torch.cuda`."""

    def __init__(self):
        self.told, self.now = [], 0.0

    def is_available(self):
        return True

    def synchronize(self):
        self.told.append("synchronize")

    def reset_peak_memory_stats(self):
        self.told.append("reset")

    def max_memory_allocated(self):
        return 70

    def max_memory_reserved(self):
        return 90

    def set_per_process_memory_fraction(self, share):
        self.told.append(share)

    def get_device_properties(self, index):
        return types.SimpleNamespace(name="stand-in", total_memory=1000)

    def empty_cache(self):
        self.told.append("empty")

    def Event(self, enable_timing):  # noqa: N802 - torch's name
        cuda = self

        class Event:
            def record(self):
                cuda.now += 5.0
                self.at = cuda.now

            def elapsed_time(self, other):
                return other.at - self.at

        return Event()


class Devices(unittest.TestCase):
    def gpu(self):
        cuda = StandInCuda()
        return Device("cuda:1", types.SimpleNamespace(cuda=cuda)), cuda

    def test_a_gpu_counts_for_itself(self):
        gpu, cuda = self.gpu()
        self.assertEqual((gpu.name, gpu.own_name, gpu.memory_limiter), ("cuda:1", "cuda:0", "none"))
        self.assertEqual(gpu.highest(30, lambda: cuda.told.append("work")), 70)
        self.assertEqual(cuda.told, ["reset", "work", "synchronize"])
        self.assertEqual(gpu.peak(), (70, 90))
        start, end = gpu.mark(), gpu.mark()
        self.assertAlmostEqual(gpu.seconds(start, end), 0.005)

    def test_a_rank_takes_its_own_of_several_gpus(self):
        cuda, seen = StandInCuda(), []
        cuda.set_device = seen.append
        cuda.get_device_properties = lambda index: types.SimpleNamespace(total_memory=1000 + index)
        with unittest.mock.patch.dict(sys.modules, torch=types.SimpleNamespace(cuda=cuda)):
            gpu = Device.open("cuda:5", 1)
        self.assertEqual((gpu.own_name, gpu.collectives, gpu.memory_bytes(), seen), ("cuda:1", "nccl", 1001, [1]))
        self.assertEqual(Device("cpu", None).collectives, "gloo")

    def test_a_limit_is_a_share_of_a_gpu(self):
        gpu, cuda = self.gpu()
        gpu.set_limit(250, 100)
        gpu.set_limit(4000)
        gpu.set_limit(None)
        self.assertEqual(cuda.told, [0.25, 1.0, 1.0])

    def test_a_gpu_that_answers_nothing_is_lost(self):
        gpu, cuda = self.gpu()
        self.assertFalse(gpu.is_lost())

        def fail():
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        cuda.synchronize = fail
        self.assertTrue(gpu.is_lost())

    def test_the_processor_s_takes_are_added_up(self):
        def event(at, size, children=()):
            fields = types.SimpleNamespace(alloc_size=size)
            of = {"start_time_ns": at, "extra_fields": fields, "children": list(children)}
            return types.SimpleNamespace(name="[memory]", **of)

        inner = [event(2, 50), event(3, -50)]
        op = types.SimpleNamespace(name="aten::mm", children=inner)
        self.assertEqual(device.most_taken([event(1, 30), op, event(4, 10)]), 80)

    @unittest.skipUnless(sys.platform == "linux", "the limit is one of Linux")
    def test_the_processor_s_limit_is_lifted_again(self):
        import resource

        before = resource.getrlimit(resource.RLIMIT_DATA)
        cpu = Device("cpu", None)
        cpu.set_limit(1 << 20)
        limited = resource.getrlimit(resource.RLIMIT_DATA)
        cpu.set_limit(None)
        self.assertEqual(resource.getrlimit(resource.RLIMIT_DATA), before)
        self.assertGreater(limited[0], device.MARGIN_BYTES)
        self.assertIsNone(cpu.peak()[0])
        self.assertEqual(cpu.memory_limiter, "address_space")


class ProcessStates(unittest.TestCase):
    def test_a_training_leaves_no_kernel_graph_or_precision_behind(self):
        told, toy = [], types.ModuleType("transformers.models.toy.modeling_toy")
        toy.norm = plain = object()
        gradients = types.SimpleNamespace(_reset_state=lambda: told.append("gradients"))
        modules = {
            toy.__name__: toy,
            "accelerate": types.ModuleType("accelerate"),
            "accelerate.state": types.SimpleNamespace(GradientState=gradients),
            "torch._dynamo": types.SimpleNamespace(reset=lambda: told.append("graphs")),
        }
        torch = types.SimpleNamespace(backends=types.SimpleNamespace(fp32_precision="none"))
        state = ProcessState(torch)
        with unittest.mock.patch.dict(sys.modules, modules):
            chosen = types.SimpleNamespace(use_liger_kernel=True, torch_compile=True)
            torch.backends.fp32_precision = "tf32"
            state.begin(chosen)
            toy.norm = object()
            state.begin(chosen)
            self.assertIs(toy.norm, plain)
            self.assertEqual(torch.backends.fp32_precision, "tf32")
            toy.norm = object()
            state.forget_trial(chosen)
        self.assertIs(toy.norm, plain)
        self.assertEqual(torch.backends.fp32_precision, "none")
        self.assertEqual(told, ["gradients", "graphs"] * 3)


def recorded(name, start, end, device="DeviceType.CPU", **more):
    """An event of PyTorch's profiler."""
    fields = {"input_shapes": [], "input_dtypes": [], "flops": 0, "kernels": [], "self_device_time_total": 0.0}
    fields |= {"self_cpu_time_total": end - start, "is_user_annotation": False, **more}
    time_range = types.SimpleNamespace(start=start, end=end)
    return types.SimpleNamespace(name=name, device_type=device, time_range=time_range, **fields)


def marks(*spans):
    """The marks of phases, each with its moments."""
    return [recorded(profile_events.MARK + name, start, end) for name, start, end in spans]


class Recorded(unittest.TestCase):
    def test_an_op_belongs_to_the_phase_that_it_began_in(self):
        weights = {"input_shapes": [[8, 16], [16, 4], []], "input_dtypes": ["float", "c10::BFloat16", "Scalar"], "flops": 1024}
        events = [
            *marks(("data", 0, 10), ("passes", 10, 100), ("forward", 10, 50)),
            recorded("aten::mm", 20, 30, **weights),
            recorded("aten::mm", 31, 39, **weights),
            recorded("aten::mul", 60, 65),
            recorded("aten::add_", 101, 103),
            recorded("MmBackward0", 50, 90),
            recorded("autograd::engine::evaluate_function: MmBackward0", 50, 95),
            recorded("Optimizer.step#AdamW.step", 100, 150),
        ]
        dimensions = profile_events.names_of_dimensions([(2, 4), (1, 16)], [types.SimpleNamespace(shape=(16, 4))])
        # A size that weights have too is a number; 8 tokens are those of a micro-batch.
        self.assertEqual(dimensions, {8: "T"})
        ops = profile_events.ops_of(events, 2, 50e-6, dimensions, is_gpu=False)
        self.assertEqual(
            [(one["name"], one["phase"], one["shape"], one["storage"], one["calls"]) for one in ops],
            [
                ("aten::mm", "forward", "Tx16 16x4", "f32", 1.0),
                ("aten::mul", "backward", "", "", 0.5),
                ("aten::add_", "optimizer", "", "", 0.5),
            ],
        )
        self.assertAlmostEqual(ops[0]["seconds"], 9e-6)
        self.assertAlmostEqual(ops[0]["share"], 0.18)
        self.assertEqual((ops[0]["flops"], ops[0]["bytes"]), (1024.0, 8 * 16 * 4 + 16 * 4 * 2))

    def test_a_gpu_waits_between_its_kernels_for_launches_and_for_the_host(self):
        gpu = "DeviceType.CUDA"
        kernel = types.SimpleNamespace(name="sgemm", duration=40.0)
        events = [
            *marks(("data", 0, 10), ("passes", 10, 500)),
            recorded("aten::mm", 20, 30, kernels=[kernel], self_device_time_total=40.0),
            recorded("sgemm", 100, 140, gpu),
            recorded("Memcpy HtoD (Pageable -> Device)", 130, 150, gpu),
            recorded("sgemm", 160, 200, gpu),
            recorded("fill", 400, 500, gpu),
            recorded("peft-tune passes", 100, 500, gpu),
        ]
        found = profile_events.timeline_of(events, 2)
        self.assertAlmostEqual(found["seconds"], 500e-6)
        self.assertAlmostEqual(found["idle_share"], 1 - 190 / 500)
        self.assertEqual(found["gaps"], 1.0)
        self.assertAlmostEqual(found["launch_gap_s"], 5e-6)
        self.assertAlmostEqual(found["host_gap_s"], 100e-6)
        self.assertAlmostEqual(found["transfer_s"], 10e-6)
        self.assertAlmostEqual(found["transfer_overlap"], 0.5)
        self.assertEqual([one["name"] for one in found["kernels"][:2]], ["fill", "sgemm"])
        self.assertEqual(found["kernels"][1]["ops"], [["aten::mm", 1.0]])
        ops = profile_events.ops_of(events, 2, 250e-6, {}, is_gpu=True)
        self.assertEqual([(one["name"], one["seconds"]) for one in ops], [("aten::mm", 20e-6)])
        self.assertIsNone(profile_events.timeline_of(marks(("data", 0, 10)), 1))


class Steps(unittest.TestCase):
    def test_a_step_is_told_with_its_parts(self):
        told = []

        class Mask:
            def __init__(self, count):
                self.count, self.shape = count, (2, 8)

            def sum(self):
                return self.count

            def __getitem__(self, _):
                return self

            def __ne__(self, _):
                return self

        watch = trainer.StepWatch(Device("cpu", None), lambda: 0.25, lambda event, rows: told.append((event, rows)))
        watch.trainer = types.SimpleNamespace(_get_learning_rate=lambda: 0.1)
        watch.counts = kinds.KINDS["sft"].counts
        batch = {"input_ids": Mask(0), "attention_mask": Mask(12), "labels": Mask(7)}
        for number in (1, 2):
            watch.begin_step()
            watch.got_rows([batch, batch])
            for _ in range(2):
                watch.micro_batch(lambda: watch.forward(lambda: 0.5))
            watch.has_norm(3.0)
            watch.end_optimizer()
            watch.end_step(number)
        (event, rows), (second, _) = told
        self.assertEqual((event["loss"], event["tokens"], event["target_tokens"], rows), (1.0, 24, 14, 4))
        self.assertEqual((event["learning_rate"], event["grad_norm"], second["step"]), (0.1, 3.0, 2))
        # Waiting for neighbours is no part of a step.
        self.assertLess(second["seconds"]["total"], 0.0)
        self.assertEqual(set(event["seconds"]), {"data", "forward", "backward", "optimizer", "total"})

    def test_documents_of_one_long_row_are_counted_by_their_places(self):
        class Row(list):
            shape = (1, 6)

            def numel(self):
                return len(self)

            def __eq__(self, other):
                return Row(one == other for one in self)

            def __ne__(self, other):
                return Row(one != other for one in self)

            def __getitem__(self, _):
                return Row(list(self)[1:])

            def sum(self):
                return sum(self)

        batch = {"input_ids": Row([5] * 6), "labels": Row([-100, 1, 2, -100, 3, -100]), "position_ids": Row([0, 1, 2, 0, 1, 0])}
        self.assertEqual(kinds.counts_of_tokens(batch), (3, 6, 3))
        self.assertEqual(kinds.counts_of_tokens({**batch, "attention_mask": Row([1, 1, 1, 1, 0, 0])}), (1, 4, 3))

    def test_a_training_diverges_as_the_engine_s(self):
        def step(loss, norm=1.0):
            return {"step": 1, "loss": loss, "grad_norm": norm}

        full = losses.Losses(is_fp16=False)
        full.check(step(2.0))
        full.check(step(11.9))
        for broken in (step(12.0), step(math.nan), step(2.0, math.inf)):
            with self.assertRaises(losses.Ended) as ended:
                full.check(broken)
            self.assertEqual(ended.exception.reason, {"kind": "diverged", "at_step": 1, "loss": 11.9, "cause": "rate"})
        calm = losses.Losses(is_fp16=False)
        calm.check(step(2.0))
        with self.assertRaises(losses.Ended) as ended:
            calm.check(step(math.nan))
        # Nothing that the numbers tell.
        self.assertEqual(ended.exception.reason, {"kind": "diverged", "at_step": 1, "loss": 2.0})
        half = losses.Losses(is_fp16=True)
        for _ in range(losses.MOST_OVERFLOWS - 1):
            half.check(step(2.0, math.inf))
        with self.assertRaises(losses.Ended) as ended:
            half.check(step(2.0, math.nan))
        self.assertEqual(ended.exception.reason["cause"], "overflow")

    def test_out_of_memory_has_many_names(self):
        class OutOfMemoryError(RuntimeError):
            pass

        texts = ("DefaultCPUAllocator: can't allocate memory: you tried", "std::bad_alloc", "CUDA error: out of memory")
        errors = [MemoryError(), OutOfMemoryError(), *map(RuntimeError, texts)]
        self.assertTrue(all(map(device.is_out_of_memory, errors)))
        self.assertFalse(device.is_out_of_memory(RuntimeError("shapes differ")))


class StandInModel:
    """A model whose loss of a row is ten times the row."""

    training = True

    def __init__(self):
        self.seen = []

    def eval(self):
        self.training = False

    def train(self, mode):
        self.training = mode

    def __call__(self, rows, **_):
        self.seen.append(list(rows))
        losses = StandInNumbers(10.0 * row for row in rows)
        return types.SimpleNamespace(log_probs=losses, label_mask=StandInNumbers(rows), is_top1=StandInNumbers([1]))


class StandInNumbers(list):
    """A tensor of a number for each row."""

    def sum(self, dim=None):
        return StandInNumbers(self) if dim is not None else sum(self)

    def double(self):
        return self

    def __neg__(self):
        return self

    def tolist(self):
        return list(self)


def trainer_of(model, collate):
    """A trainer of a model, as far as an evaluation asks it."""
    return types.SimpleNamespace(
        beta=1.0,
        data_collator=collate,
        model_wrapped=model,
        _prepare_inputs=lambda inputs: inputs,
        compute_loss_context_manager=contextlib.nullcontext,
    )


def by_both_ranks(evaluated):
    """What each of two ranks evaluates, in their order; `evaluated` is given the ranks as one of them sees them.

    One that asks what the other never does waits in vain, which fails.
    """
    told, meeting = [None, None], threading.Barrier(2, timeout=10.0)

    def of(rank):
        def gather(value):
            told[rank] = value
            meeting.wait()
            found = list(told)
            meeting.wait()
            return found

        return evaluated(ranks.Ranks(rank, 2, gather))

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(of, (0, 1)))


def beside(losses, loss):
    """A watch beside a rival that has these losses of rows, each of one target token."""
    given = {"loss": loss, "rows": {"target_tokens": [1] * len(losses), "losses": losses}}
    return rival.BesideRival(given, lambda: [1] * len(losses))


class Evaluations(unittest.TestCase):
    def setUp(self):
        patched = unittest.mock.patch.dict(sys.modules, torch=types.SimpleNamespace(no_grad=contextlib.nullcontext))
        patched.start()
        self.addCleanup(patched.stop)

    def test_the_loss_is_that_of_a_target_token(self):
        found = evaluation.Evaluation([10.0, 20.0, 30.0, 60.0], [10, 10, 10, 10], 1, 20, 0.5)
        event = found.event(3, 400)
        self.assertEqual((event["loss"], event["accuracy"], event["target_tokens"]), (3.0, 0.5, 40))
        self.assertAlmostEqual(event["standard_error"], math.sqrt(14 / 3 / 4))
        self.assertEqual(found.rows()["losses"], [10.0, 20.0, 30.0, 60.0])

    def test_ranks_take_micro_batches_in_turn_and_as_many_each(self):
        def evaluated(model, of_ranks):
            return evaluation.evaluate(trainer_of(model, lambda rows: {"rows": rows}), [1, 2, 3, 4, 5], 2, of_ranks)

        models = [StandInModel(), StandInModel()]
        alone = evaluated(StandInModel(), ranks.Ranks())
        both, other = by_both_ranks(lambda of_rank: evaluated(models[of_rank.rank], of_rank))
        self.assertEqual([model.seen for model in models], [[[1, 2], [5]], [[3, 4], [5]]])
        self.assertEqual(other._replace(seconds=0.0), both._replace(seconds=0.0))
        self.assertEqual(both._replace(seconds=0.0), alone._replace(seconds=0.0))
        self.assertEqual((both.losses, both.right), ([10.0, 20.0, 30.0, 40.0, 50.0], 3))
        self.assertTrue(models[0].training)

    def test_ranks_end_an_evaluation_beside_a_rival_at_the_same_rows(self):
        rows, in_micro_batches = range(1, 41), 3

        def evaluated(of_ranks, model, watch):
            trainer_of_these = trainer_of(model, lambda rows: {"rows": rows})
            # A row's loss is ten nats a target token.
            return evaluation.evaluate(trainer_of_these, rows, in_micro_batches, of_ranks, watch)._replace(seconds=0.0)

        def watch_of(worse_by):
            losses = [(10.0 - worse_by) * row for row in rows]
            given = {"loss": 10.0 - worse_by, "rows": {"target_tokens": list(rows), "losses": losses}}
            return rival.BesideRival(given, lambda: list(rows))

        models, watches = [StandInModel(), StandInModel()], [watch_of(1.0), watch_of(1.0)]
        both = by_both_ranks(lambda of_rank: evaluated(of_rank, models[of_rank.rank], watches[of_rank.rank]))
        self.assertEqual(both[0], both[1])
        self.assertEqual(watches[0].worse_by, watches[1].worse_by)
        self.assertAlmostEqual(watches[0].loss, 10.0)
        # Groups of six rows, of which the last has four: the first look is behind three of them.
        self.assertIn(len(both[0].losses), (16, 18))
        self.assertEqual([len(model.seen) for model in models], [3, 3])
        seen = sorted(row for model in models for part in model.seen for row in part)
        self.assertEqual(both[0].target_tokens, sorted(set(seen)))
        # The native engine goes through groups of as many micro-batches as there are ranks in the same order.
        first = rival.order(7, True)[0]
        self.assertEqual(models[0].seen[0], list(rows[6 * first : 6 * first + 3]))
        # Nearly as good: all rows, each once, on both ranks.
        watches = [watch_of(0.05), watch_of(0.05)]
        whole = by_both_ranks(lambda of_rank: evaluated(of_rank, StandInModel(), watches[of_rank.rank]))
        alone = evaluated(ranks.Ranks(), StandInModel(), None)
        self.assertEqual(whole, [alone, alone])
        self.assertIsNone(watches[0].worse_by)

    def test_pairs_are_compared_over_all_ranks_and_no_further_than_a_rival_asks_for(self):
        def ask(model, inputs, number):
            return [float(row) for row in inputs], ([float(row) for row in inputs], [1.5] * len(inputs), len(inputs))

        def evaluated(of_ranks, rows=(1, 2, 3, 4, 5), watch=None):
            found = preference.evaluated_pairs(trainer_of(StandInModel(), list), rows, 2, of_ranks, ask, watch)
            return found._replace(seconds=0.0)

        alone = evaluated(ranks.Ranks())
        watches = [beside(list(range(40)), 19.5) for _ in range(3)]
        part = evaluated(ranks.Ranks(), range(1, 41), watches[2])
        both, _ = by_both_ranks(evaluated)
        self.assertEqual(both, alone)
        self.assertEqual((both.losses, both.target_tokens, both.rewards.accuracy), ([1.0, 2.0, 3.0, 4.0, 5.0], 5, 0.8))
        self.assertEqual(both.rows(), {"target_tokens": [1] * 5, "losses": [1.0, 2.0, 3.0, 4.0, 5.0]})
        # Each pair is one nat worse than the rival's.
        self.assertEqual((watches[2].loss, len(part.losses), part.target_tokens), (20.5, 16, 16))
        self.assertIn(part.rewards.accuracy, (1.0, 15 / 16))
        parts = by_both_ranks(lambda of_rank: evaluated(of_rank, range(1, 41), watches[of_rank.rank]))
        self.assertEqual((parts[0], watches[0].loss, len(parts[0].losses)), (parts[1], 20.5, 16))

    def test_one_micro_batch_says_nothing_of_its_error(self):
        found = evaluation.Evaluation([10.0, 20.0], [10, 10], 4, 0, 0.5)
        self.assertNotIn("standard_error", found.event(1, 1))
        self.assertTrue(math.isnan(evaluation.Evaluation([0.0], [0], 1, 0, 0.1).loss))


class AnswersOfTwoKinds(unittest.TestCase):
    """Evaluations of KTO, on rows whose answers have become likelier by `gain`, and more so the farther down."""

    ROWS = 40

    def setUp(self):
        def said(model, inputs, part=""):
            model.seen.append((part, [row["row"] for row in inputs["rows"]]))
            key = "KL_completion_ids" if part else "completion_ids"
            return [0.1 * model.gain * row[key][0] for row in inputs["rows"]]

        def prepared(trainer, rows, part):
            return {"rows": part, "label": StandInNumbers(row["label"] for row in part)}

        stand_ins = {
            "log_probabilities": said,
            "prepared": prepared,
            "said_by": lambda trainer, inputs, number, reference: ([0.0] * len(inputs["rows"]),) * 2,
            "counts_of_answers": lambda inputs: (0, 0, len(inputs["rows"])),
        }
        torch = types.SimpleNamespace(no_grad=contextlib.nullcontext)
        for patched in (
            unittest.mock.patch.dict(sys.modules, torch=torch),
            unittest.mock.patch.multiple(preference, **stand_ins),
        ):
            patched.start()
            self.addCleanup(patched.stop)

    def evaluated(self, gain, micro_batch=2, of_ranks=None, watch=None, is_good=lambda row: row % 2 == 0):
        """An evaluation, and what the model was asked."""
        model = StandInModel()
        model.gain = gain
        trainer_of_these = trainer_of(model, None)
        trainer_of_these.desirable_weight, trainer_of_these.undesirable_weight = 1.0, 2.0
        labels = [is_good(row) for row in range(self.ROWS)]

        class Tokens:
            def __len__(self):
                return len(labels)

            def __getitem__(self, part):
                found = list(range(len(labels))[part])
                return {"row": found, "completion_ids": [[row] for row in found], "label": labels[part]}

        rows = preference.HeldOut(Tokens(), self.ROWS, 16)
        found = preference.evaluate_kto(trainer_of_these, rows, micro_batch, of_ranks or ranks.Ranks(), {}, watch)
        return found._replace(seconds=0.0), model.seen

    def test_losses_are_those_of_the_drift_over_all_rows_whatever_is_gone_through(self):
        gain, drift = 0.4, 0.4 * 0.1 * statistics.mean(range(self.ROWS))
        whole, _ = self.evaluated(gain)

        def loss(row):
            reward = 0.1 * gain * row
            return 1.0 - rewards.sigmoid(reward - drift) if row % 2 == 0 else 2.0 * (1.0 - rewards.sigmoid(drift - reward))

        for row in range(self.ROWS):
            self.assertAlmostEqual(whole.losses[row], loss(row))
        self.assertEqual(self.evaluated(gain, 7)[0], whole)
        both = by_both_ranks(lambda of_rank: self.evaluated(gain, 3, of_rank)[0])
        self.assertEqual(both, [whole, whole])

    def test_one_that_is_surely_worse_ends_with_the_loss_of_all_rows(self):
        whole, _ = self.evaluated(0.4)
        of_rival = [loss - 0.25 for loss in whole.losses]
        watch = beside(of_rival, whole.loss - 0.25)
        part, seen = self.evaluated(0.4, watch=watch)
        self.assertEqual((len(part.losses), part.target_tokens), (16, 16))
        # Each row has the loss that it has among all rows, and so the same difference to the rival's.
        self.assertAlmostEqual(watch.loss, whole.loss, places=6)
        self.assertTrue(all(loss in whole.losses for loss in part.losses))
        asked = {kind: sorted(row for part, rows in seen if part == kind for row in rows) for kind in ("", "KL_")}
        self.assertEqual((len(asked[""]), asked["KL_"]), (16, list(range(self.ROWS))))
        self.assertEqual(part.rows()["target_tokens"], [1] * 16)
        watches = [beside(of_rival, whole.loss - 0.25) for _ in range(2)]
        parts = by_both_ranks(lambda of_rank: self.evaluated(0.4, 2, of_rank, watches[of_rank.rank])[0])
        self.assertEqual((parts[0], watches[0].worse_by), (parts[1], watches[1].worse_by))
        self.assertAlmostEqual(watches[0].loss, whole.loss, places=6)
        self.assertEqual(len(parts[0].losses), 16)

    def test_it_ends_only_where_answers_of_both_kinds_were_gone_through(self):
        last = rival.order(self.ROWS, True)[20]
        whole, _ = self.evaluated(0.4, 1, is_good=lambda row: row != last)
        watch = beside([loss - 0.25 for loss in whole.losses], whole.loss - 0.25)
        part, _ = self.evaluated(0.4, 1, watch=watch, is_good=lambda row: row != last)
        self.assertEqual(len(part.losses), 21)
        self.assertIsNotNone(watch.worse_by)
        for is_good, said in ((True, "are good ones"), (False, "are bad ones")):
            with self.assertRaisesRegex(trial_files.Invalid, f"all 40 .* {said}"):
                self.evaluated(0.4, is_good=lambda row, is_good=is_good: is_good)


class Preferences(unittest.TestCase):
    """What is made of rewards."""

    def test_a_pair_counts_where_the_chosen_answer_has_the_higher_reward(self):
        found = rewards.rewards_of_pairs([1.0, 2.0, 0.0, 5.0], [0.0, 3.0, 0.0, 1.0])
        self.assertEqual((found.accuracy, found.margin), (0.5, 1.0))
        # Wilson's interval of two of four.
        self.assertAlmostEqual(found.low, 0.15, places=2)
        self.assertAlmostEqual(found.high, 0.85, places=2)
        self.assertAlmostEqual(found.margin_error, statistics.stdev([1.0, -1.0, 0.0, 4.0]) / 2)

    def test_answers_without_partners_are_compared_each_with_each(self):
        good, bad = [3.0, 1.0, 1.0], [0.0, 1.0]
        found = rewards.rewards_of_kinds(good, bad)
        pairs = [one > other for one in good for other in bad]
        self.assertAlmostEqual(found.accuracy, sum(pairs) / len(pairs))
        self.assertAlmostEqual(found.margin, 5 / 3 - 0.5)
        self.assertTrue(0.0 < found.low < found.accuracy < found.high <= 1.0)

    def test_the_interval_of_a_share_of_all_is_no_point(self):
        found = rewards.rewards_of_pairs([1.0] * 4, [0.0] * 4)
        metrics = preference.Preferred([0.5] * 4, 8, found, 0.0).metrics()
        self.assertEqual((metrics["reward_accuracy"], metrics["reward_margin_interval"]), (1.0, 0.0))
        self.assertGreater(metrics["reward_accuracy_interval"], 0.4)

    def test_one_pair_says_nothing_of_how_sure_its_margin_is(self):
        found = rewards.rewards_of_pairs([1.0], [0.0])
        self.assertNotIn("reward_margin_interval", preference.Preferred([0.5], 2, found, 0.0).metrics())
        self.assertIsNone(rewards.rewards_of_kinds([1.0, 2.0], [0.0]).margin_error)

    def test_logarithms_hold_far_out(self):
        for value in (-800.0, -3.0, 0.0, 3.0, 800.0):
            self.assertAlmostEqual(rewards.log_sigmoid(value) - rewards.log_sigmoid(-value), value)
        self.assertAlmostEqual(rewards.sigmoid(3.0), 1 / (1 + math.exp(-3.0)))
        one, other = math.log(0.8), math.log(0.25)
        self.assertAlmostEqual(rewards.log_odds_ratio(one, other), math.log((0.8 / 0.2) / (0.25 / 0.75)))
        self.assertEqual(rewards.log_odds_ratio(0.0, other), math.inf)

    def test_a_reward_that_is_no_number_is_no_loss(self):
        found = rewards.rewards_of_pairs([math.nan, 1.0], [0.0, 0.0])
        self.assertTrue(math.isnan(preference.Preferred([0.5, 0.5], 8, found, 0.0).loss))

    def test_held_out_rows_come_in_slices_and_beside_the_answer_before(self):
        class Columns:
            def __len__(self):
                return 5

            def __getitem__(self, part):
                return {"completion_ids": [[row] for row in range(5)][part], "label": [True] * len(range(5)[part])}

        rows = preference.HeldOut(Columns(), 4, 16)
        self.assertEqual((len(rows), [row["completion_ids"] for row in rows[2:9]]), (4, [[2], [3]]))
        beside = preference.BesideOthers(rows)
        others = [row["KL_completion_ids"] for start in (0, 2) for row in beside[start : start + 2]]
        self.assertEqual((others, beside.length), ([[3], [0], [1], [2]], 16))

    def test_the_reference_is_a_copy_where_the_whole_model_trains(self):
        def has_copy(use_peft, **training):
            of_model = types.SimpleNamespace(use_peft=use_peft)
            return settings.Settings(None, types.SimpleNamespace(**training), of_model, {}).has_copy

        self.assertTrue(has_copy(False, precompute_ref_log_probs=False))
        self.assertFalse(has_copy(True, precompute_ref_log_probs=False))
        self.assertFalse(has_copy(False, precompute_ref_log_probs=True))
        self.assertFalse(has_copy(False))

    def test_rows_of_answers_are_as_long_as_their_own_sequences(self):
        class Tokens(dict):
            @property
            def column_names(self):
                return list(self)

        prompts = [[0] * length for length in (1, 4, 2)]
        pairs = Tokens(prompt_ids=prompts, chosen_ids=[[1], [1], [1]], rejected_ids=[[1], [1], [1] * 5])
        self.assertEqual(trial_files.Answers(pairs, None).longest(2), [2, 1])
        # An answer of another row does not count.
        answers, beside = [[1], [1], [1]], [[1] * 9, [1], [1]]
        others = Tokens(prompt_ids=prompts, completion_ids=answers, KL_completion_ids=beside, label=[True] * 3)
        self.assertEqual(trial_files.Answers(others, None).longest(3), [1, 2, 0])
        apart = Tokens(chosen_input_ids=prompts, chosen_labels=prompts, rejected_input_ids=[[1] * 9, [1], [1]])
        self.assertEqual(trial_files.Answers(apart, None).longest(1), [0])

    def test_a_row_says_where_a_trainer_is_and_what_it_reads(self):
        self.assertEqual([kind.file for kind in kinds.KINDS.values()], [f"trl_{name}.yaml" for name in kinds.KINDS])
        compared = [name for name, kind in kinds.KINDS.items() if kind.compares]
        self.assertEqual(compared, ["dpo", "kto", "orpo"])


class Rivals(unittest.TestCase):
    TOKENS, ROWS = 5, 40

    def of_rival(self, row):
        """Half of the rows are hard."""
        return self.TOKENS * (3.0 if row % 2 else 1.0)

    def rival(self):
        losses = [self.of_rival(row) for row in range(self.ROWS)]
        return {"loss": 2.0, "rows": {"target_tokens": [self.TOKENS] * self.ROWS, "losses": losses}}

    def watch(self, given):
        return rival.BesideRival(given, lambda: [self.TOKENS] * self.ROWS)

    def evaluated(self, watch, micro_batch, worse_by):
        """Rows, losses and targets up to the end that the watch says, as an evaluation goes through them."""
        tally = evaluation.Tally(self.ROWS, micro_batch)
        for number in rival.order(tally.batches, watch.next_look() is not None):
            part = tally.rows_of(number)
            losses = [self.of_rival(row) + self.TOKENS * worse_by for row in range(part.start, part.stop)]
            tally.take(number, evaluation.OfBatch(losses, [self.TOKENS] * len(losses), len(losses)))
            tally.pass_group(number, 1)
            if tally.is_looked_at(watch) and watch.look(*tally.so_far()):
                break
        self.assertEqual(sum(tally.beside()), len(tally.so_far()[0]))
        return tally.so_far()

    @unittest.skipUnless(GOLDEN.is_dir(), "the engine's numbers are not here")
    def test_comparisons_are_those_of_the_native_engine(self):
        table = json.loads((GOLDEN / "paired.json").read_text())
        for row in table["compared"]:
            found = rival.PairedDifference.of(row["differences"], row["target_tokens"])
            if row["difference"] is None:
                self.assertIsNone(found)
                continue
            for name in ("value", "standard_error"):
                self.assertAlmostEqual(getattr(found, name), row["difference"][name], delta=1e-12)
            limit = row["difference"]["surely_above"]
            self.assertTrue(found.is_surely_above(limit - 1e-9, row["looks_in_all"]), row["difference"])
            self.assertFalse(found.is_surely_above(limit + 1e-9, row["looks_in_all"]), row["difference"])
        for rows, looks in table["looks"]:
            self.assertEqual(rival.looks(rows), looks)

    @unittest.skipUnless(GOLDEN.is_dir(), "the engine's numbers are not here")
    def test_the_order_is_that_of_the_native_engine(self):
        for order in json.loads((GOLDEN / "order.json").read_text()):
            self.assertEqual(rival.order(len(order), True), order)
            self.assertEqual(rival.order(len(order), False), sorted(order))

    def test_a_worse_setting_ends_at_the_first_look(self):
        watch = self.watch(self.rival())
        self.assertEqual(watch.next_look(), 16)
        rows, _, targets = self.evaluated(watch, 3, 0.25)
        # A micro-batch is evaluated to its end, and rows are told in their order.
        self.assertIn(len(rows), (16, 17, 18))
        self.assertEqual((rows, targets), (sorted(rows), [self.TOKENS] * len(rows)))
        self.assertAlmostEqual(watch.loss, 2.25)
        self.assertLess(watch.worse_by.standard_error, 1e-6)
        self.assertEqual(watch.rows_in_all, self.ROWS)

    def test_one_that_is_nearly_as_good_is_evaluated_on_all_rows(self):
        for micro_batch, worse_by in ((3, 0.01), (40, 9.0)):
            watch = self.watch(self.rival())
            rows, _, _ = self.evaluated(watch, micro_batch, worse_by)
            self.assertEqual(rows, list(range(self.ROWS)))
            self.assertIsNone(watch.worse_by)

    def test_without_a_rival_on_the_same_rows_all_are_evaluated(self):
        other, fewer, untold = self.rival(), self.rival(), self.rival()
        other["rows"]["target_tokens"][7] += 1
        fewer["rows"]["losses"].pop()
        untold["loss"] = None
        for given in (None, other, fewer, untold):
            with contextlib.redirect_stderr(io.StringIO()):
                watch = self.watch(given)
            self.assertIsNone(watch.next_look())
            self.assertEqual(len(self.evaluated(watch, 4, 90.0)[0]), self.ROWS)

    def test_what_is_no_number_ends_nothing(self):
        watch = self.watch(self.rival())
        self.assertEqual(len(self.evaluated(watch, 4, math.nan)[0]), self.ROWS)


class OfRanks(unittest.TestCase):
    def test_a_step_is_that_of_all_ranks_and_the_first_one_decides(self):
        def step(loss, tokens, peak, is_stopped):
            event = {"step": 3, "loss": loss, "tokens": tokens, "target_tokens": tokens // 2, "grad_norm": 1.5}
            return ranks.Step(event, 2, peak, is_stopped, 7.0)

        found = ranks.of_all([step(2.0, 10, 70, False), step(4.0, 30, 90, True)])
        expected = {"step": 3, "loss": 3.0, "tokens": 40, "target_tokens": 20, "grad_norm": 1.5}
        self.assertEqual(found, ranks.Step(expected, 4, 90, False, 7.0))
        self.assertIsNone(ranks.of_all([step(1.0, 4, None, False)]).peak)

    def test_one_process_is_all_there_is(self):
        alone = ranks.Ranks()
        alone.meet()
        self.assertEqual((alone.count, alone.is_first, alone.gathered(3), alone.most(None)), (1, True, [3], None))
        self.assertTrue(alone.are_whole())
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        self.assertFalse(ranks.Ranks(0, 2, lambda value: [value, gone.pid]).are_whole())

    def test_ranks_have_the_places_that_are_assigned_or_share_the_worker_s(self):
        places = rank_group.places_of([], 2, "cpu", 5)
        self.assertEqual(places, [{"device": "cpu", "threads": 2, "cpus": []}] * 2)
        on_gpus = rank_group.places_of(None, 2, "cuda:0", 8)
        self.assertEqual([place["device"] for place in on_gpus], ["cuda:0", "cuda:1"])
        assigned = [{"device": "cuda:3", "threads": 4, "cpus": [1]}, {"device": "cuda:1", "threads": None}]
        places = rank_group.places_of(assigned, 2, "cuda:3", 8)
        found = [(one["device"], one["threads"], one["cpus"]) for one in places]
        self.assertEqual(found, [("cuda:3", 4, [1]), ("cuda:1", 8, [])])

    def test_ranks_see_their_gpus_of_those_that_the_program_sees(self):
        self.assertEqual(rank_group.visible(["cpu", "cpu"], "0,1"), "")
        self.assertEqual(rank_group.visible(["cuda:1", "cuda:0"], None), "1,0")
        self.assertEqual(rank_group.visible(["cuda:1", "cuda:0"], "GPU-a, GPU-b"), "GPU-b,GPU-a")
        with self.assertRaisesRegex(trial_files.Invalid, "no GPU cuda:2"):
            rank_group.visible(["cuda:0", "cuda:2"], "4,7")

    def test_a_launcher_starts_what_takes_several_devices_or_deepspeed(self):
        for recipe, is_launched in (
            ({}, False),
            ({"batch": {"devices": 1}, "optimizer": {"kind": "adamw"}}, False),
            ({"batch": {"devices": 2}}, True),
            ({"optimizer": {"offload": "host"}}, True),
        ):
            self.assertEqual(launched.is_launched(recipe), is_launched, recipe)
        self.assertEqual(launched.message_in(b'"text"\n'), {})
        self.assertEqual(launched.message_in(b"garbage\n"), {})


class Faults(unittest.TestCase):
    def test_a_fault_is_meant_for_its_phase_trial_and_attempts(self):
        fault = faults.Fault("nan:train,trial=3,attempts=2")
        self.assertTrue(fault.spoils_loss({"number": 3, "attempt": 2}, "train"))
        for request, phase in (
            ({"number": 3, "attempt": 3}, "train"),
            ({"number": 2, "attempt": 1}, "train"),
            ({"number": 3, "attempt": 1}, "profile"),
        ):
            self.assertFalse(fault.spoils_loss(request, phase))
        self.assertFalse(faults.Fault("nan:train").spoils_loss({"number": 2**64 - 1}, "train"))
        busy = faults.Fault("busy:profile")
        busy.at({"number": 1}, "profile")
        self.assertTrue(busy.makes_busy({"number": 1}, "profile") and not fault.makes_busy({"number": 3}, "train"))
        faults.Fault(None).at({"number": 1}, "train")

    def test_what_is_no_fault_is_refused(self):
        for text in ("hang", "hang:there", "melt:train", "hang:train,x=1", "hang:train,trial=x"):
            with self.assertRaises(ValueError, msg=text):
                faults.Fault(text)


class Probes(unittest.TestCase):
    def test_versions_lie_in_a_range(self):
        for version in ("1.16.0", "1.16.0.dev0", "1.17"):
            self.assertTrue(probe.is_met("trl", version), version)
        for version in ("1.15.9", "2.0.0", None):
            self.assertFalse(probe.is_met("trl", version), version)
        self.assertTrue(probe.is_met("torch", "2.15.0+cpu"))
        self.assertEqual((probe.requirement("trl"), probe.requirement("torch")), ("trl>=1.16,<2", "torch>=2.9"))

    def test_unsloth_has_ranges_of_its_own(self):
        needed = probe.ranges("unsloth")
        self.assertEqual((next(iter(needed)), needed["torch"]), ("unsloth", probe.VERSIONS["torch"]))
        self.assertTrue(probe.is_met("trl", "1.15.0", needed) and probe.is_met("unsloth", "2026.10.9", needed))
        self.assertFalse(probe.is_met("unsloth", "2026.10.8", needed))
        with unittest.mock.patch.object(probe, "version_of", {"trl": "1.15.0"}.get):
            told = probe.probe("unsloth")
        self.assertEqual((told["unsloth"], told["missing"][0]), (None, "unsloth>=2026.10.9,<2027"))
        self.assertNotIn("unsloth", probe.probe())

    def test_packages_that_some_values_need_are_told_where_they_are(self):
        there = {"schedulefree": "1.4.1", "trl": "1.16.0"}
        with unittest.mock.patch.object(probe, "version_of", there.get):
            told = probe.probe()
        self.assertEqual((told["optional"], told["trl"], told["torch"]), ({"schedulefree": "1.4.1"}, "1.16.0", None))


SCRIPT = """
import torch
model, tokenizer = FastLanguageModel.from_pretrained(model_name="/base", dtype=torch.bfloat16, load_in_4bit=False)
model = FastLanguageModel.get_peft_model(model=model, r=8, target_modules=["q_proj"], use_dora=True)
config = SFTConfig(max_length=64, lr_scheduler_kwargs={"min_lr_rate": 0.1}, eval_strategy="epoch", output_dir="./run")
trainer = SFTTrainer(model=model, args=config)
"""


class OfUnsloth(unittest.TestCase):
    """What is read of unsloth's script."""

    def parsed(self, script, **more):
        class Config(types.SimpleNamespace):
            dataset_kwargs = fsdp = deepspeed = None

        modules = {"trl": types.SimpleNamespace(SFTConfig=Config), "torch": types.SimpleNamespace(bfloat16="BF16")}
        with unittest.mock.patch.dict(sys.modules, modules):
            return unsloth.parsed(script, is_gpu=True, **more)

    def test_a_trial_has_the_arguments_of_the_script_but_for_what_it_must_not_do(self):
        found = self.parsed(SCRIPT)
        self.assertEqual(found.loader.of_model, {"model_name": "/base", "dtype": "BF16", "load_in_4bit": False})
        self.assertEqual(found.loader.of_adapter, {"r": 8, "target_modules": ["q_proj"], "use_dora": True})
        training = vars(found.training)
        self.assertEqual((training["max_length"], training["lr_scheduler_kwargs"]), (64, {"min_lr_rate": 0.1}))
        self.assertEqual((training["eval_strategy"], training["dataset_kwargs"]), ("no", {"skip_prepare_dataset": True}))
        # Nothing stays for the next trial, and the trainer is given no adapter.
        self.assertEqual((found.keeps_base, found.adapter(), found.model.use_dora, found.packs), (False, None, True, False))

    def test_what_is_no_such_script_is_refused(self):
        for script, message in (
            (SCRIPT.replace("SFTConfig(", "Config("), "does not call SFTConfig"),
            (SCRIPT.replace('"/base"', "where()"), "cannot be read"),
            (SCRIPT.replace("torch.bfloat16", "torch.float4"), "cannot be read"),
            ("def", "cannot be read"),
        ):
            with self.assertRaisesRegex(trial_files.Invalid, message):
                self.parsed(script)
        with self.assertRaisesRegex(trial_files.Invalid, "no trainer `dpo`"):
            self.parsed(SCRIPT, trainer="dpo")

    def test_an_adapter_is_put_on_a_model_whose_base_was_counted(self):
        scales = types.SimpleNamespace(quant_state=types.SimpleNamespace(absmax=StandInTensor(), blocksize=64))
        model = types.SimpleNamespace(
            parameters=lambda: [StandInTensor(), StandInTensor()], buffers=list, modules=lambda: [scales]
        )
        loader = types.SimpleNamespace(load=lambda: (model, "tokenizer"), with_adapter=lambda model: ("adapted", model))
        found = self.parsed(SCRIPT)._replace(loader=loader)
        bases = base_model.BaseModels(types.SimpleNamespace(empty=lambda: None))
        self.assertEqual(bases.take(found, "/base"), (("adapted", model), 24))
        self.assertEqual((bases.tokenizer(found, "/base"), bases.held_bytes), ("tokenizer", 0))

    def test_each_backend_is_a_tool(self):
        self.assertEqual([(tool.name, tool.needs_gpu) for tool in tools.TOOLS.values()], [("trl", False), ("unsloth", True)])
        files, program = types.SimpleNamespace(config="", trainer="kto"), trial_files.Program(tool="unsloth")
        with self.assertRaisesRegex(trial_files.Invalid, "unsloth have no trainer `kto`"):
            tools.parsed(program, files, is_gpu=True)
        with unittest.mock.patch.dict(tools.TOOLS, unsloth=tools.Tool("unsloth", lambda *given: given)):
            self.assertEqual(tools.parsed(program, files, True, {"max_steps": 2}), ("", True, "kto", {"max_steps": 2}))


ANSWER = {
    "config": "a: 1",
    "beside": {},
    "model": "/model",
    "train": "TRAIN",
    "held_out": "TRAIN",
    "steps": 4,
    "steps_per_epoch": 9,
    "epochs": 0.4,
    "held_out_windows": 2,
    "trainer": "sft",
    "held_out_length": 64,
    "refused": [],
}


class StandInTensor:
    """A tensor, or a parameter."""

    _version, grad, requires_grad = 0, None, False

    def requires_grad_(self, requires_grad):
        self.requires_grad = requires_grad

    def untyped_storage(self):
        return types.SimpleNamespace(data_ptr=lambda: id(self), nbytes=lambda: 8)


class StandInLinear8bit:
    """A layer of bitsandbytes: its first forward pass takes the scales from the weight."""

    def __init__(self):
        self.weight = StandInTensor()
        self.weight.CB, self.weight.SCB = StandInTensor(), StandInTensor()
        self.state = types.SimpleNamespace(CB=None, SCB=None)
        self.parameters, self.buffers = lambda: [self.weight], list

    def modules(self):
        return [self]

    def init_8bit_state(self):
        self.state.CB, self.state.SCB = self.weight.CB, self.weight.SCB
        self.weight.CB = self.weight.SCB = None


class Bases(unittest.TestCase):
    def test_each_copy_has_the_scales_of_its_weights(self):
        layer = StandInLinear8bit()
        scales = layer.weight.SCB
        base = base_model.Base(layer)
        self.assertEqual(base.frozen_bytes, 24)
        self.assertIsNone(layer.weight.SCB)
        for copied in (base.copied(), base.copied()):
            self.assertIsNot(copied.state, layer.state)
            self.assertIs(copied.weight, layer.weight)
            self.assertIs(copied.state.SCB, scales)

    def test_bytes_of_8_bits_are_counted_where_the_weights_have_them_still(self):
        layer = StandInLinear8bit()
        self.assertEqual(base_model.frozen_bytes_of(device.tensors_of(layer), base_model.scales_of(layer)), 24)
        self.assertIsNotNone(layer.weight.SCB)

    def test_scales_that_are_quantized_themselves_are_counted(self):
        nested = types.SimpleNamespace(absmax=StandInTensor(), state2=None)
        scales = types.SimpleNamespace(absmax=StandInTensor(), blocksize=64, state2=nested)
        self.assertEqual(list(base_model.tensors_in([scales, StandInTensor()]))[:2], [scales.absmax, nested.absmax])

    def test_a_model_that_names_no_class_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder, "config.json")
            for text in ('{"model_type": "llama"}', '{"architectures": []}', '{"architectures": null}'):
                config.write_text(text)
                with self.assertRaisesRegex(trial_files.Invalid, "names no `architectures`"):
                    base_model.check_class(folder)
            config.write_text('{"architectures": ["LlamaForCausalLM"]}')
            base_model.check_class(folder)


class FirstAdapters(unittest.TestCase):
    def test_a_request_names_the_folder(self):
        self.assertIsNone(first_adapter.folder_of({}))
        self.assertEqual(first_adapter.folder_of({"first_adapter": {"read": "/first"}}), "/first")
        with self.assertRaisesRegex(trial_files.Invalid, "does not write it"):
            first_adapter.folder_of({"first_adapter": {"write": "/first"}})

    def loaded(self, missing, unexpected):
        """Loads weights of which PEFT says that these are not there, and these are too many."""

        def load_file(path):
            if not path.startswith("/first"):
                raise FileNotFoundError(path)
            return {"weights": path}

        taken = []
        peft = types.ModuleType("peft")
        peft.set_peft_model_state_dict = lambda model, weights: taken.append(weights) or types.SimpleNamespace(
            missing_keys=missing, unexpected_keys=unexpected
        )
        tensors = types.ModuleType("safetensors.torch")
        tensors.load_file = load_file
        trained, frozen = (types.SimpleNamespace(requires_grad=one) for one in (True, False))
        model = types.SimpleNamespace(named_parameters=lambda: [("base", frozen), ("lora", trained)])
        modules = {"peft": peft, "safetensors": types.ModuleType("safetensors"), "safetensors.torch": tensors}
        with unittest.mock.patch.dict(sys.modules, modules):
            first_adapter.load(model, "/first")
            with self.assertRaisesRegex(trial_files.Invalid, "cannot read the adapter to start from, /elsewhere"):
                first_adapter.load(model, "/elsewhere")
        return taken

    def test_the_weights_are_those_of_the_folder(self):
        # Weights of the base are in no adapter's file.
        taken = self.loaded(["base"], [])
        self.assertEqual(taken, [{"weights": os.path.join("/first", first_adapter.WEIGHTS)}])

    def test_an_adapter_of_another_form_is_refused(self):
        for missing, unexpected in ((["base", "lora"], []), ([], ["lora.other"])):
            with self.assertRaisesRegex(trial_files.Invalid, "1 weights differ, such as lora"):
                self.loaded(missing, unexpected)


class Files(unittest.TestCase):
    def program(self, folder, body):
        path = Path(folder, "program")
        path.write_text(f"#!{sys.executable}\nimport json, sys\nasked = json.loads(sys.stdin.readline())\n{body}\n")
        path.chmod(0o755)
        return trial_files.Program(str(path))

    def test_an_answer_is_asked_for_once(self):
        with tempfile.TemporaryDirectory() as folder:
            rows = Path(folder, "rows")
            rows.write_text("")
            answer = {**ANSWER, "train": str(rows), "held_out": str(rows)}
            count = f"open({str(Path(folder, 'calls'))!r}, 'a').write(asked['tool'] + '\\n')"
            program = self.program(folder, f"{count}\nprint(json.dumps({answer!r}))")
            for _ in range(2):
                self.assertEqual(program.ask({"model": "m"}, {}).steps, 4)
            self.assertEqual(Path(folder, "calls").read_text(), "trl\n")
            rows.unlink()
            program.ask({"model": "m"}, {})
            self.assertEqual(Path(folder, "calls").read_text(), "trl\ntrl\n")

    def test_what_cannot_be_trained_is_said(self):
        refused = {**ANSWER, "refused": ["adapter.init: pissa"]}
        cases = (
            ("print('error: no such model', file=sys.stderr)\nsys.exit(2)", "^no such model$"),
            ("print('hello')", "no answer that can be read"),
            (f"print(json.dumps({refused!r}))", "cannot say: adapter.init: pissa"),
        )
        for body, message in cases:
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
                with self.assertRaisesRegex(trial_files.Invalid, message):
                    self.program(folder, body).ask({}, {})
        with self.assertRaisesRegex(trial_files.Invalid, "cannot start /nowhere/program"):
            trial_files.Program("/nowhere/program").ask({}, {})

    def test_the_longest_rows_come_first(self):
        rows = trial_files.Rows()
        rows.open = lambda path: {"input_ids": [[1], [1, 2, 3], [4, 5, 6], [7, 8]]}
        self.assertEqual(rows.longest("a", 3), [1, 2, 3])

    def test_targets_are_counted_once(self):
        rows, asked = trial_files.Rows(), []

        class Columns:
            def __len__(self):
                return 3

            def __getitem__(self, part):
                asked.append(part)
                labels = [[-100, 7, 7], [7, -100, 7], [5]][part]
                return {"input_ids": labels, "labels": labels}

        rows.open = lambda path: Columns()
        for _ in range(2):
            self.assertEqual(rows.targets("a", 3), [2, 1, 0])
        self.assertEqual(len(asked), 1)
        self.assertEqual(rows.targets("a", 2), [2, 1])

    def test_the_first_rows_come_a_slice_at_a_time(self):
        class Columns(list):
            def __getitem__(self, part):
                rows = super().__getitem__(part)
                return {"input_ids": rows, "labels": rows}

        first = trial_files.FirstRows(Columns([[1], [2], [3], [4]]), 3)
        self.assertEqual([len(first), len(trial_files.FirstRows([[1]], 3))], [3, 1])
        self.assertEqual(first[2:4], [{"input_ids": [3], "labels": [3]}])


if __name__ == "__main__":
    unittest.main()
