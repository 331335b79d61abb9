//! How a GPU spent its time: kernels, copies beside them, and gaps.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{Activity, ActivityKind, FunctionCalls};
use crate::span::SpanTree;

/// Gaps shorter than this are the GPU's own way from one kernel to the next.
const SHORTEST_GAP_NS: u64 = 2_000;
/// Gaps up to this are the time that the host takes to launch the next kernel; longer ones have another reason, such as
/// waiting for data or reading a result.
const LONGEST_LAUNCH_NS: u64 = 100_000;

/// Timeline of a GPU over some steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuTimeline {
    /// Steps that were watched, running freely: nobody waited for the GPU between ops.
    pub steps: u64,
    /// Seconds from the first step's beginning to the last one's end.
    pub seconds: f64,
    /// Part of the time in which the GPU did nothing, in [0, 1].
    pub idle_share: f64,
    /// Gaps between two things that it did, in a step.
    pub gaps: f64,
    pub longest_gap_s: f64,
    /// Seconds of a step in gaps of at most 0.1 ms: kernels that came too late.
    #[serde(default)]
    pub launch_gap_s: f64,
    /// Seconds of a step in longer gaps: the host did something else.
    #[serde(default)]
    pub host_gap_s: f64,
    /// Seconds of a step in which data moved between the host's memory and the GPU's.
    pub transfer_s: f64,
    /// Part of them in which a kernel ran as well, in [0, 1]; absent where nothing moved.
    pub transfer_overlap: Option<f64>,
    /// Kernels, copies and fills, the longest first. Means of a step.
    pub kernels: Vec<KernelTime>,
    /// Calls of the driver that the host made, where they were counted.
    #[serde(default)]
    pub calls: Option<DriverCalls>,
}

/// The driver's calls in a step. Steps that are to be replayed as a whole may make launches and nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DriverCalls {
    pub launches: f64,
    /// Launches of whole graphs, which are among the launches.
    #[serde(default)]
    pub graph_launches: f64,
    /// Allocations of memory; giving it back is not counted.
    pub allocations: f64,
    /// Times that the host waited for the GPU.
    pub waits: f64,
    /// Copies and fills.
    pub copies: f64,
    /// Seconds in all calls but those that wait.
    pub seconds: f64,
}

impl DriverCalls {
    /// The means of `steps` steps.
    pub(in crate::profile) fn new(calls: &[FunctionCalls], steps: u64) -> Self {
        let mut sums = Self::default();
        let steps = steps.max(1) as f64;
        for FunctionCalls { name, count, seconds } in calls {
            let count = *count as f64 / steps;
            // `cuMemAllocAsync`, `cuMemAllocFromPoolAsync`, `cuMemcpyHtoDAsync_v2`, `cuStreamSynchronize` ...
            if name.contains("Synchronize") {
                sums.waits += count;
                continue;
            }
            sums.seconds += seconds / steps;
            if name.contains("Launch") {
                sums.launches += count;
                if name.contains("GraphLaunch") {
                    sums.graph_launches += count;
                }
            } else if name.contains("MemAlloc") {
                sums.allocations += count;
            } else if name.contains("Memcpy") || name.contains("Memset") {
                sums.copies += count;
            }
        }
        sums
    }
}

/// All calls of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelTime {
    pub name: String,
    /// The op that most of its time was launched in, where that is known.
    pub op: Option<String>,
    /// All ops that launched it, and the part of its time in each: libraries have one kernel for products of many ops.
    #[serde(default)]
    pub ops: Vec<(String, f64)>,
    pub calls: f64,
    pub seconds: f64,
    /// Part of all that the GPU did, in [0, 1].
    pub share: f64,
}

impl KernelTime {
    /// Part of its time that was launched in an op.
    fn part_of(&self, op: &str) -> f64 {
        let known = self.ops.iter().find(|(other, _)| other == op);
        match known {
            Some((_, part)) => *part,
            // Of a profile that has one op for each kernel.
            None if self.ops.is_empty() && self.op.as_deref() == Some(op) => 1.0,
            None => 0.0,
        }
    }
}

/// Times at which a GPU ran something, in nanoseconds, in any order.
#[derive(Clone, Debug, Default)]
pub(in crate::profile) struct GpuRanges {
    /// Copies between the host's memory and the GPU's.
    pub transfers: Vec<(u64, u64)>,
    /// Kernels, and copies and fills within the GPU's memory.
    pub kernels: Vec<(u64, u64)>,
}

impl GpuTimeline {
    /// The timeline of `steps` steps between two moments, from what ran freely (`free`) and from what ran in steps whose
    /// spans wait for the device (`spanned`, in `trees`), which tell which op launched what.
    pub(in crate::profile) fn new(
        free: &[Activity],
        (start_ns, end_ns): (u64, u64),
        steps: u64,
        spanned: &[Activity],
        trees: &[SpanTree],
    ) -> Self {
        let within = |activity: &Activity| (activity.start_ns.max(start_ns), activity.end_ns.min(end_ns));
        let of = |is_wanted: &dyn Fn(ActivityKind) -> bool| -> Vec<(u64, u64)> {
            free.iter()
                .filter(|activity| is_wanted(activity.kind))
                .map(within)
                .collect()
        };
        let ranges = GpuRanges {
            transfers: of(&|kind| kind == ActivityKind::Transfer),
            kernels: of(&|kind| kind != ActivityKind::Transfer),
        };
        let kernels = kernel_times(free, steps, &ops_of(spanned, trees));
        Self::of_ranges(ranges, (start_ns, end_ns), steps, kernels)
    }

    /// The timeline of `steps` steps between two moments, from the times at which something ran.
    pub(in crate::profile) fn of_ranges(
        ranges: GpuRanges,
        (start_ns, end_ns): (u64, u64),
        steps: u64,
        kernel_times: Vec<KernelTime>,
    ) -> Self {
        let transfers = union(ranges.transfers.into_iter());
        let kernels = union(ranges.kernels.into_iter());
        let busy = union(transfers.iter().chain(&kernels).copied());
        let whole = end_ns.saturating_sub(start_ns).max(1);
        let gaps: Vec<u64> = gaps(&busy).filter(|gap| *gap >= SHORTEST_GAP_NS).collect();
        let is_launch = |gap: &&u64| **gap <= LONGEST_LAUNCH_NS;
        let per_step = |amount: f64| amount / steps.max(1) as f64;
        let moved = length(&transfers);
        let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
        Self {
            steps,
            seconds: seconds(whole),
            idle_share: 1.0 - length(&busy) as f64 / whole as f64,
            gaps: per_step(gaps.len() as f64),
            longest_gap_s: seconds(gaps.iter().copied().max().unwrap_or(0)),
            launch_gap_s: per_step(seconds(gaps.iter().filter(|gap| is_launch(gap)).sum())),
            host_gap_s: per_step(seconds(gaps.iter().filter(|gap| !is_launch(gap)).sum())),
            transfer_s: per_step(seconds(moved)),
            transfer_overlap: (moved > 0).then(|| overlap(&transfers, &kernels) as f64 / moved as f64),
            kernels: kernel_times,
            calls: None,
        }
    }

    /// Seconds of one step.
    pub fn step_s(&self) -> f64 {
        self.seconds / self.steps.max(1) as f64
    }

    /// Seconds of a step in which data moved between the host and the GPU while no kernel ran.
    pub fn exposed_transfer_s(&self) -> f64 {
        self.transfer_s * (1.0 - self.transfer_overlap.unwrap_or(0.0))
    }

    /// Kernels that an op launched, the longest first.
    pub fn kernels_of<'a>(&'a self, op: &'a str) -> impl Iterator<Item = &'a KernelTime> {
        self.kernels.iter().filter(move |kernel| kernel.part_of(op) > 0.0)
    }

    /// Seconds of a step in the kernels that an op launched.
    pub fn seconds_of(&self, op: &str) -> f64 {
        let kernels = self.kernels.iter();
        kernels.map(|kernel| kernel.seconds * kernel.part_of(op)).sum()
    }
}

fn kernel_times(free: &[Activity], steps: u64, ops: &HashMap<&str, Vec<(String, f64)>>) -> Vec<KernelTime> {
    let mut sums: HashMap<&str, (u64, f64)> = HashMap::new();
    for activity in free {
        let sum = sums.entry(&activity.name).or_default();
        *sum = (sum.0 + 1, sum.1 + activity.seconds());
    }
    let all: f64 = sums.values().map(|(_, seconds)| seconds).sum();
    let steps = steps.max(1) as f64;
    let time = |(name, (calls, seconds)): (&str, (u64, f64))| {
        let ops = ops.get(name).cloned().unwrap_or_default();
        KernelTime {
            name: name.to_owned(),
            op: ops.first().map(|(op, _)| op.clone()),
            ops,
            calls: calls as f64 / steps,
            seconds: seconds / steps,
            share: if all > 0.0 { seconds / all } else { 0.0 },
        }
    };
    let mut times: Vec<KernelTime> = sums.into_iter().map(time).collect();
    times.sort_by(|a, b| b.seconds.total_cmp(&a.seconds).then_with(|| a.name.cmp(&b.name)));
    times
}

/// Ops in which each kernel spent its time, and the part in each, the largest first.
fn ops_of<'a>(spanned: &'a [Activity], trees: &[SpanTree]) -> HashMap<&'a str, Vec<(String, f64)>> {
    let mut of_kernels: HashMap<&str, HashMap<&'static str, f64>> = HashMap::new();
    for activity in spanned {
        if let Some(op) = activity.op_in(trees) {
            *of_kernels.entry(&activity.name).or_default().entry(op).or_default() += activity.seconds();
        }
    }
    let parts = |seconds: HashMap<&'static str, f64>| {
        let all: f64 = seconds.values().sum();
        let part = |(op, seconds): (&str, f64)| (op.to_owned(), seconds / all.max(f64::MIN_POSITIVE));
        let mut parts: Vec<(String, f64)> = seconds.into_iter().map(part).collect();
        parts.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        parts
    };
    of_kernels
        .into_iter()
        .map(|(name, seconds)| (name, parts(seconds)))
        .collect()
}

/// Joins ranges into ones that cover the same moments and do not touch, in their order.
fn union(ranges: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut ranges: Vec<_> = ranges.filter(|(start, end)| start < end).collect();
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged
}

fn length(ranges: &[(u64, u64)]) -> u64 {
    ranges.iter().map(|(start, end)| end - start).sum()
}

fn gaps(ranges: &[(u64, u64)]) -> impl Iterator<Item = u64> {
    ranges.windows(2).map(|pair| pair[1].0 - pair[0].1)
}

/// Nanoseconds that two unions share.
fn overlap(one: &[(u64, u64)], other: &[(u64, u64)]) -> u64 {
    length(one) + length(other) - length(&union(one.iter().chain(other).copied()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::profile::fixtures::{op, span, tree};
    use crate::span::{Range, StepPhase};

    fn activity(kind: ActivityKind, name: &str, start_ns: u64, end_ns: u64) -> Activity {
        Activity {
            kind,
            name: name.to_owned(),
            start_ns,
            end_ns,
            bytes: 0,
            stream: 7,
        }
    }

    #[test]
    fn idle_time_gaps_and_overlap_are_those_of_the_timeline() {
        use ActivityKind::{Kernel, Transfer};
        let free = [
            activity(Kernel, "a", 10_000, 20_000),
            // Beside the first kernel, and for half of its time beside nothing.
            activity(Transfer, "copy to the device", 15_000, 25_000),
            activity(Kernel, "b", 40_000, 45_000),
            // A gap too short to count.
            activity(Kernel, "a", 46_000, 50_000),
        ];
        let step = tree(vec![
            span(Range::Phase(StepPhase::Step), None, 0, 1_000),
            op("rope", Some(0), (0, 500), (0, 1)),
        ]);
        let spanned = [activity(Kernel, "a", 100, 200), activity(Kernel, "b", 700, 800)];
        let timeline = GpuTimeline::new(&free, (0, 60_000), 2, &spanned, &[step]);
        assert!((timeline.idle_share - 36.0 / 60.0).abs() < 1e-12, "{timeline:?}");
        assert_eq!((timeline.gaps, timeline.longest_gap_s), (0.5, 15e-6));
        assert_eq!((timeline.launch_gap_s, timeline.host_gap_s), (7.5e-6, 0.0));
        assert!((timeline.step_s() - 30e-6).abs() < 1e-15);
        assert!((timeline.exposed_transfer_s() - 2.5e-6).abs() < 1e-15);
        let of_rope: Vec<_> = timeline.kernels_of("rope").map(|kernel| kernel.name.as_str()).collect();
        assert_eq!(of_rope, ["a"]);
        assert_eq!((timeline.transfer_s, timeline.transfer_overlap), (5e-6, Some(0.5)));
        let names: Vec<_> = timeline.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
        assert_eq!(names, ["a", "copy to the device", "b"]);
        let first = &timeline.kernels[0];
        assert_eq!((first.op.as_deref(), first.calls), (Some("rope"), 1.0));
        assert!((first.seconds - 7e-6).abs() < 1e-15 && (first.share - 14.0 / 29.0).abs() < 1e-12);
        assert_eq!(timeline.kernels[2].op, None);
    }

    #[test]
    fn a_kernel_of_several_ops_is_divided_among_them() {
        let at = |start_ns, end_ns| activity(ActivityKind::Kernel, "gemm", start_ns, end_ns);
        let step = tree(vec![
            span(Range::Phase(StepPhase::Step), None, 0, 1_000),
            op("matmul_nt", Some(0), (0, 300), (1, 0)),
            op("loss_head", Some(0), (300, 1_000), (1, 0)),
        ]);
        let spanned = [at(0, 100), at(400, 700)];
        let timeline = GpuTimeline::new(&[at(0, 8_000)], (0, 8_000), 1, &spanned, &[step]);
        let of = |op: &str| (1e9 * timeline.seconds_of(op)).round();
        assert_eq!((of("matmul_nt"), of("loss_head"), of("rope")), (2_000.0, 6_000.0, 0.0));
        let kernel = &timeline.kernels[0];
        assert_eq!(
            (kernel.op.as_deref(), timeline.kernels_of("matmul_nt").count()),
            (Some("loss_head"), 1)
        );
        // As profiles were kept that had one op for each.
        let earlier = GpuTimeline {
            kernels: vec![KernelTime {
                ops: Vec::new(),
                ..kernel.clone()
            }],
            ..timeline.clone()
        };
        assert_eq!(
            (earlier.seconds_of("loss_head"), earlier.seconds_of("matmul_nt")),
            (8e-6, 0.0)
        );
    }

    #[test]
    fn long_gaps_are_the_hosts() {
        let at = |start_ns| activity(ActivityKind::Kernel, "a", start_ns, start_ns + 10_000);
        let free = [at(0), at(15_000), at(300_000)];
        let timeline = GpuTimeline::new(&free, (0, 310_000), 1, &[], &[]);
        assert_eq!((timeline.launch_gap_s, timeline.host_gap_s), (5e-6, 275e-6));
    }

    #[test]
    fn the_drivers_calls_are_told_apart_by_their_names() {
        let calls = [
            ("cuLaunchKernel", 600, 3e-3),
            ("cuLaunchKernelEx", 198, 1e-3),
            ("cuGraphLaunch", 2, 0.0),
            ("cuMemAllocAsync", 500, 1e-3),
            ("cuMemFreeAsync", 500, 5e-4),
            ("cuMemcpyHtoDAsync_v2", 10, 1e-4),
            ("cuMemsetD8Async", 30, 1e-4),
            ("cuStreamSynchronize", 4, 0.5),
            ("cuCtxSetCurrent", 900, 1e-4),
        ];
        let calls = calls.map(|(name, count, seconds)| FunctionCalls {
            name: name.to_owned(),
            count,
            seconds,
        });
        let step = DriverCalls::new(&calls, 2);
        assert_eq!((step.launches, step.allocations), (400.0, 250.0));
        assert_eq!((step.waits, step.copies, step.graph_launches), (2.0, 20.0, 1.0));
        assert!((step.seconds - 2.9e-3).abs() < 1e-12, "{step:?}");
    }

    #[test]
    fn an_empty_timeline_is_idle() {
        let timeline = GpuTimeline::new(&[], (5, 5), 0, &[], &[]);
        assert_eq!((timeline.idle_share, timeline.transfer_overlap), (1.0, None));
    }

    proptest! {
        #[test]
        fn a_union_holds_each_moment_once(ranges in prop::collection::vec((0u64..60, 0u64..20), 0..12)) {
            let ranges: Vec<_> = ranges.into_iter().map(|(start, length)| (start, start + length)).collect();
            let holds = |ranges: &[(u64, u64)], moment: u64| ranges.iter().any(|(start, end)| (*start..*end).contains(&moment));
            let merged = union(ranges.iter().copied());
            let moments = (0..80).filter(|moment| holds(&ranges, *moment)).count();
            prop_assert_eq!(length(&merged), moments as u64);
            prop_assert!(merged.windows(2).all(|pair| pair[0].1 < pair[1].0));
        }

        #[test]
        fn overlap_counts_the_moments_of_both(
            one in prop::collection::vec((0u64..60, 0u64..20), 0..8), other in prop::collection::vec((0u64..60, 0u64..20), 0..8),
        ) {
            let ranges = |pairs: Vec<(u64, u64)>| union(pairs.into_iter().map(|(start, length)| (start, start + length)));
            let (one, other) = (ranges(one), ranges(other));
            let holds = |ranges: &[(u64, u64)], moment: u64| ranges.iter().any(|(start, end)| (*start..*end).contains(&moment));
            let both = (0..80).filter(|moment| holds(&one, *moment) && holds(&other, *moment)).count();
            prop_assert_eq!(overlap(&one, &other), both as u64);
        }
    }
}
