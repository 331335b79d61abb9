//! What a GPU ran in the steps of a trace.

use std::collections::{BTreeMap, HashMap};

use super::marks;
use super::ops::Launch;
use super::phases::{PhaseSpan, Phases};
use super::recorded::{GpuEvent, Recorded};
use super::steps::Steps;
use crate::profile::ActivityKind;
use crate::profile::kernels::{GpuRanges, GpuTimeline, KernelTime};
use crate::span::StepPhase;

/// A kernel, copy or fill of the steps, with what launched it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Launched {
    pub event: GpuEvent,
    pub launch: Launch,
}

/// What the steps launched, in the order in which it ran; what has no op counts for the step in which it ran.
pub(super) fn launched(recorded: &Recorded, steps: &Steps) -> Vec<Launched> {
    let with_numbers = recorded
        .host
        .iter()
        .enumerate()
        .filter(|(_, event)| event.external != 0);
    let ops: HashMap<u64, usize> = with_numbers.map(|(place, event)| (event.external, place)).collect();
    let all = recorded.gpu.iter().map(|event| {
        let of_call = || {
            recorded
                .op_of_call
                .get(&event.correlation)
                .and_then(|number| ops.get(number))
        };
        let op = ops.get(&event.external).or_else(of_call).copied();
        Launched {
            event: *event,
            launch: Launch {
                op,
                start_ns: event.start_ns,
                ns: event.end_ns.saturating_sub(event.start_ns),
            },
        }
    });
    let is_of_steps = |launched: &Launched| {
        let began = launched
            .launch
            .op
            .map_or(launched.event.start_ns, |op| recorded.host[op].start_ns);
        steps.place(began).is_some()
    };
    all.filter(is_of_steps).collect()
}

/// Phases by what the GPU is at.
pub(super) fn phases(recorded: &Recorded, on_host: &Phases, launched: &[Launched]) -> Phases {
    let spans = launched.iter().map(|one| {
        let began = one
            .launch
            .op
            .map_or(one.event.start_ns, |op| recorded.host[op].start_ns);
        PhaseSpan {
            start_ns: one.event.start_ns,
            end_ns: one.event.end_ns,
            // What no mark tells of follows on the passes, as an update does.
            phase: on_host.at(began).unwrap_or(StepPhase::Optimizer),
        }
    });
    on_host.on_gpu(spans)
}

/// The timeline, from the first step's beginning until the GPU is done; `None` where it ran nothing.
pub(super) fn timeline(recorded: &Recorded, steps: &Steps, launched: &[Launched]) -> Option<GpuTimeline> {
    let last = launched.iter().map(|one| one.event.end_ns).max()?;
    let (start_ns, end_ns) = steps.bounds();
    let of = |is_wanted: fn(ActivityKind) -> bool| -> Vec<(u64, u64)> {
        let wanted = launched.iter().filter(|one| is_wanted(one.event.kind));
        wanted
            .map(|one| (one.event.start_ns.max(start_ns), one.event.end_ns))
            .collect()
    };
    let ranges = GpuRanges {
        transfers: of(|kind| kind == ActivityKind::Transfer),
        kernels: of(|kind| kind != ActivityKind::Transfer),
    };
    let kernels = kernels(recorded, steps, launched);
    Some(GpuTimeline::of_ranges(
        ranges,
        (start_ns, end_ns.max(last)),
        steps.count(),
        kernels,
    ))
}

/// Kernels and copies, the longest first, with the ops that launched them.
fn kernels(recorded: &Recorded, steps: &Steps, launched: &[Launched]) -> Vec<KernelTime> {
    let mut sums: BTreeMap<u32, (u64, u64, BTreeMap<u32, u64>)> = BTreeMap::new();
    for one in launched {
        let (calls, ns, by_op) = sums.entry(one.event.name).or_default();
        *calls += 1;
        *ns = ns.saturating_add(one.launch.ns);
        let op = one.launch.op.map(|place| recorded.host[place].name);
        if let Some(op) = op.filter(|name| marks::phase_of(recorded.name(*name)).is_none()) {
            let of_op = by_op.entry(op).or_default();
            *of_op = of_op.saturating_add(one.launch.ns);
        }
    }
    let all = sums.values().fold(0, |all: u64, (_, ns, _)| all.saturating_add(*ns));
    let count = steps.count().max(1) as f64;
    let part = |ns: u64, of: u64| if of > 0 { ns as f64 / of as f64 } else { 0.0 };
    let kernel = |(name, (calls, ns, by_op)): (u32, (u64, u64, BTreeMap<u32, u64>))| {
        let of_ops = by_op.values().fold(0, |all: u64, ns| all.saturating_add(*ns));
        let ops = by_op
            .into_iter()
            .map(|(op, ns)| (recorded.name(op).to_owned(), part(ns, of_ops)));
        let mut ops: Vec<(String, f64)> = ops.collect();
        ops.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        KernelTime {
            name: recorded.name(name).to_owned(),
            op: ops.first().map(|(op, _)| op.clone()),
            ops,
            calls: calls as f64 / count,
            seconds: ns as f64 / 1e9 / count,
            share: part(ns, all),
        }
    };
    let mut kernels: Vec<KernelTime> = sums.into_iter().map(kernel).collect();
    kernels.sort_by(|a, b| b.seconds.total_cmp(&a.seconds).then_with(|| a.name.cmp(&b.name)));
    kernels
}
