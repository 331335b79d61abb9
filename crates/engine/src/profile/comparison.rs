//! Two profiles side by side: what got slower, what grew.

use serde::Serialize;

use super::Profile;

/// Differences between two profiles, the largest first within each list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Throughput, peak memory, MFU and the like.
    pub headlines: Vec<Difference>,
    /// Seconds of the phases for 1000 tokens.
    pub phases: Vec<Difference>,
    /// Seconds of the ops for 1000 tokens: those of one name and phase together.
    pub ops: Vec<Difference>,
    /// Bytes of the peak's parts.
    pub memory: Vec<Difference>,
    /// Settings that are not the same.
    pub settings: Vec<ChangedSetting>,
}

/// A setting with its values before and after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChangedSetting {
    pub name: String,
    pub before: String,
    pub after: String,
}

/// One number before and after.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    pub name: String,
    pub before: f64,
    pub after: f64,
}

impl Difference {
    fn new(name: impl Into<String>, before: f64, after: f64) -> Self {
        Self {
            name: name.into(),
            before,
            after,
        }
    }

    /// Ratio of after to before, less 1; `None` where there was nothing before.
    pub fn relative(&self) -> Option<f64> {
        (self.before != 0.0).then(|| self.after / self.before - 1.0)
    }
}

impl Comparison {
    /// Compares `after` with `before`. Times are for 1000 tokens, so that steps of different size compare.
    pub fn new(before: &Profile, after: &Profile) -> Self {
        Self {
            headlines: headlines(before, after),
            phases: by_name(&phase_times(before), &phase_times(after), Order::AsListed),
            ops: by_name(&op_times(before), &op_times(after), Order::LargestFirst),
            memory: by_name(&parts(before), &parts(after), Order::AsListed),
            settings: settings(before, after),
        }
    }

    /// The ops that took more time, the worst first.
    pub fn slower_ops(&self) -> impl Iterator<Item = &Difference> {
        self.ops.iter().filter(|op| op.after > op.before)
    }

    /// The parts of the memory that grew.
    pub fn grown_parts(&self) -> impl Iterator<Item = &Difference> {
        self.memory.iter().filter(|part| part.after > part.before)
    }
}

fn headlines(before: &Profile, after: &Profile) -> Vec<Difference> {
    let of =
        |name: &str, number: fn(&Profile) -> Option<f64>| Some(Difference::new(name, number(before)?, number(after)?));
    let all = [
        of("throughput", |profile| Some(profile.steps.tokens_per_s)),
        of("step_s", |profile| Some(profile.steps.step_s)),
        of("tokens_per_step", |profile| Some(profile.steps.tokens_per_step)),
        of("peak_memory", |profile| Some(profile.memory.peak_bytes as f64)),
        of("mfu", |profile| profile.arithmetic.mfu),
        of("hfu", |profile| profile.arithmetic.hfu),
        of("adapter_share", |profile| Some(profile.adapter?.share)),
        of("joules_per_token", Profile::joules_per_token),
    ];
    all.into_iter().flatten().collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    AsListed,
    LargestFirst,
}

/// Pairs numbers by their name; what one side lacks is 0 there.
fn by_name(before: &[(String, f64)], after: &[(String, f64)], order: Order) -> Vec<Difference> {
    let value = |list: &[(String, f64)], name: &str| {
        let found = list.iter().find(|(other, _)| other == name);
        found.map_or(0.0, |(_, value)| *value)
    };
    let gone = before
        .iter()
        .filter(|(name, _)| after.iter().all(|(other, _)| other != name));
    let mut differences: Vec<Difference> = after
        .iter()
        .chain(gone)
        .map(|(name, _)| Difference::new(name.clone(), value(before, name), value(after, name)))
        .collect();
    if order == Order::LargestFirst {
        let size = |difference: &Difference| (difference.after - difference.before).abs();
        differences.sort_by(|a, b| size(b).total_cmp(&size(a)));
    }
    differences
}

/// Seconds for 1000 tokens from seconds of a step.
fn per_thousand(profile: &Profile, seconds: f64) -> f64 {
    1000.0 * seconds / profile.steps.tokens_per_step.max(1.0)
}

fn phase_times(profile: &Profile) -> Vec<(String, f64)> {
    let phases = profile.phases.iter();
    phases
        .map(|phase| {
            (
                phase.phase.clone(),
                per_thousand(profile, phase.share * profile.steps.span_step_s()),
            )
        })
        .collect()
}

fn op_times(profile: &Profile) -> Vec<(String, f64)> {
    let mut times: Vec<(String, f64)> = Vec::new();
    for op in &profile.ops {
        let (name, seconds) = (format!("{} {}", op.phase, op.name), per_thousand(profile, op.seconds));
        match times.iter_mut().find(|(other, _)| *other == name) {
            Some((_, sum)) => *sum += seconds,
            None => times.push((name, seconds)),
        }
    }
    times
}

fn parts(profile: &Profile) -> Vec<(String, f64)> {
    let parts = profile.memory.parts.iter();
    parts.map(|part| (part.part.clone(), part.bytes as f64)).collect()
}

fn settings(before: &Profile, after: &Profile) -> Vec<ChangedSetting> {
    let object = |profile: &Profile| match serde_json::to_value(&profile.setting) {
        Ok(serde_json::Value::Object(object)) => object,
        _ => serde_json::Map::new(),
    };
    let text = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let (before, after) = (object(before), object(after));
    let changed = after.iter().filter_map(|(name, value)| {
        let old = before.get(name)?;
        (old != value).then(|| ChangedSetting {
            name: name.clone(),
            before: text(old),
            after: text(value),
        })
    });
    changed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::fixtures::sound_profile;

    #[test]
    fn what_got_slower_comes_first() {
        let before = sound_profile();
        let mut after = sound_profile();
        after.ops[1].seconds *= 2.0;
        after.ops[0].seconds *= 0.9;
        after.setting.rank = Some(64);
        after.steps.tokens_per_s = 7_000.0;
        let comparison = Comparison::new(&before, &after);
        assert_eq!(comparison.ops[0].name, "backward matmul_nn");
        assert_eq!(comparison.slower_ops().count(), 1);
        assert!((comparison.headlines[0].relative().unwrap() + 0.3).abs() < 1e-12);
        let rank = ChangedSetting {
            name: "rank".to_owned(),
            before: "16".to_owned(),
            after: "64".to_owned(),
        };
        assert_eq!(comparison.settings, [rank]);
    }

    #[test]
    fn steps_of_different_size_compare_by_their_tokens() {
        let before = sound_profile();
        let mut after = sound_profile();
        after.steps.tokens_per_step *= 2.0;
        after.steps.step_s *= 2.0;
        for op in &mut after.ops {
            op.seconds *= 2.0;
        }
        let comparison = Comparison::new(&before, &after);
        let same = |difference: &Difference| (difference.after - difference.before).abs() < 1e-12;
        assert!(comparison.ops.iter().all(same) && comparison.phases.iter().all(same));
    }

    #[test]
    fn an_op_that_is_new_had_no_time_before() {
        let mut before = sound_profile();
        before.ops.pop();
        let comparison = Comparison::new(&before, &sound_profile());
        let new = comparison.ops.iter().find(|op| op.before == 0.0).unwrap();
        assert_eq!((new.name.as_str(), new.relative()), ("forward attention", None));
    }
}
