//! Rules on products: far below the machine's ceiling, widening quantized weights, costly adapters, slow number types.

use super::evidence::percent;
use super::products::{LEAST_SHARE, REACHABLE, SLOW, is_coded, more_tokens};
use super::{Change, Evidence, FasterType, Finding, Gain, RankLoss, Rule, gpu};
use peft_tune_core::recipe::Precision;

/// Part of the step that adapters may take.
const MOST_ADAPTER: f64 = 0.15;
/// Loss that half the rank may cost, relative.
const SAME_LOSS: f64 = 0.005;

pub(super) fn slow_op(evidence: &Evidence<'_>) -> Option<Finding> {
    let profile = evidence.profile;
    // An op whose kernels the GPU's own clock timed is judged by these.
    let mut dense = evidence
        .products()
        .filter(|op| !is_coded(&op.storage) && !gpu::judges(evidence, &op.name));
    let slow = dense.find_map(|op| {
        let share = op.roofline_share.filter(|share| *share < SLOW)?;
        (op.share >= LEAST_SHARE).then_some((op, share))
    });
    let (op, reached) = slow?;
    let change = more_tokens(profile);
    let gain = evidence
        .predicted_throughput(&change)
        .unwrap_or_else(|| Gain::without(op.share * (1.0 - reached / REACHABLE)));
    let mfu = profile.arithmetic.mfu;
    let mfu = mfu.map_or_else(String::new, |mfu| {
        format!("; the whole step has an MFU of {}", percent(mfu))
    });
    Some(Finding {
        rule: Rule::SlowOp,
        evidence: format!(
            "{} {} ({}) takes {} of the step at {:.0} GFLOP/s, {} of what this machine allows{mfu}",
            op.phase,
            op.name,
            op.shape,
            percent(op.share),
            op.gflop_per_s(),
            percent(reached)
        ),
        change,
        gain: Some(gain),
        verified: None,
    })
}

pub(super) fn dequantization_bound(evidence: &Evidence<'_>) -> Option<Finding> {
    let profile = evidence.profile;
    let quantized: Vec<_> = evidence.products().filter(|op| is_coded(&op.storage)).collect();
    let share: f64 = quantized.iter().map(|op| op.share).sum();
    let (flops, seconds) = quantized.iter().fold((0.0, 0.0), |(flops, seconds), op| {
        (flops + op.flops, seconds + op.seconds)
    });
    if share < 2.0 * LEAST_SHARE || seconds <= 0.0 {
        return None;
    }
    let rate = flops / seconds;
    let dense = profile.arithmetic.peak_flops_per_s.map(|peak| REACHABLE * peak);
    let dense = dense.or_else(|| best_dense_rate(evidence))?;
    if rate >= 0.7 * dense {
        return None;
    }
    let change = Change::Precision(Precision::Bf16);
    let room = match (evidence.peak_after(&change), profile.setting.memory_limit_bytes) {
        (Some(after), Some(limit)) if after > 0.9 * limit as f64 => "; plain weights would not fit the limit",
        (Some(_), Some(_)) => "",
        _ => "; plain weights take more memory",
    };
    if room.contains("not fit") {
        return None;
    }
    let gain = evidence
        .predicted_throughput(&change)
        .unwrap_or_else(|| Gain::without(share * (1.0 - rate / dense)));
    Some(Finding {
        rule: Rule::DequantizationBound,
        evidence: format!(
            "products with {} weights take {} of the step at {:.0} GFLOP/s; dense ones reach about {:.0}{room}",
            quantized[0].storage,
            percent(share),
            rate / 1e9,
            dense / 1e9
        ),
        change,
        gain: Some(gain),
        verified: None,
    })
}

pub(super) fn rank_too_high(evidence: &Evidence<'_>) -> Option<Finding> {
    let (profile, rank) = (evidence.profile, evidence.profile.setting.rank?);
    let cost = profile.adapter?;
    if cost.share <= MOST_ADAPTER || rank < 2 {
        return None;
    }
    let trials = evidence.losses_by_rank;
    let own = trials.iter().find(|trial| trial.rank == rank).map(|trial| trial.loss);
    let lower = trials
        .iter()
        .filter(|trial| trial.rank < rank && own.is_some_and(|own| trial.loss <= own * (1.0 + SAME_LOSS)));
    let (target, what_is_known) = match lower.min_by_key(|trial| trial.rank) {
        Some(RankLoss { rank: lower, loss }) => (*lower, format!("; rank {lower} reached a loss of {loss:.4} as well")),
        // A known gain is worth its cost.
        None if own.is_some() && trials.iter().any(|trial| trial.rank < rank) => return None,
        None => (
            rank / 2,
            "; no trial has shown yet whether its loss is worth that".to_owned(),
        ),
    };
    let change = Change::Rank(target);
    let saved = cost.share * (1.0 - target as f64 / rank as f64);
    let gain = evidence
        .predicted_throughput(&change)
        .unwrap_or_else(|| Gain::without(saved));
    Some(Finding {
        rule: Rule::RankTooHigh,
        evidence: format!(
            "adapters of rank {rank} take {} of the step for {} of its FLOPs{what_is_known}",
            percent(cost.share),
            percent(cost.flops_share)
        ),
        change,
        gain: Some(gain),
        verified: None,
    })
}

pub(super) fn slow_number_type(evidence: &Evidence<'_>) -> Option<Finding> {
    let profile = evidence.profile;
    let FasterType { precision, times } = evidence.faster_type.filter(|faster| faster.times >= 1.2)?;
    let share: f64 = evidence.products().map(|op| op.share).sum();
    if share < 2.0 * LEAST_SHARE || profile.setting.compute_dtype == precision.name() {
        return None;
    }
    let change = Change::Precision(precision);
    let gain = evidence
        .predicted_throughput(&change)
        .unwrap_or_else(|| Gain::without(share * (1.0 - 1.0 / times)));
    Some(Finding {
        rule: Rule::SlowNumberType,
        evidence: format!(
            "products in {} take {} of the step; this device multiplies {} {times:.1} times as fast",
            profile.setting.compute_dtype,
            percent(share),
            precision.name()
        ),
        change,
        gain: Some(gain),
        verified: None,
    })
}

/// Whether a storage is values of which some are left out.
fn is_sparse(storage: &str) -> bool {
    storage.starts_with("sparse_")
}

/// FLOP/s of the dense products that take a part of the step worth looking at.
fn best_dense_rate(evidence: &Evidence<'_>) -> Option<f64> {
    let dense = evidence.products().filter(|op| {
        !is_coded(&op.storage)
            && !is_sparse(&op.storage)
            && !matches!(op.storage.as_str(), "w8a8" | "w4a8")
            && op.share >= 0.03
            && op.seconds > 0.0
    });
    dense.map(|op| op.flops / op.seconds).max_by(f64::total_cmp)
}
