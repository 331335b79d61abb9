//! Rules on a GPU's own timeline: waiting for launches, for the host and for copies, and kernels that are slow.
//!
//! The timeline is of steps that run freely, with nobody waiting between ops: what it does not fill, the GPU was idle.

use super::batching::twice_the_micro_batch;
use super::evidence::percent;
use super::products::{LEAST_SHARE, REACHABLE, SLOW, is_coded, more_tokens};
use super::{Change, Evidence, Finding, Gain, Rule};
use crate::profile::{GpuTimeline, OpTime};
use crate::span::StepPhase;
use peft_tune_core::recipe::{Checkpointing, OptimizerOffload, Recipe};

/// Part of the step that a GPU may wait for launches, and for what else the host does.
const MOST_WAITING: f64 = 0.1;
/// Part of the step that copies may take by themselves.
const MOST_COPYING: f64 = 0.05;
/// Part of the step that updates on the host may take behind the backward pass.
const MOST_UPDATING: f64 = 0.05;
/// Part of the memory limit that may be filled by what a rule proposes.
const MOST_FILLED: f64 = 0.9;

pub(super) fn launch_bound(evidence: &Evidence<'_>) -> Option<Finding> {
    let (gpu, step_s) = timeline(evidence)?;
    let waiting = gpu.launch_gap_s / step_s;
    if waiting <= MOST_WAITING {
        return None;
    }
    let calls: f64 = gpu.kernels.iter().map(|kernel| kernel.calls).sum();
    let busy_s = (1.0 - gpu.idle_share) * step_s;
    let (change, what_else) = twice_the_micro_batch(&evidence.profile.setting);
    // Twice the work in each kernel, and as many kernels as before.
    let gain = evidence
        .predicted_throughput(&change)
        .unwrap_or_else(|| Gain::without(waiting / 2.0));
    Some(Finding {
        rule: Rule::LaunchBound,
        evidence: format!(
            "the GPU waits {} of the step for the next kernel: {calls:.0} of them in a step, of {:.0} us on average; in all no \
             kernel runs in {} of it{what_else}",
            percent(waiting),
            1e6 * busy_s / calls.max(1.0),
            percent(gpu.idle_share)
        ),
        change,
        gain: Some(gain),
        verified: None,
    })
}

pub(super) fn host_bound(evidence: &Evidence<'_>) -> Option<Finding> {
    let (gpu, step_s) = timeline(evidence)?;
    // Waiting for data has a rule of its own.
    let profile = evidence.profile;
    let data = profile.phase_share(StepPhase::Data) + profile.phase_share(StepPhase::HostToDevice);
    let waiting = gpu.host_gap_s / step_s - data;
    if waiting <= MOST_WAITING {
        return None;
    }
    Some(Finding {
        rule: Rule::HostBound,
        evidence: format!(
            "the GPU does nothing in {} of the step while the host does something else than launching kernels, {:.1} ms at the longest",
            percent(waiting),
            1e3 * gpu.longest_gap_s
        ),
        change: Change::Advice(
            "look at the gaps in the trace (`--trace`), and give this process a free core to launch from".to_owned(),
        ),
        gain: Some(Gain::without(waiting)),
        verified: None,
    })
}

pub(super) fn copies_not_overlapped(evidence: &Evidence<'_>) -> Option<Finding> {
    let (gpu, step_s) = timeline(evidence)?;
    let exposed = gpu.exposed_transfer_s() / step_s;
    if exposed <= MOST_COPYING {
        return None;
    }
    let change = changes_that_copy_less(evidence.recipe).find(|change| fits(evidence, change));
    let change = change.unwrap_or_else(|| {
        Change::Advice(
            "give the copies more computation to hide behind: a larger micro_batch or sequence_length".to_owned(),
        )
    });
    let gain = evidence
        .predicted_throughput(&change)
        .unwrap_or_else(|| Gain::without(exposed));
    Some(Finding {
        rule: Rule::CopiesNotOverlapped,
        evidence: format!(
            "{:.1} ms of a step move data between the host and the GPU, {} of the step with no kernel beside",
            1e3 * gpu.transfer_s,
            percent(exposed)
        ),
        change,
        gain: Some(gain),
        verified: None,
    })
}

pub(super) fn host_updates_wait(evidence: &Evidence<'_>) -> Option<Finding> {
    timeline(evidence)?;
    let recipe = evidence.recipe;
    let unclipped = {
        let mut unclipped = recipe.clone();
        unclipped.optimizer.max_grad_norm = None;
        unclipped
    };
    // Where something else keeps them waiting as well, clipping is not to blame.
    let waits = !recipe.optimizer.offload.is_none() && recipe.updates_wait() && !unclipped.updates_wait();
    let profile = evidence.profile;
    let updating = profile.phase_share(StepPhase::Optimizer);
    if !waits || updating <= MOST_UPDATING {
        return None;
    }
    // The last layer's part has nothing left to go beside: at most what the backward pass takes is hidden.
    let hidden = updating.min(profile.phase_share(StepPhase::Backward));
    Some(Finding {
        rule: Rule::HostUpdatesWait,
        evidence: format!(
            "updates on the host take {} of the step, and begin behind the backward pass: they wait for the norm of all gradients",
            percent(updating)
        ),
        change: Change::Advice(
            "clip no gradients (`max_grad_norm: null`), which changes the training: each layer is then updated while the next is computed"
                .to_owned(),
        ),
        gain: Some(Gain::without(hidden)),
        verified: None,
    })
}

pub(super) fn low_tensor_core_use(evidence: &Evidence<'_>) -> Option<Finding> {
    let (gpu, step_s) = timeline(evidence)?;
    let slow = evidence.products().filter_map(|op| {
        let timed = TimedOp::new(evidence, &op.name)?;
        (timed.seconds >= LEAST_SHARE * step_s && timed.reached() < SLOW).then_some((&op.name, timed))
    });
    let (name, op) = slow.max_by(|a, b| a.1.seconds.total_cmp(&b.1.seconds))?;
    let (share, reached) = (op.seconds / step_s, op.reached());
    let change = more_tokens(evidence.profile);
    let gain = evidence
        .predicted_throughput(&change)
        .unwrap_or_else(|| Gain::without(share * (1.0 - reached / REACHABLE)));
    let kernel = gpu.kernels_of(name).next()?;
    Some(Finding {
        rule: Rule::LowTensorCoreUse,
        evidence: format!(
            "the kernels of {name} take {} of the step at {:.1} TFLOP/s, {} of what this device allows; the longest is `{}` with \
             {:.0} calls of {:.0} us",
            percent(share),
            op.flops / op.seconds / 1e12,
            percent(reached),
            short(&kernel.name),
            kernel.calls,
            1e6 * kernel.seconds / kernel.calls.max(1.0)
        ),
        change,
        gain: Some(gain),
        verified: None,
    })
}

/// Whether an op is judged here, by its kernels' own time.
pub(super) fn judges(evidence: &Evidence<'_>, op: &str) -> bool {
    TimedOp::new(evidence, op).is_some()
}

/// The timeline and the seconds of one of its steps.
fn timeline<'a>(evidence: &Evidence<'a>) -> Option<(&'a GpuTimeline, f64)> {
    let gpu = evidence.profile.gpu.as_ref()?;
    let step_s = gpu.step_s();
    (step_s > 0.0 && !gpu.kernels.is_empty()).then_some((gpu, step_s))
}

/// All calls of an op in a step, timed by the GPU.
struct TimedOp {
    seconds: f64,
    flops: f64,
    /// Seconds that the device's ceilings allow.
    least_s: f64,
}

impl TimedOp {
    /// `None` for ops whose kernels or ceilings are not known, and for those that widen codes first, which have a rule of their own.
    fn new(evidence: &Evidence<'_>, name: &str) -> Option<Self> {
        let seconds = evidence.kernel_seconds(name)?;
        let rows = evidence.profile.ops.iter().filter(|op| op.name == name);
        let mut timed = Self {
            seconds,
            flops: 0.0,
            least_s: 0.0,
        };
        for op in rows {
            if is_coded(&op.storage) {
                return None;
            }
            timed.flops += op.flops;
            timed.least_s += least_seconds(op)?;
        }
        Some(timed)
    }

    fn reached(&self) -> f64 {
        self.least_s / self.seconds
    }
}

fn least_seconds(op: &OpTime) -> Option<f64> {
    Some(op.roofline_share? * op.seconds)
}

/// Changes that move less between the host and the GPU, at the cost of the GPU's memory.
fn changes_that_copy_less(recipe: &Recipe) -> impl Iterator<Item = Change> {
    let offloads = recipe.gradient_checkpointing == Checkpointing::Offload;
    let kind = recipe.optimizer.kind;
    let plain = kind.is_paged().then(|| kind.unpaged());
    let kept = offloads.then_some(Change::Checkpointing(Checkpointing::Full));
    let on_device = !recipe.optimizer.offload.is_none();
    let on_device = on_device.then_some(Change::OptimizerOffload(OptimizerOffload::None));
    kept.into_iter().chain(plain.map(Change::Optimizer)).chain(on_device)
}

/// Whether the memory limit holds a change; one without a model of the memory is taken to.
fn fits(evidence: &Evidence<'_>, change: &Change) -> bool {
    match (evidence.peak_after(change), evidence.profile.setting.memory_limit_bytes) {
        (Some(after), Some(limit)) => after <= MOST_FILLED * limit as f64,
        _ => true,
    }
}

/// The beginning of a kernel's name: those of templates run on for hundreds of letters.
fn short(name: &str) -> &str {
    match name.char_indices().nth(60) {
        Some((end, _)) => &name[..end],
        None => name,
    }
}
