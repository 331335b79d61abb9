//! Rules on the machine: a GPU that idles, clocks that fall, and others who use it.

use super::evidence::{mebibytes, percent};
use super::{Change, Evidence, Finding, Gain, Rule};
use crate::profile::sample::HeldBy;
use crate::profile::{DeviceSample, Profile, median};

/// Part of the time in which a GPU is to be busy.
const LEAST_BUSY: f64 = 0.7;
/// Part of its first clock below which a device is held down.
const LEAST_CLOCK: f64 = 0.9;
/// Part of the samples in which the device must say so itself.
const LEAST_THROTTLED: f64 = 0.1;
/// Part of the cores, or of the GPU, that others may keep busy.
const MOST_OTHERS: f64 = 0.1;
/// Part of a GPU's memory that others may hold: the driver's own part of it is under this.
const MOST_HELD: f64 = 0.05;
/// Samples, and steps, below which nothing is said.
const FEWEST_SAMPLES: usize = 8;
/// Part of a step below which quick steps are chance.
const LEAST_GAIN: f64 = 0.01;

/// Finds a GPU that its driver calls idle for much of the time. What it waits for is for other rules to say, and with it the gain.
pub(super) fn low_utilisation(evidence: &Evidence<'_>) -> Option<Finding> {
    // A processor tells the part of all its cores, of which a training may be given a few.
    let of_gpu = evidence
        .profile
        .samples
        .iter()
        .filter(|sample| sample.process_cores.is_none());
    let busy: Vec<f64> = of_gpu.filter_map(|sample| sample.utilisation).collect();
    if busy.len() < FEWEST_SAMPLES {
        return None;
    }
    let busy = median(busy).filter(|busy| *busy < LEAST_BUSY)?;
    Some(Finding {
        rule: Rule::LowUtilisation,
        evidence: format!(
            "the GPU is busy for {} of the time, by its driver, and is paid for all of it",
            percent(busy)
        ),
        change: Change::Advice(
            "give it more to do at once (a larger micro_batch, `packing: true`), after what other findings say that it waits for"
                .to_owned(),
        ),
        gain: None,
        verified: None,
    })
}

pub(super) fn throttled(evidence: &Evidence<'_>) -> Option<Finding> {
    let samples = &evidence.profile.samples;
    if samples.len() < FEWEST_SAMPLES {
        return None;
    }
    let quarter = samples.len() / 4;
    let clock = |part: &[DeviceSample]| median(part.iter().filter_map(|sample| sample.clock_mhz));
    let fallen = match (clock(&samples[..quarter]), clock(&samples[samples.len() - quarter..])) {
        (Some(first), Some(last)) if first > 0.0 => Some((first, last, last / first)),
        _ => None,
    };
    let held: Vec<DeviceSample> = samples
        .iter()
        .copied()
        .filter(|sample| sample.throttled == Some(true))
        .collect();
    let flagged = held.len() as f64 / samples.len() as f64;
    let (text, share) = match fallen {
        Some((first, last, ratio)) if ratio < LEAST_CLOCK => (
            format!("the clock fell from {first:.0} to {last:.0} MHz while measuring"),
            1.0 - ratio,
        ),
        _ if flagged >= LEAST_THROTTLED => held_down(samples, &held),
        _ => return None,
    };
    let (why, advice) = match mostly_held_by(&held) {
        Some(HeldBy::Power) => (
            ": its power limit",
            "raise the device's power limit (`nvidia-smi --power-limit`) if its cooling allows",
        ),
        Some(HeldBy::Heat) => (": heat", "cool the machine better"),
        Some(HeldBy::Hardware) | None => ("", "cool the machine better, or raise its power limit"),
    };
    // A GPU that has nothing to do loses nothing by a lower clock.
    let busy = evidence.profile.gpu.as_ref().map_or(1.0, |gpu| 1.0 - gpu.idle_share);
    Some(Finding {
        rule: Rule::Throttled,
        evidence: text + why,
        change: Change::Advice(advice.to_owned()),
        gain: (share > 0.0).then(|| Gain::without(share * busy)),
        verified: None,
    })
}

/// Text that a device says it is held down, and the part of its highest clock that it thereby loses.
fn held_down(samples: &[DeviceSample], held: &[DeviceSample]) -> (String, f64) {
    let highest = samples
        .iter()
        .filter_map(|sample| sample.clock_mhz)
        .max_by(f64::total_cmp);
    let then = median(held.iter().filter_map(|sample| sample.clock_mhz));
    let part = percent(held.len() as f64 / samples.len() as f64);
    let text = format!("the device held its clock down in {part} of the samples");
    match highest.zip(then) {
        Some((highest, then)) if then < highest => (
            format!("{text}, to {then:.0} of {highest:.0} MHz"),
            1.0 - then / highest,
        ),
        _ => (text, 0.0),
    }
}

/// Limit that held the device down most often.
fn mostly_held_by(held: &[DeviceSample]) -> Option<HeldBy> {
    let count = |by: HeldBy| held.iter().filter(|sample| sample.held_by == Some(by)).count();
    let all = [HeldBy::Hardware, HeldBy::Heat, HeldBy::Power];
    all.into_iter().filter(|by| count(*by) > 0).max_by_key(|by| count(*by))
}

/// Finds programs of others on the processor, or on the GPU.
pub(super) fn noisy_neighbour(evidence: &Evidence<'_>) -> Option<Finding> {
    of_the_cores(evidence).or_else(|| of_the_gpu(evidence.profile))
}

fn of_the_cores(evidence: &Evidence<'_>) -> Option<Finding> {
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

/// Finds programs of others that compute on the GPU, or hold so much of its memory that a trial might not fit.
fn of_the_gpu(profile: &Profile) -> Option<Finding> {
    let samples = &profile.samples;
    let middle = |value: fn(&DeviceSample) -> Option<f64>| {
        let values: Vec<f64> = samples.iter().filter_map(value).collect();
        (values.len() >= FEWEST_SAMPLES).then(|| median(values)).flatten()
    };
    let busy = middle(|sample| sample.other_utilisation).unwrap_or(0.0);
    let held = middle(|sample| Some(sample.memory_bytes?.saturating_sub(sample.resident_bytes?) as f64)).unwrap_or(0.0);
    let total = middle(|sample| sample.total_bytes.map(|bytes| bytes as f64)).unwrap_or(f64::INFINITY);
    let (computes, holds) = (busy > MOST_OTHERS, held > MOST_HELD * total);
    if !computes && !holds {
        return None;
    }
    let memory = format!("hold {} of the GPU's {}", mebibytes(held), mebibytes(total));
    let computing = format!("keep the GPU busy for {} of the time", percent(busy));
    Some(Finding {
        rule: Rule::NoisyNeighbour,
        evidence: match (computes, holds) {
            (true, true) => format!("other processes {computing}, and {memory}"),
            (true, false) => format!(
                "other processes {computing}, and steps spread by {}",
                percent(profile.steps.spread)
            ),
            (false, _) => format!("other processes {memory}"),
        },
        change: Change::Advice("run alone on the GPU (`nvidia-smi` lists its processes)".to_owned()),
        gain: undisturbed(profile)
            .filter(|_| computes)
            .map(|share| Gain::without(share.min(busy))),
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
