//! Running what was proposed, so that the predicted gain stands beside the measured one.

use super::{Change, Finding, Metric, Verified};
use crate::profile::Profile;
use peft_tune_core::recipe::Recipe;

/// Recipe that is run to verify a change.
#[derive(Clone, Debug, PartialEq)]
pub struct Rerun {
    pub recipe: Recipe,
    /// Distance between steps that are written down, where the change is another one.
    pub log_every: Option<u64>,
}

impl Rerun {
    /// `None` where a profile of single steps cannot tell what the change brings.
    fn of(change: &Change, recipe: &Recipe) -> Option<Self> {
        let (recipe, log_every) = match change {
            Change::LogEvery(steps) => (recipe.clone(), Some(*steps)),
            change => (change.apply(recipe)?, None),
        };
        Some(Self { recipe, log_every })
    }
}

/// Runs the change of every finding that can be run, through `run`, and notes what it gave.
pub fn verify(
    findings: &mut [Finding],
    profile: &Profile,
    recipe: &Recipe,
    run: &mut dyn FnMut(&Rerun) -> Result<Profile, String>,
) {
    for finding in findings {
        finding.verified = Some(match Rerun::of(&finding.change, recipe) {
            None => Verified::NotRun {
                reason: why_not(&finding.change).to_owned(),
            },
            Some(changed) => match run(&changed) {
                Ok(changed) => gain_of(finding, profile, &changed),
                Err(reason) => Verified::NotRun { reason },
            },
        });
    }
}

/// Why a change cannot be run here.
fn why_not(change: &Change) -> &'static str {
    match change {
        Change::Threads(_) => "threads are counted when the program starts; run it again with this number",
        Change::EvaluateEvery(_) => "it changes a whole training and none of its steps",
        _ => "it is not a setting that a profile can run",
    }
}

fn gain_of(finding: &Finding, before: &Profile, after: &Profile) -> Verified {
    match finding.gain.map(|gain| gain.metric) {
        Some(Metric::PeakMemory) => Verified::Gain {
            value: before.memory.peak_bytes as f64 - after.memory.peak_bytes as f64,
            uncertainty: 0.0,
        },
        _ => {
            let ratio = after.steps.tokens_per_s / before.steps.tokens_per_s.max(f64::MIN_POSITIVE);
            Verified::Gain {
                value: ratio - 1.0,
                uncertainty: ratio * before.steps.interval.hypot(after.steps.interval),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::diagnosis::{Gain, Rule};
    use crate::profile::fixtures::sound_profile;
    use peft_tune_core::recipe::DataSettings;

    #[test]
    fn measured_gains_stand_beside_the_predicted_ones() {
        let finding = |change: Change| Finding {
            rule: Rule::ShortRows,
            evidence: String::new(),
            change,
            gain: Some(Gain::without(0.1)),
            verified: None,
        };
        let mut findings = [
            finding(Change::Packing),
            finding(Change::Threads(1)),
            finding(Change::Advice("cool it".to_owned())),
            finding(Change::Rank(1)),
            finding(Change::LogEvery(8)),
        ];
        let profile = sound_profile();
        let recipe = Recipe::new("model", DataSettings::default());
        let mut runs = Vec::new();
        verify(&mut findings, &profile, &recipe, &mut |changed| {
            runs.push(changed.clone());
            let mut measured = sound_profile();
            match (changed.recipe.batch.packing, changed.log_every) {
                (true, None) => measured.steps.tokens_per_s = 12_000.0,
                (false, Some(8)) => measured.steps.tokens_per_s = 10_500.0,
                _ => return Err("out of memory".to_owned()),
            }
            Ok(measured)
        });
        let gain = |finding: &Finding| match finding.verified {
            Some(Verified::Gain { value, .. }) => value,
            _ => f64::NAN,
        };
        assert!((gain(&findings[0]) - 0.2).abs() < 1e-12);
        assert!((gain(&findings[4]) - 0.05).abs() < 1e-12);
        assert_eq!(runs[2].recipe, recipe);
        assert_eq!(runs.len(), 3);
        for (finding, word) in findings[1..4]
            .iter()
            .zip(["run it again", "not a setting", "out of memory"])
        {
            let Some(Verified::NotRun { reason }) = &finding.verified else {
                panic!("{finding:?}")
            };
            assert!(reason.contains(word), "{reason}");
        }
    }
}
