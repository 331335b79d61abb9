//! Rules on the machine: clocks that fall, and others who use it.

use super::evidence::percent;
use super::{Change, Evidence, Finding, Gain, Rule};
use crate::profile::{Profile, median};

/// Part of its first clock below which a device is held down.
const LEAST_CLOCK: f64 = 0.9;
/// Part of the samples in which the device must say so itself.
const LEAST_THROTTLED: f64 = 0.1;
/// Part of the cores that others may keep busy.
const MOST_OTHERS: f64 = 0.1;
/// Samples, and steps, below which nothing is said.
const FEWEST_SAMPLES: usize = 8;
/// Part of a step below which quick steps are chance.
const LEAST_GAIN: f64 = 0.01;

pub(super) fn throttled(evidence: &Evidence<'_>) -> Option<Finding> {
    let samples = &evidence.profile.samples;
    if samples.len() < FEWEST_SAMPLES {
        return None;
    }
    let quarter = samples.len() / 4;
    let clock = |part: &[crate::profile::DeviceSample]| median(part.iter().filter_map(|sample| sample.clock_mhz));
    let fallen = match (clock(&samples[..quarter]), clock(&samples[samples.len() - quarter..])) {
        (Some(first), Some(last)) if first > 0.0 => Some((first, last, last / first)),
        _ => None,
    };
    let flagged = samples.iter().filter(|sample| sample.throttled == Some(true)).count();
    let flagged = flagged as f64 / samples.len() as f64;
    let (evidence, share) = match fallen {
        Some((first, last, ratio)) if ratio < LEAST_CLOCK => (
            format!("the clock fell from {first:.0} to {last:.0} MHz while measuring"),
            1.0 - ratio,
        ),
        _ if flagged >= LEAST_THROTTLED => (
            format!("the device held its clock down in {} of the samples", percent(flagged)),
            0.0,
        ),
        _ => return None,
    };
    Some(Finding {
        rule: Rule::Throttled,
        evidence,
        change: Change::Advice("cool the machine better, or raise its power limit".to_owned()),
        gain: (share > 0.0).then(|| Gain::without(share)),
        verified: None,
    })
}

pub(super) fn noisy_neighbour(evidence: &Evidence<'_>) -> Option<Finding> {
    let profile = evidence.profile;
    let others = profile.samples.iter().filter_map(|sample| sample.other_cores);
    let others: Vec<f64> = others.collect();
    if others.len() < FEWEST_SAMPLES {
        return None;
    }
    let busy = median(others)?;
    let (cores, threads) = (profile.setting.cores.max(1) as f64, profile.setting.threads as f64);
    if busy <= MOST_OTHERS * cores {
        return None;
    }
    // What others take is lost only where there are no free cores for them.
    let lost = (busy + threads - cores).clamp(0.0, threads) / threads.max(1.0);
    if lost < 0.05 {
        return None;
    }
    Some(Finding {
        rule: Rule::NoisyNeighbour,
        evidence: format!(
            "other processes keep {busy:.1} of {cores:.0} cores busy, and steps spread by {}",
            percent(profile.steps.spread)
        ),
        change: Change::Advice("run alone on the machine, or with fewer threads than are free".to_owned()),
        gain: undisturbed(profile).map(|share| Gain::without(share.min(lost))),
        verified: None,
    })
}

/// Part of a step that the quickest steps did without: what can be won at least for a moment. Time that others take is no
/// measure of that by itself, as a step leaves cores idle that they may have. `None` where no step was quicker than the rest.
fn undisturbed(profile: &Profile) -> Option<f64> {
    let each = profile.steps.each.iter().filter(|(_, tokens)| *tokens > 0);
    let mut seconds: Vec<f64> = each.map(|(seconds, tokens)| seconds / *tokens as f64).collect();
    if seconds.len() < FEWEST_SAMPLES {
        return None;
    }
    seconds.sort_by(f64::total_cmp);
    let share = 1.0 - seconds[seconds.len() / 10] / seconds[seconds.len() / 2];
    (share >= LEAST_GAIN).then_some(share)
}
