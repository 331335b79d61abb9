//! What a page shows, as the scripts read it.

use serde::Serialize;

use super::input::{Command, Confirmation, Finding, ImportanceView};
use crate::report::{Counts, Gain};
use peft_tune_core::study::{ParamValue, Params};

/// A study as a page shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StudyView {
    pub study: StudyHead,
    pub objectives: Vec<ObjectiveView>,
    /// Bounds that trials must keep, in words.
    pub constraints: Vec<String>,
    pub counts: Counts,
    /// The counts in words.
    pub counts_text: String,
    /// Sampled parameters in name order; `TrialView::params` has a value for each.
    pub params: Vec<AxisView>,
    /// Metrics that any trial has: the objectives first, then the rest by name; `TrialView::metrics` has a value for each.
    pub metrics: Vec<String>,
    pub trials: Vec<TrialView>,
    pub growth: Option<Growth>,
    pub curves: Vec<CurveView>,
    pub phases: Vec<PhaseView>,
    pub memory: Vec<MemoryView>,
    pub importance: Vec<ImportanceView>,
    pub predictions: Vec<PredictionView>,
    pub recommendation: Option<RecommendationView>,
    /// The trial that others are compared with.
    pub baseline: Option<u64>,
    /// What people ask of the search, in words and a picture each: the template writes them.
    #[serde(skip)]
    pub answers: Vec<AnswerView>,
    pub findings: Vec<Finding>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AnswerView {
    pub name: &'static str,
    pub question: &'static str,
    pub lines: Vec<String>,
    /// Picture as SVG, made by this program: names in it are text.
    pub picture: Option<String>,
}

/// The facts about a study.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StudyHead {
    pub name: String,
    pub space: String,
    pub model: Option<String>,
    /// What is learnt of the data, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learnt: Option<String>,
    /// What is predicted of another stack, and which that is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    pub sampler: String,
    pub seed: String,
    /// UTC, ISO 8601.
    pub began: String,
    /// UTC, ISO 8601.
    pub resumed: Option<String>,
    /// Wall-clock seconds of all trials together.
    pub wall_s: f64,
    /// What the search cost in money, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<String>,
    /// Speed of trials on several devices, a line each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scaling: Vec<String>,
    /// Version of the program that made the page.
    pub version: &'static str,
}

/// An objective.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ObjectiveView {
    pub metric: String,
    /// `tokens/s`, `peak memory`, ...
    pub label: String,
    pub maximize: bool,
}

/// A parameter as an axis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AxisView {
    pub name: String,
    /// Whether every value is a number.
    pub number: bool,
    /// Whether equal distances should be equal ratios.
    pub log: bool,
}

/// A trial.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrialView {
    pub number: u64,
    /// Name of its state.
    pub state: &'static str,
    /// Ending of the trial, in a few words: `complete`, `out_of_memory`, `pruned at step 12 (median)`.
    pub outcome: String,
    /// The whole reason, where there is more to say.
    pub detail: Option<String>,
    /// One a parameter of the study; null where the trial does not have it.
    pub params: Vec<Option<ParamValue>>,
    /// One a metric of the study; null where it was not measured.
    pub metrics: Vec<Option<f64>>,
    /// Place among the metrics, low and high end of the 95% interval, of what repeats measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub intervals: Vec<(usize, f64, f64)>,
    pub front: bool,
    /// Whether the trial is complete and keeps every bound.
    pub feasible: bool,
    pub wall_s: f64,
    /// US dollars of the full training of its setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_training_usd: Option<f64>,
    /// Parts that the trial inherited from others, each with its source.
    pub inherited: Vec<(String, u64)>,
}

/// How the front grew.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Growth {
    /// Reference value of each objective, in its own unit.
    pub reference: Vec<f64>,
    pub points: Vec<GrowthPoint>,
}

/// The front after a trial.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GrowthPoint {
    pub trial: u64,
    /// Seconds of trials up to and with this one.
    pub elapsed_s: f64,
    /// Hypervolume from the reference point, in the product of the objectives' units.
    pub volume: f64,
    /// Hypervolume as a share of what it is after the last trial, in [0, 1].
    pub share: f64,
}

/// A curve of one trial.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CurveView {
    pub trial: u64,
    pub name: String,
    /// `tokens` or `steps`.
    pub over: &'static str,
    pub points: Vec<(f64, f64)>,
}

/// Seconds of one step of a trial, by part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhaseView {
    pub trial: u64,
    /// `profile` or `train`.
    pub phase: &'static str,
    pub steps: u64,
    pub parts: Vec<(&'static str, f64)>,
}

/// Peak memory of a trial, by part, in bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryView {
    pub trial: u64,
    pub peak: f64,
    pub parts: Vec<(String, f64)>,
}

/// A prediction beside what came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PredictionView {
    pub metric: String,
    /// Trial, predicted value, measured value.
    pub points: Vec<(u64, f64, f64)>,
}

/// The trial to take.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecommendationView {
    pub trial: u64,
    pub reason: String,
    /// Gains of the trial against the baseline, in words.
    pub against_baseline: Option<String>,
    /// Gains against the baseline, by objective.
    pub gains: Vec<Gain>,
    /// What its full training costs in money, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_training: Option<String>,
    /// Params of the trial.
    pub settings: Params,
    /// Complete recipe, as YAML.
    pub recipe: Option<String>,
    pub commands: Vec<Command>,
    pub confirmation: Vec<Confirmation>,
}
