//! A trace as a profile.

use std::path::Path;

use super::gpu::{self, Launched};
use super::ops::{Batches, Launch, ops_of};
use super::phases::Phases;
use super::recorded::{HostEvent, Recorded};
use super::steps::{StepSource, Steps};
use super::stream::{TraceError, recorded};
use super::{marks, memory};
use crate::profile::{
    Arithmetic, DataFacts, Median, MemoryFacts, OpTime, Profile, Setting, SpanTiming, SpannedSteps, StepFacts,
    Throughput, TraceFile, median,
};

/// Ops that only attention has which keeps no scores, by parts of their names.
const FUSED_ATTENTION: [&str; 4] = ["scaled_dot_product", "flash", "efficient_attention", "flex_attention"];
/// Ops of attention's weights.
const SOFTMAX: [&str; 2] = ["aten::_softmax", "aten::_safe_softmax"];

/// Reads a trace that `export_chrome_trace` has written, as it is or packed by gzip.
///
/// What a trace does not tell is absent from the profile, and said in its notes: the setting, the parts of the memory, and
/// whatever was not recorded.
///
/// # Errors
/// A file that cannot be read, that is cut off, that is no trace, or that has no ops of PyTorch.
pub fn read_torch_trace(path: &Path) -> Result<Profile, TraceError> {
    let mut recorded = recorded(path)?;
    recorded.sort();
    let has_ops = recorded
        .host
        .iter()
        .any(|event| marks::is_op(recorded.name(event.name)));
    if !has_ops {
        return Err(TraceError::NoOps {
            path: path.to_owned(),
            events: recorded.events,
            kinds: recorded.kinds(),
        });
    }
    Ok(profile_of(&recorded, path))
}

fn profile_of(recorded: &Recorded, path: &Path) -> Profile {
    let steps = Steps::of(recorded);
    let batches = Batches::of(recorded, &steps);
    let launched = gpu::launched(recorded, &steps);
    let on_host = Phases::of(recorded, &steps);
    let launches: Vec<Launch> = launched.iter().map(|one| one.launch).collect();
    let ops = ops_of(recorded, &steps, &on_host, &launches, &batches);
    let phases = match launched.is_empty() {
        true => on_host,
        false => gpu::phases(recorded, &on_host, &launched),
    };
    // From 0: a sum of nothing is -0 otherwise, and shown so.
    let op_seconds = |phase: &str| -> f64 {
        let of_phase = ops.iter().filter(|op| op.phase == phase);
        of_phase.fold(0.0, |sum, op| sum + op.seconds)
    };
    let memory = memory::facts_of(recorded, &steps);
    let facts = step_facts(&steps, &batches);
    Profile {
        setting: setting_of(recorded, &steps, &batches, &launched),
        data: DataFacts {
            mean_documents_per_row: 1.0,
            largest_micro_batch_tokens: batches.each.iter().map(|one| one.rows * one.length).max().unwrap_or(0),
            ..DataFacts::default()
        },
        phases: phases.table(&steps, op_seconds),
        arithmetic: Arithmetic {
            hardware_flops: ops.iter().fold(0.0, |sum, op| sum + op.flops),
            ..Arithmetic::default()
        },
        gpu: gpu::timeline(recorded, &steps, &launched),
        trace: Some(TraceFile {
            path: path.display().to_string(),
            notes: notes(recorded, &steps, &batches, memory.as_ref(), &ops),
        }),
        memory: memory.unwrap_or_default(),
        steps: facts,
        ops,
        ..Profile::default()
    }
}

fn step_facts(steps: &Steps, batches: &Batches) -> StepFacts {
    let seconds = steps.seconds();
    let tokens = batches.tokens(seconds.len());
    let step_s = median(seconds.iter().copied()).unwrap_or(0.0);
    let each: Vec<(f64, u64)> = seconds.iter().copied().zip(tokens.iter().copied()).collect();
    let of_tokens = Throughput::from_steps(&each).filter(|found| found.tokens_per_s > 0.0);
    let of_seconds = Median::of(&seconds).unwrap_or_default();
    StepFacts {
        warmup_steps: 0,
        measured_steps: steps.count(),
        tokens_per_s: of_tokens.map_or(0.0, |found| found.tokens_per_s),
        interval: of_tokens.map_or(of_seconds.interval, |found| found.interval),
        spread: of_tokens.map_or(0.0, |found| found.spread),
        step_s,
        tokens_per_step: tokens.iter().sum::<u64>() as f64 / seconds.len().max(1) as f64,
        settled: true,
        each,
        spanned: Some(SpannedSteps {
            steps: steps.count(),
            step_s,
            slowdown: 1.0,
            timed_by: SpanTiming::Profiler,
        }),
    }
}

/// What the events tell of the setting.
fn setting_of(recorded: &Recorded, steps: &Steps, batches: &Batches, launched: &[Launched]) -> Setting {
    let rows = median(batches.each.iter().map(|one| one.rows as f64)).unwrap_or(0.0);
    let of_index = |index: u64| recorded.devices.iter().find(|device| device.id.count() == Some(index));
    let gpu = recorded.gpu_index.and_then(of_index).or(recorded.devices.first());
    let gpu = gpu.and_then(|device| device.name.text()).unwrap_or("GPU");
    Setting {
        device: if launched.is_empty() { "cpu" } else { gpu }.to_owned(),
        micro_batch: rows as usize,
        gradient_accumulation: batches.each.len() / steps.spans.len().max(1),
        sequence_length: batches.each.iter().map(|one| one.length).max().unwrap_or(0) as usize,
        attention: attention_of(recorded),
        stack: Some("torch".to_owned()),
        ..Setting::default()
    }
}

/// Attention that keeps its scores, or one that does not; `None` where the ops tell neither.
fn attention_of(recorded: &Recorded) -> Option<String> {
    let names = recorded.names.values();
    if names
        .iter()
        .any(|name| FUSED_ATTENTION.iter().any(|part| name.contains(part)))
    {
        return Some("sdpa".to_owned());
    }
    // Weights of attention have rows, heads, queries and keys.
    let is_of_scores = |event: &&HostEvent| {
        let inputs = recorded.inputs.value(event.inputs);
        let sizes = inputs.first().map_or(&[][..], |input| input.sizes.as_slice());
        SOFTMAX.contains(&recorded.name(event.name)) && matches!(sizes, [_, _, queries, keys] if queries == keys)
    };
    recorded.host.iter().find(is_of_scores).map(|_| "eager".to_owned())
}

/// What the trace does not tell, and what its numbers are of.
fn notes(
    recorded: &Recorded,
    steps: &Steps,
    batches: &Batches,
    memory: Option<&MemoryFacts>,
    ops: &[OpTime],
) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |text: &str| notes.push(text.to_owned());
    note(match recorded.gpu.is_empty() {
        true => "the steps ran under torch.profiler, which makes them slower",
        false => {
            "the steps ran under torch.profiler, which makes the host slower: the GPU waits longer than in free steps"
        }
    });
    match steps.source {
        StepSource::Profiler if steps.updates != steps.spans.len() => note(&format!(
            "{} steps of the profiler have {} updates of an optimizer: a step here is one of the profiler (`profile.step()`)",
            steps.count(),
            steps.updates
        )),
        StepSource::Profiler => {}
        StepSource::Updates => note("the trace marks no steps (`profile.step()`): they go from one update to the next"),
        StepSource::Whole => note(
            "the trace marks no steps (`profile.step()`) and has fewer than two updates: all of it is taken as one step",
        ),
    }
    let has_shapes = recorded.inputs.values().iter().any(|inputs| !inputs.is_empty());
    if !has_shapes {
        note("no shapes, FLOPs, bytes and tokens: record with `record_shapes=True`");
    } else if batches.each.is_empty() {
        note("no tokens: no `aten::embedding` in the steps shows them");
    } else {
        note("tokens are those that the model looks up, padding counted");
    }
    match memory {
        None => note("no memory: record with `profile_memory=True`"),
        Some(_) if recorded.memory.iter().all(|event| event.device.kind == 0) => {
            note("memory is what was allocated while the profiler ran: weights that were there before are not in it");
        }
        Some(_) => {}
    }
    if ops.is_empty() {
        note("no ops within the steps");
    }
    if let (Some(rank), Some(size)) = (recorded.rank.rank.count(), recorded.rank.world_size.count())
        && size > 1
    {
        note(&format!(
            "rank {rank} of {size}: tokens and memory are of this process alone"
        ));
    }
    notes
}
