//! Rules on how rows become work: waiting for data, short rows, ops that are too small.

use super::evidence::{mebibytes, percent};
use super::{Change, Evidence, Finding, Gain, Rule};
use crate::profile::{DataWaits, Profile, Setting};
use crate::span::StepPhase;
use peft_tune_core::recipe::BatchSettings;

/// Part of the step that may pass waiting for data.
const MOST_WAITING: f64 = 0.05;
/// Part of a step's time in which its data are prepared where the thread that does it keeps up.
const KEEPS_UP: f64 = 0.8;
/// Part of the time of preparing rows from which on it is computing that takes it.
const MOST_COMPUTING: f64 = 0.5;
/// Bytes a second of waiting from which on it is a disk that is waited for: half of what one that turns gives page by page.
const LEAST_READ_PER_S: f64 = 2e5;
/// Times more steps that are prepared ahead where single ones are late, up to this depth.
const DEEPER: usize = 4;
const DEEP: usize = 32;
/// Processes of PyTorch's loader where rows come late.
const LOADERS: usize = 2;
/// Part of the sequence length that rows should fill at least.
const LEAST_FILL: f64 = 0.6;
/// Part of the step that may pass between ops.
const MOST_BETWEEN_OPS: f64 = 0.1;

pub(super) fn data_bound(evidence: &Evidence<'_>) -> Option<Finding> {
    let profile = evidence.profile;
    let waiting = profile.phase_share(StepPhase::Data) + profile.phase_share(StepPhase::HostToDevice);
    if waiting <= MOST_WAITING {
        return None;
    }
    let waits = profile.data.waits;
    let preparing = waits.map_or(String::new(), |waits| {
        format!(
            "; its rows are prepared in {} ms, {} ahead{}",
            milliseconds(waits.preparing_s),
            steps(waits.prefetch_depth),
            thread_text(&waits)
        )
    });
    Some(Finding {
        rule: Rule::DataBound,
        evidence: format!(
            "{} of the step waits for data ({} ms of {} ms{preparing})",
            percent(waiting),
            milliseconds(waiting * profile.steps.step_s),
            milliseconds(profile.steps.step_s)
        ),
        change: faster_data(profile, waits.unwrap_or_default()),
        gain: Some(Gain::without(waiting)),
        verified: None,
    })
}

/// Part of the time of preparing rows in which the thread that does it computes; `None` where that is not known.
fn computing(waits: &DataWaits) -> Option<f64> {
    let thread = waits.thread.filter(|_| waits.preparing_s > 0.0)?;
    Some((thread.processor_s / waits.preparing_s).min(1.0))
}

/// Whether the thread that prepares rows mostly waits for a disk.
fn waits_for_disk(waits: &DataWaits) -> bool {
    let Some((share, thread)) = computing(waits).zip(waits.thread) else {
        return false;
    };
    let waiting_s = (1.0 - share) * waits.preparing_s;
    share < MOST_COMPUTING && thread.read_bytes >= LEAST_READ_PER_S * waiting_s
}

/// What the thread that prepares rows does meanwhile: it computes, waits for a disk, or for something else.
fn thread_text(waits: &DataWaits) -> String {
    let Some((share, thread)) = computing(waits).zip(waits.thread) else {
        return String::new();
    };
    let waiting = percent(1.0 - share);
    let read = mebibytes(thread.read_bytes);
    if share >= MOST_COMPUTING {
        return format!("; their thread computes in {} of that", percent(share));
    }
    match waits_for_disk(waits) {
        true => format!("; their thread waits in {waiting} of that, and a disk reads {read} for it"),
        false => format!("; their thread waits in {waiting} of that, and a disk reads next to nothing for it"),
    }
}

/// Change that lets data be there in time.
fn faster_data(profile: &Profile, waits: DataWaits) -> Change {
    let setting = &profile.setting;
    if setting.stack.is_some() {
        return Change::LoaderProcesses(LOADERS);
    }
    let keeps_up = waits.preparing_s < KEEPS_UP * profile.steps.step_s;
    match (waits.prefetch_depth, setting.threads) {
        (0, _) if waits.preparing_s > 0.0 => Change::PrefetchDepth(BatchSettings::USUAL_PREFETCH_DEPTH),
        // Neither a core nor depth makes a disk faster.
        _ if waits_for_disk(&waits) && !keeps_up => Change::Advice(
            "rows come from a disk that is too slow: keep the data and the cache of tokens on a faster one, or in memory".to_owned(),
        ),
        // The thread that prepares batches has no core of its own.
        (_, threads) if threads > 1 && threads >= setting.cores => Change::Threads(threads - 1),
        // Single steps are late, and others are early.
        (depth @ 1..DEEP, _) if keeps_up => Change::PrefetchDepth(DEEPER * depth),
        _ => Change::Advice(
            "prepare batches faster: keep the data and the cache of tokens on a local disk, or take a larger micro_batch"
                .to_owned(),
        ),
    }
}

pub(super) fn short_rows(evidence: &Evidence<'_>) -> Option<Finding> {
    let (profile, setting) = (evidence.profile, &evidence.profile.setting);
    let fill = profile.data.mean_tokens_per_row / setting.sequence_length.max(1) as f64;
    let room_for_two = profile.data.mean_tokens_per_row * 2.0 <= setting.sequence_length as f64;
    // Stacks that pad do not measure what padding takes of a step.
    if setting.stack.is_some() || setting.packing || fill >= LEAST_FILL || !room_for_two {
        return None;
    }
    let change = Change::Packing;
    // Packed rows are fuller, so that the time between ops is spent once for more tokens.
    let saved = evidence.between_ops() * (1.0 - fill);
    let gain = evidence
        .predicted_throughput(&change)
        .unwrap_or_else(|| Gain::without(saved));
    Some(Finding {
        rule: Rule::ShortRows,
        evidence: format!(
            "rows hold {:.0} tokens on average, {} of sequence_length {}; nothing is padded here, but a trainer that \
             pads each row would spend {} on padding",
            profile.data.mean_tokens_per_row,
            percent(fill),
            setting.sequence_length,
            percent(1.0 - fill)
        ),
        change,
        gain: Some(gain),
        verified: None,
    })
}

pub(super) fn small_micro_batch(evidence: &Evidence<'_>) -> Option<Finding> {
    let profile = evidence.profile;
    let between = evidence.between_ops();
    // Where the GPU's own timeline is known it tells more: here what recording costs lies between ops.
    if between <= MOST_BETWEEN_OPS || profile.gpu.is_some() {
        return None;
    }
    let calls: f64 = profile.ops.iter().map(|op| op.calls).sum();
    let seconds: f64 = profile.ops.iter().map(|op| op.seconds).sum();
    let (change, what_else) = twice_the_micro_batch(&profile.setting);
    let gain = evidence
        .predicted_throughput(&change)
        .unwrap_or_else(|| Gain::without(between / 2.0));
    Some(Finding {
        rule: Rule::SmallMicroBatch,
        evidence: format!(
            "{} of the step passes between ops, which take {:.0} us on average{what_else}",
            percent(between),
            1e6 * seconds / calls.max(1.0)
        ),
        change,
        gain: Some(gain),
        verified: None,
    })
}

/// Change to twice the micro-batch, at the same global batch where that is possible, and what to say where it is not.
pub(super) fn twice_the_micro_batch(setting: &Setting) -> (Change, &'static str) {
    if setting.micro_batch == 0 {
        // Of a trace that does not tell it.
        let advice = "twice the micro-batch, where the memory holds it".to_owned();
        return (Change::Advice(advice), "");
    }
    let (micro_batch, accumulation) = (2 * setting.micro_batch, setting.gradient_accumulation);
    if accumulation > 1 && accumulation.is_multiple_of(2) {
        let change = Change::Batch {
            micro_batch,
            gradient_accumulation: accumulation / 2,
        };
        return (change, "");
    }
    let change = Change::Batch {
        micro_batch,
        gradient_accumulation: accumulation,
    };
    (
        change,
        "; a larger micro-batch makes the global batch larger too, which changes the training",
    )
}

fn steps(count: usize) -> String {
    match count {
        1 => "1 step".to_owned(),
        count => format!("{count} steps"),
    }
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.1}", 1e3 * seconds)
}
