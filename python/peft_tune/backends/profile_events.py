"""What PyTorch's profiler recorded, as the tables of a profile: ops by phase and shape, and a GPU's timeline.

Times of events are in microseconds, all of one clock. An op's time is its own: on a processor without that of the ops
inside it, on a GPU that of the kernels that it launched itself.
"""

import bisect

#: Beginning of the names of what marks phases among the events.
MARK = "peft-tune "
#: Name for kernels that were launched with no op around them, by Triton for one.
OF_NO_OP = "(no op)"
#: Gaps between kernels that are the GPU's own way from one to the next, and those in which the host launches one, at most.
SHORTEST_GAP_US, LONGEST_LAUNCH_US = 2.0, 100.0
#: Names of number types as the profiler has them, with those of profiles and the bytes of a number.
NUMBERS = {
    "float": ("f32", 4),
    "double": ("f64", 8),
    "c10::BFloat16": ("bf16", 2),
    "c10::Half": ("f16", 2),
    "long int": ("i64", 8),
    "long": ("i64", 8),
    "int": ("i32", 4),
    "unsigned char": ("u8", 1),
    "signed char": ("i8", 1),
    "bool": ("bool", 1),
}


class Phases:
    """The phases of the recorded steps, by the marks that a watch left among the events."""

    def __init__(self, events):
        marks = {"data": [], "forward": [], "passes": []}
        for event in events:
            if is_on_host(event) and event.name.startswith(MARK):
                marks[event.name.removeprefix(MARK)].append((event.time_range.start, event.time_range.end))
        self._spans = {name: sorted(spans) for name, spans in marks.items()}

    def of(self, moment):
        """The phase of a moment. What follows on the passes is the optimizer's, until the next rows are asked for."""
        for name, phase in (("data", "data"), ("forward", "forward"), ("passes", "backward")):
            spans = self._spans[name]
            place = bisect.bisect_right(spans, (moment, float("inf"))) - 1
            if place >= 0 and moment < spans[place][1]:
                return phase
        return "optimizer"


def is_on_host(event):
    """Whether an event is the host's own."""
    return str(event.device_type).endswith("CPU")


def ops_of(events, steps, step_s, named_dimensions, is_gpu):
    """The ops, the longest first: means of a step. `named_dimensions` has names for sizes that batches decide."""
    phases, sums = Phases(events), {}
    for event in events:
        own_us = own_time(event, is_gpu)
        if own_us <= 0:
            continue
        tensors = [shape for shape in event.input_shapes or [] if shape and not isinstance(shape[0], list)]
        storage, read_bytes = storage_of(event)
        name = OF_NO_OP if event.name.startswith(MARK) else event.name
        key = (name, phases.of(event.time_range.start), shape_text(tensors, named_dimensions), storage)
        found = sums.setdefault(key, [0, 0.0, 0.0, 0.0])
        for place, amount in enumerate((1, own_us / 1e6, float(event.flops or 0), float(read_bytes))):
            found[place] += amount
    ordered = sorted(sums.items(), key=lambda one: -one[1][1])
    return [op(key, [amount / steps for amount in sum_], step_s) for key, sum_ in ordered]


def own_time(event, is_gpu):
    """Microseconds that are an op's own; 0 for what is none: what the host does around ops is no op's time."""
    if not is_on_host(event):
        return 0.0
    if is_gpu:
        return event.self_device_time_total
    # Nodes of the backward pass, marks and steps of an optimizer have no namespace; what a compiler made has none either.
    is_op = "::" in event.name and not event.name.startswith("autograd::") or "Compiled" in event.name
    return event.self_cpu_time_total if is_op else 0.0


def op(key, means, step_s):
    """One op as a profile has it."""
    name, phase, shape, storage = key
    calls, seconds, flops, read_bytes = means
    return {
        "name": name,
        "phase": phase,
        "shape": shape,
        "storage": storage,
        "calls": calls,
        "seconds": seconds,
        "share": seconds / step_s,
        "flops": flops,
        # Which FLOPs are an adapter's, or were computed before, is not told; no op's are counted as either.
        "recomputed_flops": 0.0,
        "adapter_flops": 0.0,
        "bytes": read_bytes,
        "roofline_share": None,
    }


def storage_of(event):
    """The number type of an op's largest input, and the bytes of all that it reads; none where no types are recorded."""
    shapes, types = event.input_shapes or [], getattr(event, "input_dtypes", None) or []
    largest, read_bytes = ("", 0), 0
    for shape, name in zip(shapes, types):
        if not shape or isinstance(shape[0], list) or name not in NUMBERS:
            continue
        number, size = NUMBERS[name]
        for dimension in shape:
            size *= dimension
        read_bytes += size
        largest = max(largest, (number, size), key=lambda one: one[1])
    return largest[0], read_bytes


def shape_text(tensors, named_dimensions):
    """The sizes of an op's inputs, such as `Tx576 576x1536`."""
    return " ".join("x".join(str(named_dimensions.get(size, size)) for size in shape) for shape in tensors)


def names_of_dimensions(batches, parameters):
    """Names for the sizes that micro-batches of (rows, tokens) decide; a size that weights have as well has none."""
    of_weights = {size for parameter in parameters for size in parameter.shape}
    named = {}
    for rows, length in batches:
        named |= {length: "L", rows * length: "T"}
    return {size: name for size, name in named.items() if size not in of_weights and size > 1}


def timeline_of(events, steps):
    """The timeline of a GPU over recorded steps; `None` where it did nothing."""
    on_gpu = [event for event in events if not is_on_host(event) and not event.name.startswith(MARK)]
    on_gpu = [event for event in on_gpu if not getattr(event, "is_user_annotation", False)]
    if not on_gpu:
        return None
    spans = sorted((event.time_range.start, event.time_range.end) for event in on_gpu)
    first = min(event.time_range.start for event in events if is_on_host(event))
    last = max(end for _, end in spans)
    busy = joined(spans)
    gaps = gaps_of(busy)
    copies = sorted((event.time_range.start, event.time_range.end) for event in on_gpu if is_copy(event.name))
    kernels = joined(sorted((one.time_range.start, one.time_range.end) for one in on_gpu if not is_copy(one.name)))
    moving_us = sum(end - start for start, end in copies)
    busy_us = sum(end - start for start, end in busy)
    return {
        "steps": steps,
        "seconds": (last - first) / 1e6,
        "idle_share": min(max(1.0 - busy_us / (last - first), 0.0), 1.0),
        "gaps": len(gaps) / steps,
        "longest_gap_s": max(gaps, default=0.0) / 1e6,
        "launch_gap_s": sum(gap for gap in gaps if gap <= LONGEST_LAUNCH_US) / steps / 1e6,
        "host_gap_s": sum(gap for gap in gaps if gap > LONGEST_LAUNCH_US) / steps / 1e6,
        "transfer_s": moving_us / steps / 1e6,
        "transfer_overlap": shared(joined(copies), kernels) / moving_us if moving_us else None,
        "kernels": kernels_of(events, on_gpu, steps),
        "calls": None,
    }


def kernels_of(events, on_gpu, steps):
    """Kernels and copies, the longest first, with the ops that launched them."""
    sums, launched = {}, {}
    for event in on_gpu:
        found = sums.setdefault(event.name, [0, 0.0])
        found[0] += 1
        found[1] += event.time_range.end - event.time_range.start
    for event in events:
        for kernel in getattr(event, "kernels", None) or [] if is_on_host(event) else []:
            by_op = launched.setdefault(kernel.name, {})
            by_op[event.name] = by_op.get(event.name, 0.0) + kernel.duration
    all_us = sum(us for _, us in sums.values()) or 1.0
    found = []
    for name, (calls, us) in sorted(sums.items(), key=lambda one: -one[1][1]):
        by_op = sorted(launched.get(name, {}).items(), key=lambda one: -one[1])
        whole = sum(part for _, part in by_op) or 1.0
        found.append(
            {
                "name": name,
                "op": by_op[0][0] if by_op else None,
                "ops": [[op_name, part / whole] for op_name, part in by_op],
                "calls": calls / steps,
                "seconds": us / steps / 1e6,
                "share": us / all_us,
            }
        )
    return found


def is_copy(name):
    """Whether an activity of a GPU moves data to the host or from it."""
    return name.startswith("Memcpy") and ("HtoD" in name or "DtoH" in name)


def joined(spans):
    """Sorted spans without overlap."""
    found = []
    for start, end in spans:
        if found and start <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end])
    return found


def gaps_of(spans):
    """The gaps between spans that are worth counting."""
    gaps = [after[0] - before[1] for before, after in zip(spans, spans[1:])]
    return [gap for gap in gaps if gap >= SHORTEST_GAP_US]


def shared(these, those):
    """The time in which both lists of sorted spans without overlap have one."""
    total, place = 0.0, 0
    for start, end in these:
        while place < len(those) and those[place][1] <= start:
            place += 1
        at = place
        while at < len(those) and those[at][0] < end:
            total += min(end, those[at][1]) - max(start, those[at][0])
            at += 1
    return total
