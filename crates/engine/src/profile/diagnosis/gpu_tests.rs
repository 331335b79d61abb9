//! The rules on a GPU's timeline, on timelines made by hand.

use super::tests::Case;
use super::*;
use crate::profile::fixtures::{op, span, tree};
use crate::profile::sample::HeldBy;
use crate::profile::{Activity, ActivityKind, DeviceSample, GpuTimeline, SpanTiming, SpannedSteps};
use crate::span::{Range, StepPhase};
use peft_tune_core::recipe::{Checkpointing, OptimizerKind, OptimizerOffload, Precision, Recipe};

const MS: u64 = 1_000_000;

/// A GPU that ran these (kind, name, beginning, end in nanoseconds) in one step of 100 ms, whose kernels `gemm` the op
/// `matmul_nt` launched.
fn timeline(ran: &[(ActivityKind, &str, u64, u64)]) -> GpuTimeline {
    let activity = |kind, name: &str, start_ns, end_ns| Activity {
        kind,
        name: name.to_owned(),
        start_ns,
        end_ns,
        bytes: 0,
        stream: 7,
    };
    let free: Vec<_> = ran
        .iter()
        .map(|(kind, name, start, end)| activity(*kind, name, *start, *end))
        .collect();
    let step = tree(vec![
        span(Range::Phase(StepPhase::Step), None, 0, 1_000),
        op("matmul_nt", Some(0), (0, 500), (1, 0)),
    ]);
    let spanned = [activity(ActivityKind::Kernel, "gemm", 100, 200)];
    GpuTimeline::new(&free, (0, 100 * MS), 1, &spanned, &[step])
}

/// Kernels of `busy_ns`, one every `every_ns`, over the whole step.
fn kernels(busy_ns: u64, every_ns: u64) -> Vec<(ActivityKind, &'static str, u64, u64)> {
    let starts = (0..100 * MS).step_by(every_ns as usize);
    starts
        .map(|start| (ActivityKind::Kernel, "gemm", start, start + busy_ns))
        .collect()
}

fn case(ran: &[(ActivityKind, &str, u64, u64)]) -> Case {
    let mut case = Case::sound();
    case.profile.gpu = Some(timeline(ran));
    // The sound profile's two products take longer than these kernels.
    case.profile.ops.retain(|op| op.name == "matmul_nt");
    case.profile.ops[0].roofline_share = Some(1.0);
    case.profile.ops[0].seconds = 0.06;
    case
}

fn near(gain: Option<Gain>, expected: f64) -> bool {
    gain.is_some_and(|gain| (gain.value - expected).abs() < 1e-6 && gain.by == PredictedBy::Shares)
}

#[test]
fn a_busy_gpu_needs_no_change() {
    assert_eq!(case(&kernels(99_000, 100_000)).findings(), []);
}

#[test]
fn short_gaps_between_kernels_are_launches_that_come_too_late() {
    let mut slow = case(&kernels(60_000, 100_000));
    slow.profile.ops[0].seconds = 0.05;
    let finding = slow.finds(Rule::LaunchBound);
    let twice = |gradient_accumulation| Change::Batch {
        micro_batch: 8,
        gradient_accumulation,
    };
    assert_eq!(finding.change, twice(1));
    let evidence = &finding.evidence;
    assert!(evidence.starts_with("the GPU waits 40% of the step"), "{evidence}");
    assert!(
        evidence.contains("1000 of them in a step, of 60 us on average"),
        "{evidence}"
    );
    assert!(evidence.contains("global batch"), "{evidence}");
    // Half of 39.96%: the last gap ends with the step.
    assert!(near(finding.gain, 0.1998 / (1.0 - 0.1998)), "{finding:?}");
    slow.profile.setting.gradient_accumulation = 4;
    assert_eq!(slow.finds(Rule::LaunchBound).change, twice(2));
    slow.misses(Rule::HostBound);
    // The host's own clock would say the same of the same steps.
    slow.phase("forward").op_seconds = 0.0;
    slow.misses(Rule::SmallMicroBatch);
    case(&kernels(95_000, 100_000)).misses(Rule::LaunchBound);
}

#[test]
fn a_long_gap_is_the_hosts_and_not_the_datas() {
    let ran = [
        (ActivityKind::Kernel, "gemm", 0, 50 * MS),
        (ActivityKind::Kernel, "gemm", 80 * MS, 100 * MS),
    ];
    let mut waits = case(&ran);
    let finding = waits.finds(Rule::HostBound);
    assert!(finding.evidence.contains("30.0 ms at the longest"), "{finding:?}");
    // All but what waiting for data takes anyway.
    assert!(near(finding.gain, 0.298 / (1.0 - 0.298)), "{finding:?}");
    waits.misses(Rule::LaunchBound);
    waits.phase("data").share = 0.28;
    waits.misses(Rule::HostBound);
}

#[test]
fn copies_count_where_no_kernel_runs_beside_them() {
    let copying = |until| {
        case(&[
            (ActivityKind::Kernel, "gemm", 0, 80 * MS),
            (ActivityKind::Transfer, "copy to the host", 70 * MS, until),
        ])
    };
    let mut exposed = copying(100 * MS);
    let finding = exposed.finds(Rule::CopiesNotOverlapped);
    assert!(matches!(finding.change, Change::Advice(_)));
    assert!(finding.evidence.starts_with("30.0 ms of a step"), "{finding:?}");
    assert!(near(finding.gain, 0.25), "{finding:?}");
    exposed.recipe.optimizer.kind = OptimizerKind::PagedAdamW;
    let change = exposed.finds(Rule::CopiesNotOverlapped).change;
    assert_eq!(change, Change::Optimizer(OptimizerKind::AdamW));
    exposed.recipe.optimizer.kind = OptimizerKind::AdamW;
    exposed.recipe.optimizer.offload = OptimizerOffload::Host;
    let change = exposed.finds(Rule::CopiesNotOverlapped).change;
    assert_eq!(change, Change::OptimizerOffload(OptimizerOffload::None));
    exposed.recipe.gradient_checkpointing = Checkpointing::Offload;
    let change = exposed.finds(Rule::CopiesNotOverlapped).change;
    assert_eq!(change, Change::Checkpointing(Checkpointing::Full));
    copying(83 * MS).misses(Rule::CopiesNotOverlapped);
}

#[test]
fn updates_on_the_host_wait_for_a_norm_that_nothing_else_asks_for() {
    let mut waits = case(&kernels(99_000, 100_000));
    waits.phase("optimizer").share = 0.2;
    waits.recipe.optimizer.offload = OptimizerOffload::Host;
    waits.recipe.optimizer.max_grad_norm = Some(1.0);
    let backward = waits.phase("backward").share;
    let finding = waits.finds(Rule::HostUpdatesWait);
    assert!(
        finding.evidence.starts_with("updates on the host take 20% of the step"),
        "{finding:?}"
    );
    assert!(near(finding.gain, 0.2 / 0.8) && backward > 0.2, "{finding:?}");
    // No more than the backward pass takes can be hidden.
    waits.phase("backward").share = 0.1;
    assert!(near(waits.finds(Rule::HostUpdatesWait).gain, 0.1 / 0.9));
    waits.recipe.optimizer.max_grad_norm = None;
    waits.misses(Rule::HostUpdatesWait);
    // Gradients in F16 may overflow: all of them are waited for anyway.
    waits.recipe.optimizer.max_grad_norm = Some(1.0);
    waits.recipe.precision = Precision::Fp16;
    waits.misses(Rule::HostUpdatesWait);
    waits.recipe.precision = Precision::Bf16;
    waits.recipe.optimizer.offload = OptimizerOffload::None;
    waits.misses(Rule::HostUpdatesWait);
}

#[test]
fn what_would_not_fit_is_not_proposed_against_copies() {
    struct Larger;
    impl Oracle for Larger {
        fn cost(&self, recipe: &Recipe) -> Option<Cost> {
            Some(Cost {
                tokens_per_s: 1.0,
                peak_bytes: if recipe.optimizer.kind == OptimizerKind::AdamW {
                    900.0
                } else {
                    100.0
                },
            })
        }
    }
    let mut exposed = case(&[
        (ActivityKind::Kernel, "gemm", 0, 80 * MS),
        (ActivityKind::Transfer, "copy to the host", 80 * MS, 100 * MS),
    ]);
    exposed.recipe.optimizer.kind = OptimizerKind::PagedAdamW;
    let change = |case: &Case| {
        let findings = case.findings_with(&Larger);
        let found = findings.into_iter().find(|one| one.rule == Rule::CopiesNotOverlapped);
        found.unwrap().change
    };
    exposed.profile.setting.memory_limit_bytes = Some(1_000);
    assert_eq!(change(&exposed), Change::Optimizer(OptimizerKind::AdamW));
    exposed.profile.setting.memory_limit_bytes = Some(800);
    assert!(matches!(change(&exposed), Change::Advice(_)));
}

#[test]
fn kernels_far_below_the_ceiling_are_named() {
    let mut slow = case(&kernels(99_000, 100_000));
    // Of 99 ms in kernels the ceilings ask for 20.
    slow.profile.ops[0].seconds = 0.1;
    slow.profile.ops[0].roofline_share = Some(0.2);
    slow.profile.ops[0].flops = 9.9e12;
    let finding = slow.finds(Rule::LowTensorCoreUse);
    let evidence = &finding.evidence;
    assert!(
        evidence.contains("matmul_nt take 99% of the step at 100.0 TFLOP/s, 20%"),
        "{evidence}"
    );
    assert!(evidence.contains("`gemm` with 1000 calls of 99 us"), "{evidence}");
    assert_eq!(finding.change, Change::Packing);
    let share = 0.99 * (1.0 - 0.02 / 0.099 / 0.7);
    assert!(near(finding.gain, share / (1.0 - share)), "{finding:?}");
    // The kernels' own time goes before the time of steps in which spans waited.
    slow.misses(Rule::SlowOp);
    slow.profile.ops[0].roofline_share = Some(0.5);
    slow.misses(Rule::LowTensorCoreUse);
    // Widening codes has a rule of its own, and without ceilings nothing can be said.
    for change in [
        (|op: &mut crate::profile::OpTime| op.storage = "nf4".to_owned()) as fn(&mut crate::profile::OpTime),
        |op| op.roofline_share = None,
    ] {
        slow.profile.ops[0].roofline_share = Some(0.2);
        change(&mut slow.profile.ops[0]);
        slow.misses(Rule::LowTensorCoreUse);
    }
}

#[test]
fn waits_of_steps_with_spans_are_no_time_between_ops() {
    let mut waits = Case::sound();
    waits.recipe.batch.gradient_accumulation = 2;
    waits.profile.setting.gradient_accumulation = 2;
    waits.profile.setting.memory_limit_bytes = Some(u64::MAX);
    for name in ["forward", "backward"] {
        waits.phase(name).op_seconds = 0.0;
    }
    waits.finds(Rule::RoomForALargerMicroBatch);
    waits.finds(Rule::SmallMicroBatch);
    waits.profile.steps.spanned = Some(SpannedSteps {
        steps: 6,
        step_s: 0.1,
        slowdown: 2.0,
        timed_by: SpanTiming::Waits,
    });
    waits.misses(Rule::RoomForALargerMicroBatch);
    waits.misses(Rule::SmallMicroBatch);
    // What the GPU itself waits for launches is told.
    waits.profile.gpu = Some(timeline(&kernels(60_000, 100_000)));
    waits.finds(Rule::RoomForALargerMicroBatch);
    // What the host does by itself is twice as large a part of a step that takes half the time.
    waits.phase("data").share = 0.03;
    assert_eq!(waits.profile.phase_share(StepPhase::Data), 0.06);
    waits.finds(Rule::DataBound);
}

#[test]
fn the_power_limit_is_told_from_heat() {
    let mut held = case(&kernels(50_000, 100_000));
    let sample = |by: HeldBy| {
        move |at: usize| {
            // As often in the first quarter as in the last one: no clock that falls.
            let is_held = [1, 2].contains(&(at % 4));
            DeviceSample {
                clock_mhz: Some(if is_held { 1485.0 } else { 1980.0 }),
                throttled: Some(is_held),
                held_by: is_held.then_some(by),
                ..DeviceSample::default()
            }
        }
    };
    held.samples(sample(HeldBy::Power));
    let finding = held.finds(Rule::Throttled);
    assert_eq!(
        finding.evidence,
        "the device held its clock down in 50% of the samples, to 1485 of 1980 MHz: its power limit"
    );
    // A quarter of the clock, in the half of the step in which the GPU works.
    assert!(near(finding.gain, 0.125 / 0.875), "{finding:?}");
    held.samples(sample(HeldBy::Heat));
    let Change::Advice(advice) = held.finds(Rule::Throttled).change else {
        panic!("no advice")
    };
    assert!(advice.contains("cool"), "{advice}");
}

#[test]
fn a_gpu_that_is_busy_for_less_than_seventy_percent_is_called_so() {
    let sample = |busy: f64, process_cores: Option<f64>| {
        move |_: usize| DeviceSample {
            utilisation: Some(busy),
            process_cores,
            ..DeviceSample::default()
        }
    };
    let mut case = case(&kernels(99_000, 100_000));
    case.samples(sample(0.37, None));
    let finding = case.finds(Rule::LowUtilisation);
    assert!(
        finding.evidence.starts_with("the GPU is busy for 37% of the time"),
        "{finding:?}"
    );
    assert_eq!((finding.rule.name(), finding.gain), ("low_utilisation", None));
    case.samples(sample(0.71, None));
    case.misses(Rule::LowUtilisation);
    // A processor, of whose cores a training has a few.
    case.samples(sample(0.37, Some(2.0)));
    case.misses(Rule::LowUtilisation);
    case.profile.samples.clear();
    case.misses(Rule::LowUtilisation);
}

#[test]
fn neighbours_on_a_gpu_compute_or_hold_its_memory() {
    let gib = 1u64 << 30;
    let sample = |busy: f64, others: u64| {
        move |_: usize| DeviceSample {
            other_utilisation: Some(busy),
            memory_bytes: Some(10 * gib + others),
            resident_bytes: Some(10 * gib),
            total_bytes: Some(80 * gib),
            ..DeviceSample::default()
        }
    };
    let mut case = case(&kernels(99_000, 100_000));
    case.samples(sample(0.0, gib));
    case.misses(Rule::NoisyNeighbour);
    case.samples(sample(0.0, 8 * gib));
    let finding = case.finds(Rule::NoisyNeighbour);
    assert_eq!(
        finding.evidence,
        "other processes hold 8192.0 MiB of the GPU's 81920.0 MiB"
    );
    assert_eq!(finding.gain, None);
    case.samples(sample(0.3, gib));
    case.profile.steps.each[..4].fill((0.08, 1000));
    let finding = case.finds(Rule::NoisyNeighbour);
    assert!(finding.evidence.contains("busy for 30%"), "{finding:?}");
    assert!(near(finding.gain, 0.25), "{finding:?}");
    // A container that numbers its processes by itself cannot tell its own memory from that of others.
    case.samples(|_| DeviceSample {
        memory_bytes: Some(40 * gib),
        total_bytes: Some(80 * gib),
        ..DeviceSample::default()
    });
    case.misses(Rule::NoisyNeighbour);
}
