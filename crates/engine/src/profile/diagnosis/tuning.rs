//! Changes tried one after the other, each kept where it pays.
//!
//! Throughput drifts with the machine, so a change is never judged by a measurement from minutes ago: the setting without
//! it and the setting with it run in turn (without, with, with, without), and only ratios of neighbours count.

use serde::Serialize;

use super::{Change, Finding, Metric, Verified};
use crate::profile::Profile;
use peft_tune_core::recipe::{OptimizerKind, Recipe};

/// Gain of throughput that a change must reach beyond its uncertainty.
const LEAST_GAIN: f64 = 0.01;
/// Part of the peak that a change for the memory's sake must save.
const LEAST_SAVED: f64 = 0.02;
/// Throughput that such a change may cost.
const MOST_LOST: f64 = 0.02;

/// Bench that tuning needs of the program around it.
pub trait TuningBench {
    /// Measures a recipe.
    ///
    /// # Errors
    /// Why it cannot run, in words for people.
    fn profile(&mut self, recipe: &Recipe) -> Result<Profile, String>;

    /// Findings on the profile of a recipe, the largest predicted gain first.
    fn diagnose(&self, recipe: &Recipe, profile: &Profile) -> Vec<Finding>;

    /// Whether no further change is to be tried.
    fn is_over(&self) -> bool;

    /// A change was tried; `recipe` is what stands after it, and `before` the profile that proposed it.
    ///
    /// # Errors
    /// Ends the tuning.
    fn tried(&mut self, tried: &Tried, recipe: &Recipe, before: &Profile) -> Result<(), String>;
}

/// Kinds of changes that alter what a training learns, not only what its steps cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Altering {
    /// More documents share a step.
    Packing,
    /// Frozen weights and activations are rounded otherwise.
    Precision,
    /// The adapter has fewer parameters.
    Rank,
    /// The optimizer's state is rounded to 8 bits.
    Optimizer,
}

impl Altering {
    /// How a change alters what is learned; `None` where losses stay the same but for rounding in another order.
    pub fn of(change: &Change) -> Option<Self> {
        match change {
            Change::Packing => Some(Self::Packing),
            Change::Precision(_) => Some(Self::Precision),
            Change::Rank(_) => Some(Self::Rank),
            Change::Optimizer(kind) => OptimizerKind::has_8bit_states(*kind).then_some(Self::Optimizer),
            Change::Batch { .. }
            | Change::Checkpointing(_)
            | Change::OptimizerOffload(_)
            | Change::PrefetchDepth(_)
            | Change::Attention(_)
            | Change::LoaderProcesses(_)
            | Change::EvaluateEvery(_)
            | Change::LogEvery(_)
            | Change::Threads(_)
            | Change::Advice(_) => None,
        }
    }

    /// Name of the kind on the command line.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Throughput with a change over that without it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    pub value: f64,
    /// Half width of its 95% interval: of the single measurements, or of what two repetitions differ by, whichever is more.
    pub uncertainty: f64,
}

/// Outcome of a change that was tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Kept,
    /// Rejected: its gain is not above what measuring leaves open.
    NoGain,
    /// Rejected: it saves memory, but at the cost of throughput.
    CostsThroughput,
    /// Rejected: its peak is above the memory limit.
    OverMemory,
    /// Failed to run, and why.
    NotRun(String),
}

/// A change that was tried.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tried {
    /// Finding with what was measured.
    pub finding: Finding,
    pub outcome: Outcome,
    /// Ratio of throughputs; absent where the change could not run.
    pub throughput: Option<Ratio>,
    /// Bytes at the peak without the change and with it.
    pub peak_bytes: Option<(u64, u64)>,
}

/// Result of tuning.
#[derive(Clone, Debug)]
pub struct Tuning {
    pub recipe: Recipe,
    /// Profile of the first recipe.
    pub before: Profile,
    pub after: Profile,
    /// The last recipe against the first, measured in turn once more; `None` where nothing was kept.
    pub total: Option<Ratio>,
    pub tried: Vec<Tried>,
    /// Findings of the last diagnosis that were not tried.
    pub left: Vec<Finding>,
}

/// Applies what the diagnosis of `recipe` proposes and `allows` admits, one change after the other, and diagnoses again after
/// each that was kept. A change that did not pay is not tried twice.
///
/// # Errors
/// The recipe itself cannot run, or the program around cannot go on.
pub fn tune(recipe: &Recipe, bench: &mut dyn TuningBench, allows: &dyn Fn(&Change) -> bool) -> Result<Tuning, String> {
    let before = bench.profile(recipe)?;
    let (mut current, mut profile) = (recipe.clone(), before.clone());
    let mut tried: Vec<Tried> = Vec::new();
    let mut findings = bench.diagnose(&current, &profile);
    loop {
        let is_new = |finding: &Finding| tried.iter().all(|earlier| earlier.finding.change != finding.change);
        let next = findings.iter().position(|finding| {
            is_promising(finding) && can_run(finding, &current) && allows(&finding.change) && is_new(finding)
        });
        let (Some(next), false) = (next, bench.is_over()) else {
            break;
        };
        let finding = findings.remove(next);
        let Some(changed) = finding.change.apply(&current) else {
            continue;
        };
        let (result, measured) = try_change(finding, &current, &profile, &changed, bench);
        let proposed_by = profile.clone();
        if let (Outcome::Kept, Some(measured)) = (&result.outcome, measured) {
            (current, profile) = (changed, measured);
            findings = bench.diagnose(&current, &profile);
        }
        bench.tried(&result, &current, &proposed_by)?;
        tried.push(result);
    }
    findings.retain(|finding| tried.iter().all(|earlier| earlier.finding.change != finding.change));
    let kept = tried.iter().any(|change| change.outcome == Outcome::Kept);
    let total = match kept {
        true => Some(in_turn(recipe, &current, bench)?.ratio),
        false => None,
    };
    Ok(Tuning {
        recipe: current,
        before,
        after: profile,
        total,
        tried,
        left: findings,
    })
}

/// Whether a finding's change is not predicted to cost more than it brings.
pub fn is_promising(finding: &Finding) -> bool {
    finding.gain.is_none_or(|gain| gain.value > 0.0)
}

/// Whether a finding changes something of the recipe that its steps show.
fn can_run(finding: &Finding, recipe: &Recipe) -> bool {
    finding.change.apply(recipe).is_some_and(|changed| changed != *recipe)
}

/// Runs a change beside what stands, and judges it. Returns the profile with it, too.
fn try_change(
    mut finding: Finding,
    current: &Recipe,
    profile: &Profile,
    changed: &Recipe,
    bench: &mut dyn TuningBench,
) -> (Tried, Option<Profile>) {
    let pair = match in_turn(current, changed, bench) {
        Ok(pair) => pair,
        Err(reason) => {
            finding.verified = Some(Verified::NotRun { reason: reason.clone() });
            let tried = Tried {
                finding,
                outcome: Outcome::NotRun(reason),
                throughput: None,
                peak_bytes: None,
            };
            return (tried, None);
        }
    };
    let peak_bytes = (profile.memory.peak_bytes, pair.with.memory.peak_bytes);
    let for_memory = finding.gain.is_some_and(|gain| gain.metric == Metric::PeakMemory);
    let saved = peak_bytes.0 as f64 - peak_bytes.1 as f64;
    finding.verified = Some(match for_memory {
        true => Verified::Gain {
            value: saved,
            uncertainty: 0.0,
        },
        false => Verified::Gain {
            value: pair.ratio.value - 1.0,
            uncertainty: pair.ratio.uncertainty,
        },
    });
    let lowest = pair.ratio.value - pair.ratio.uncertainty;
    let limit = pair.with.setting.memory_limit_bytes.unwrap_or(u64::MAX);
    let outcome = match for_memory {
        _ if peak_bytes.1 > limit => Outcome::OverMemory,
        true if saved < LEAST_SAVED * peak_bytes.0 as f64 => Outcome::NoGain,
        true if lowest < 1.0 - MOST_LOST => Outcome::CostsThroughput,
        false if lowest < 1.0 + LEAST_GAIN => Outcome::NoGain,
        _ => Outcome::Kept,
    };
    let tried = Tried {
        finding,
        outcome,
        throughput: Some(pair.ratio),
        peak_bytes: Some(peak_bytes),
    };
    (tried, Some(pair.with))
}

struct Pair {
    ratio: Ratio,
    with: Profile,
}

/// Measures both recipes in turn: without, with, with, without.
fn in_turn(without: &Recipe, with: &Recipe, bench: &mut dyn TuningBench) -> Result<Pair, String> {
    // What cannot run shows before anything else is measured.
    let trial = bench.profile(with)?;
    let [first, last] = [bench.profile(without)?, bench.profile(without)?];
    let again = bench.profile(with)?;
    Ok(Pair {
        ratio: ratio_of([(&first, &trial), (&last, &again)]),
        with: again,
    })
}

/// Ratio of throughputs from pairs of neighbours (without, with).
fn ratio_of(pairs: [(&Profile, &Profile); 2]) -> Ratio {
    let rate = |profile: &Profile| profile.steps.tokens_per_s.max(f64::MIN_POSITIVE);
    let [first, second] = pairs.map(|(without, with)| rate(with) / rate(without));
    let [one, other] = pairs.map(|(without, with)| without.steps.interval.hypot(with.steps.interval));
    let value = (first * second).sqrt();
    let of_steps = value * one.hypot(other) / 2.0;
    Ratio {
        value,
        uncertainty: of_steps.max((first - second).abs() / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::diagnosis::{Gain, PredictedBy, Rule};
    use crate::profile::fixtures::sound_profile;
    use peft_tune_core::recipe::{Checkpointing, DataSettings, Precision};

    /// A machine that slows down with every measurement, on which checkpointing costs a fifth, bf16 doubles the speed, and twice
    /// the micro-batch gives nothing.
    struct Drifting {
        speed: f64,
        measured: usize,
        told: Vec<(Outcome, Recipe)>,
        most: usize,
    }

    impl Drifting {
        fn new() -> Self {
            Self {
                speed: 10_000.0,
                measured: 0,
                told: Vec::new(),
                most: usize::MAX,
            }
        }
    }

    impl TuningBench for Drifting {
        fn profile(&mut self, recipe: &Recipe) -> Result<Profile, String> {
            if recipe.optimizer.kind == OptimizerKind::Lion {
                return Err("out of memory".to_owned());
            }
            self.measured += 1;
            self.speed *= 0.93;
            let mut profile = sound_profile();
            profile.steps.interval = 0.005;
            profile.steps.tokens_per_s = self.speed;
            if recipe.gradient_checkpointing == Checkpointing::None {
                profile.steps.tokens_per_s *= 1.25;
            }
            if recipe.precision == Precision::Bf16 {
                profile.steps.tokens_per_s *= 2.0;
            }
            Ok(profile)
        }

        fn diagnose(&self, recipe: &Recipe, _profile: &Profile) -> Vec<Finding> {
            let all = [
                Change::Precision(Precision::Bf16),
                Change::Optimizer(OptimizerKind::Lion),
                Change::Checkpointing(Checkpointing::None),
                Change::Batch {
                    micro_batch: 2 * recipe.batch.micro_batch,
                    gradient_accumulation: 1,
                },
                Change::Threads(1),
            ];
            all.map(|change| Finding {
                rule: Rule::SlowOp,
                evidence: String::new(),
                change,
                gain: Some(Gain::without(0.1)),
                verified: None,
            })
            .into()
        }

        fn is_over(&self) -> bool {
            self.told.len() >= self.most
        }

        fn tried(&mut self, tried: &Tried, recipe: &Recipe, _before: &Profile) -> Result<(), String> {
            self.told.push((tried.outcome.clone(), recipe.clone()));
            Ok(())
        }
    }

    fn slow_recipe() -> Recipe {
        let mut recipe = Recipe::new("model", DataSettings::default());
        recipe.gradient_checkpointing = Checkpointing::Full;
        recipe.precision = Precision::Fp32;
        recipe
    }

    #[test]
    fn what_pays_is_kept_though_the_machine_slows_down() {
        let mut bench = Drifting::new();
        let allows = |change: &Change| Altering::of(change).is_none();
        let tuning = tune(&slow_recipe(), &mut bench, &allows).unwrap();
        let outcomes: Vec<&Outcome> = tuning.tried.iter().map(|tried| &tried.outcome).collect();
        let no_memory = Outcome::NotRun("out of memory".to_owned());
        assert_eq!(outcomes, [&no_memory, &Outcome::Kept, &Outcome::NoGain]);
        assert_eq!(tuning.recipe.gradient_checkpointing, Checkpointing::None);
        assert_eq!(tuning.recipe.precision, Precision::Fp32);
        assert_eq!(bench.told.last().unwrap().1, tuning.recipe);
        // By measurements one after the other alone it would seem to cost throughput.
        let total = tuning.total.unwrap();
        assert!((total.value - 1.25).abs() <= total.uncertainty + 0.01, "{total:?}");
        assert!(tuning.after.steps.tokens_per_s < tuning.before.steps.tokens_per_s);
        let left: Vec<&Change> = tuning.left.iter().map(|finding| &finding.change).collect();
        assert_eq!(left[0], &Change::Precision(Precision::Bf16));
        assert!(left.contains(&&Change::Threads(1)));
    }

    #[test]
    fn what_alters_learning_is_tried_only_where_it_is_allowed() {
        let tuning = tune(&slow_recipe(), &mut Drifting::new(), &|_| true).unwrap();
        assert_eq!(tuning.recipe.precision, Precision::Bf16);
        assert!(tuning.total.unwrap().value > 2.3);
    }

    #[test]
    fn no_change_is_tried_after_the_time() {
        let mut bench = Drifting::new();
        bench.most = 0;
        let tuning = tune(&slow_recipe(), &mut bench, &|_| true).unwrap();
        assert!(tuning.tried.is_empty() && tuning.total.is_none());
        assert_eq!((bench.measured, tuning.recipe), (1, slow_recipe()));
        assert_eq!(tuning.left.len(), 5);
    }

    #[test]
    fn memory_is_saved_only_where_throughput_stays() {
        struct Small(f64);
        impl TuningBench for Small {
            fn profile(&mut self, recipe: &Recipe) -> Result<Profile, String> {
                let mut profile = sound_profile();
                profile.steps.interval = 0.0;
                if recipe.optimizer.kind == OptimizerKind::AdamW8bit {
                    profile.memory.peak_bytes = profile.memory.peak_bytes * 9 / 10;
                    profile.steps.tokens_per_s *= self.0;
                }
                Ok(profile)
            }
            fn diagnose(&self, _recipe: &Recipe, _profile: &Profile) -> Vec<Finding> {
                vec![Finding {
                    rule: Rule::OptimizerState,
                    evidence: String::new(),
                    change: Change::Optimizer(OptimizerKind::AdamW8bit),
                    gain: Some(Gain {
                        metric: Metric::PeakMemory,
                        value: 1.0,
                        by: PredictedBy::Shares,
                    }),
                    verified: None,
                }]
            }
            fn is_over(&self) -> bool {
                false
            }
            fn tried(&mut self, _: &Tried, _: &Recipe, _: &Profile) -> Result<(), String> {
                Ok(())
            }
        }
        let outcome = |speed: f64| {
            let tuning = tune(&slow_recipe(), &mut Small(speed), &|_| true).unwrap();
            tuning.tried[0].outcome.clone()
        };
        assert_eq!([0.99, 0.9].map(outcome), [Outcome::Kept, Outcome::CostsThroughput]);
    }
}
