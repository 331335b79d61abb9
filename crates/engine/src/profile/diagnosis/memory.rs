//! Rules on memory: room that is not used, and state that could be smaller.

use super::evidence::{mebibytes, percent};
use super::{Change, Evidence, Finding, Gain, Metric, PredictedBy, Rule};
use crate::span::StepPhase;
use peft_tune_core::recipe::{Checkpointing, States};

/// Part of the limit that may be filled by what a rule proposes.
const MOST_FILLED: f64 = 0.9;
/// Part of the step that recomputation must take to be worth a word.
const LEAST_RECOMPUTED: f64 = 0.05;
/// Part of the peak that a smaller optimizer state must save.
const LEAST_SAVED: f64 = 0.02;
/// Part of the limit from which on memory is worth saving.
const SCARCE: f64 = 0.5;
/// Bytes of an 8-bit state against F32: a byte for each value, and 4 for each block of 256.
const OF_8BIT: f64 = (1.0 + 4.0 / 256.0) / 4.0;

pub(super) fn recomputes_with_room_left(evidence: &Evidence<'_>) -> Option<Finding> {
    let profile = evidence.profile;
    let limit = profile.setting.memory_limit_bytes? as f64;
    let recomputed = profile.phase_share(StepPhase::Recompute);
    if recomputed < LEAST_RECOMPUTED || evidence.recipe.gradient_checkpointing == Checkpointing::None {
        return None;
    }
    let peak = profile.memory.peak_bytes as f64;
    let changes = [Checkpointing::None, Checkpointing::EVERY_SECOND].map(Change::Checkpointing);
    let current = Change::Checkpointing(evidence.recipe.gradient_checkpointing);
    let fits = |change: &Change| match evidence.peak_after(change) {
        Some(after) => after <= MOST_FILLED * limit,
        // Without a model of the memory only ample room is room.
        None => peak <= 0.4 * limit,
    };
    let change = changes.into_iter().find(|change| *change != current && fits(change))?;
    let kept = if change == Change::Checkpointing(Checkpointing::None) {
        1.0
    } else {
        0.5
    };
    let gain = evidence
        .predicted_throughput(&change)
        .unwrap_or_else(|| Gain::without(recomputed * kept));
    Some(Finding {
        rule: Rule::RecomputesWithRoomLeft,
        evidence: format!(
            "{} of the step recomputes layers, while the peak of {} leaves {} of the limit free",
            percent(recomputed),
            mebibytes(peak),
            percent(1.0 - peak / limit)
        ),
        change,
        gain: Some(gain),
        verified: None,
    })
}

pub(super) fn room_for_a_larger_micro_batch(evidence: &Evidence<'_>) -> Option<Finding> {
    let (profile, setting) = (evidence.profile, &evidence.profile.setting);
    let limit = setting.memory_limit_bytes? as f64;
    let accumulation = setting.gradient_accumulation;
    if accumulation < 2 || !accumulation.is_multiple_of(2) {
        return None;
    }
    let change = Change::Batch {
        micro_batch: 2 * setting.micro_batch,
        gradient_accumulation: accumulation / 2,
    };
    let peak = profile.memory.peak_bytes as f64;
    let grows = (profile.part_bytes("activations") + profile.part_bytes("scratch")) as f64;
    let after = evidence.peak_after(&change).unwrap_or(peak + grows);
    if after > MOST_FILLED * limit {
        return None;
    }
    let gain = evidence
        .predicted_throughput(&change)
        .unwrap_or_else(|| Gain::without(evidence.between_ops() / 2.0));
    // A larger micro-batch for its own sake helps nobody.
    (gain.value >= 0.02).then(|| Finding {
        rule: Rule::RoomForALargerMicroBatch,
        evidence: format!(
            "the peak of {} leaves {} of the limit free; twice the micro-batch would take {}",
            mebibytes(peak),
            percent(1.0 - peak / limit),
            mebibytes(after)
        ),
        change,
        gain: Some(gain),
        verified: None,
    })
}

pub(super) fn optimizer_state(evidence: &Evidence<'_>) -> Option<Finding> {
    let profile = evidence.profile;
    let kind = evidence.recipe.optimizer.kind;
    let smaller = kind.in_8_bits().filter(|_| !kind.has_8bit_states())?;
    let state = profile.part_bytes("optimizer") as f64;
    let change = Change::Optimizer(smaller);
    let gain = evidence.predicted_memory(&change).unwrap_or(Gain {
        metric: Metric::PeakMemory,
        value: state * (1.0 - OF_8BIT),
        by: PredictedBy::Shares,
    });
    let peak = profile.memory.peak_bytes as f64;
    // Where most of the memory stays free, less of it helps nobody.
    let limit = profile.setting.memory_limit_bytes;
    let is_scarce = limit.is_none_or(|limit| peak >= SCARCE * limit as f64);
    (is_scarce && gain.value >= LEAST_SAVED * peak && peak > 0.0).then(|| Finding {
        rule: Rule::OptimizerState,
        evidence: format!(
            "the optimizer's state takes {}, {} of the peak",
            mebibytes(state),
            percent(state / peak)
        ),
        change,
        gain: Some(gain),
        verified: None,
    })
}

pub(super) fn needless_8bit(evidence: &Evidence<'_>) -> Option<Finding> {
    let profile = evidence.profile;
    let kind = evidence.recipe.optimizer.kind;
    let plain = kind.rule();
    let States::OfElements(states) = plain.row().states else {
        return None;
    };
    if plain == kind {
        return None;
    }
    let whole = 4.0 * states as f64 * profile.setting.trained_parameters as f64;
    let costs_more = whole - profile.part_bytes("optimizer") as f64;
    let (peak, updating) = (
        profile.memory.peak_bytes as f64,
        profile.phase_share(StepPhase::Optimizer),
    );
    if costs_more > LEAST_SAVED * peak || updating < 0.02 {
        return None;
    }
    let change = Change::Optimizer(plain);
    // Plain state is updated in about a third of the time.
    let gain = evidence
        .predicted_throughput(&change)
        .unwrap_or_else(|| Gain::without(updating * 2.0 / 3.0));
    Some(Finding {
        rule: Rule::Needless8bit,
        evidence: format!(
            "the smaller state saves {}, {} of the peak, and updating takes {} of the step",
            mebibytes(costs_more.max(0.0)),
            percent(costs_more.max(0.0) / peak.max(1.0)),
            percent(updating)
        ),
        change,
        gain: Some(gain),
        verified: None,
    })
}
