//! What a page is made from: plain values that the caller read from the database.

use std::collections::BTreeMap;

use crate::report::answers::Answers;
use crate::report::{Gain, MeasuredScaling, Recommendation, StudyCosts};
use crate::space::Target;
use crate::store::InheritedValue;
use peft_tune_core::objective::{Constraint, Objective};
use peft_tune_core::study::{Confirmations, Phase, Trial, TrialNumber};

/// Everything that a page may show. What is not known is left empty, and its part of the page does not appear.
#[derive(Clone, Debug, Default)]
pub struct PageInput {
    pub study: String,
    /// Search-space file.
    pub space: String,
    pub model: Option<String>,
    /// What is learnt of the data, in words.
    pub learnt: Option<String>,
    /// The stack that the study is for, where it is another.
    pub target: Option<Target>,
    pub sampler: String,
    pub seed: u64,
    /// UTC, ISO 8601.
    pub began: String,
    /// UTC, ISO 8601.
    pub resumed: Option<String>,
    /// Wall-clock seconds of all trials together.
    pub wall_s: f64,
    pub objectives: Vec<Objective>,
    pub constraints: Vec<Constraint>,
    /// Trials in order of number.
    pub trials: Vec<Trial>,
    /// Wall-clock seconds of each finished trial.
    pub trial_wall_s: BTreeMap<TrialNumber, f64>,
    /// Numbers of the trials on the Pareto front.
    pub front: Vec<TrialNumber>,
    /// What trials took over from others.
    pub inherited: Vec<InheritedValue>,
    pub trial_curves: Vec<TrialCurves>,
    /// Peak memory by part, where more is known than what the base model takes.
    pub memory: Vec<MemoryParts>,
    pub recommendation: Option<Recommendation>,
    /// What the recommended trial wins against the baseline, in words.
    pub against_baseline: Option<String>,
    /// Gains against the baseline, by objective.
    pub gains: Vec<Gain>,
    /// The trial that others are compared with.
    pub baseline: Option<TrialNumber>,
    /// What repeats say, by trial and metric.
    pub confirmed: Confirmations,
    /// Costs in money, where the price of the devices is known.
    pub costs: Option<StudyCosts>,
    /// Trials on several devices, each beside one on one device.
    pub scaling: Vec<MeasuredScaling>,
    /// Complete recipe of the recommended trial, as YAML.
    pub recipe: Option<String>,
    /// What people ask of the search; `None` where nobody asked.
    pub answers: Option<Answers>,
    /// How to use the recommended trial.
    pub commands: Vec<Command>,
    /// How much of each objective each parameter explains.
    pub importance: Vec<ImportanceView>,
    /// What was predicted before trials ran.
    pub predictions: Vec<Prediction>,
    /// What repeats of the recommended trial gave.
    pub confirmation: Vec<Confirmation>,
    /// What profiles of trials found.
    pub findings: Vec<Finding>,
}

/// A bottleneck of a trial that was profiled in depth.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Finding {
    pub trial: u64,
    pub rule: String,
    pub evidence: String,
    /// What would help.
    pub change: String,
    /// `throughput` (gains are relative) or `peak_memory` (bytes saved).
    pub metric: String,
    pub predicted_gain: Option<f64>,
    /// What running the change gave.
    pub measured_gain: Option<f64>,
}

/// How much of one objective each parameter explains.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ImportanceView {
    pub metric: String,
    /// The largest total first.
    pub shares: Vec<ImportanceShare>,
}

/// Shares of a metric's variance, in [0, 1].
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ImportanceShare {
    pub param: String,
    /// Explained by the parameter alone.
    pub first: f64,
    /// Explained with all interactions.
    pub total: f64,
}

/// What happened inside a trial.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrialCurves {
    pub number: u64,
    /// Curves by what they show.
    pub curves: Vec<MeasuredCurve>,
    /// Seconds by phase.
    pub phases: Vec<PhaseTimes>,
}

/// A number that was measured again and again as training continued.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredCurve {
    /// `training loss`, `held-out loss`, or a metric that the trial reported.
    pub name: String,
    /// Horizontal axis: `tokens` or `steps`.
    pub over: &'static str,
    pub points: Vec<(f64, f64)>,
}

/// The steps of a phase in sum, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PhaseTimes {
    pub phase: Phase,
    pub steps: u64,
    pub data_s: f64,
    pub forward_s: f64,
    pub backward_s: f64,
    pub optimizer_s: f64,
    pub total_s: f64,
}

/// What a trial's peak memory consists of, in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryParts {
    pub number: u64,
    pub parts: Vec<(String, f64)>,
}

/// What was predicted of a trial.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    pub number: TrialNumber,
    pub metric: String,
    pub value: f64,
}

/// A metric of the recommended trial, measured again by repeats.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Confirmation {
    pub metric: String,
    /// The value that the search measured.
    pub searched: f64,
    pub confirmed: f64,
    /// Bounds of the confirmed value's confidence interval.
    pub low: f64,
    pub high: f64,
}

/// A command line, and what it is for.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Command {
    pub purpose: String,
    pub line: String,
}
