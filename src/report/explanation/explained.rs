//! What a study found, as JSON.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::contents::Explanation;
use super::failures::{Failures, failures};
use crate::report::StudyCosts;
use crate::report::answers::{Answers, Coverage, LossCertainty, MoreTime, Neighbour};
use crate::space::Target;
use crate::store::{EndingRecord, PredictionRecord};
use peft_tune_core::study::{Confirmed, Metrics, Params, TrialNumber};
use peft_tune_search::{Effect, Importance, Proposal};

/// An object without a schema of its own.
type Object = Map<String, Value>;

/// What `explain --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Explained<'a> {
    study: &'a str,
    /// The training tool that the study is for, where it is another than this program.
    #[schemars(with = "Option<Object>")]
    target: Option<&'a Target>,
    recommendation: Recommendation<'a>,
    /// Costs in money, where the price of the devices is known.
    #[schemars(with = "Option<Object>")]
    costs: Option<&'a StudyCosts>,
    /// Share of each parameter in the variation of each metric.
    #[schemars(with = "Vec<Object>")]
    importance: &'a [Importance],
    /// The recommended setting with one thing changed, measured or predicted.
    #[schemars(with = "Vec<Object>")]
    neighbours: &'a [Neighbour],
    /// Every parameter on every objective, the other settings held.
    #[schemars(with = "Vec<Object>")]
    effects: &'a [Effect],
    /// How many trainings each value or part of a range got.
    #[schemars(with = "Vec<Object>")]
    coverage: &'a [Coverage],
    /// How sure the loss of the recommended trial is.
    #[schemars(with = "Option<Object>")]
    loss: Option<&'a LossCertainty>,
    /// What ten more minutes would bring.
    #[schemars(with = "Option<Object>")]
    more_time: Option<&'a MoreTime>,
    /// Trials that failed, were stopped or skipped, by reason.
    #[schemars(with = "Vec<Object>")]
    failures: Vec<Failures>,
    /// Hypervolume of the front after each finished trial.
    hypervolume: &'a [f64],
    /// Ending of the study's last search.
    ending: Option<&'a EndingRecord>,
    /// Why the study may end by the usual rule, where it may.
    done: Option<&'a str>,
    /// Trials that the model would try next, the best first.
    #[schemars(with = "Vec<Object>")]
    next: &'a [Proposal],
}

/// The trial to take.
#[derive(Debug, Serialize, JsonSchema)]
struct Recommendation<'a> {
    /// Number of the trial; none where no trial can be recommended.
    trial: Option<TrialNumber>,
    /// Reason for this trial, or why there is none.
    reason: &'a str,
    params: Option<&'a Params>,
    metrics: Option<&'a Metrics>,
    /// Metrics that the trial was expected to have.
    #[schemars(with = "Vec<Object>")]
    predicted: &'a [PredictionRecord],
    /// What repeats of it say, by metric.
    #[schemars(with = "Option<Object>")]
    confirmed: Option<&'a BTreeMap<String, Confirmed>>,
    /// Gains of the trial against the baseline, in words.
    against_baseline: Option<&'a str>,
}

impl<'a> Explained<'a> {
    /// The JSON form of what is said about a study.
    pub fn new(explanation: &'a Explanation) -> Self {
        let Explanation {
            study,
            trials,
            confirmed: _,
            recommendation: _,
            variants: _,
            against_baseline: _,
            predictions: _,
            costs,
            importance,
            // A choice among the answers' effects, for people.
            effects: _,
            volumes,
            ending,
            done,
            next,
            answers,
        } = explanation;
        let Answers {
            neighbours,
            worth,
            coverage,
            loss,
            more_time,
        } = answers;
        Self {
            study: &study.name,
            target: study.target.as_ref(),
            recommendation: Recommendation::new(explanation),
            costs: costs.as_ref(),
            importance,
            neighbours,
            effects: worth,
            coverage,
            loss: loss.as_ref(),
            more_time: more_time.as_ref(),
            failures: failures(trials),
            hypervolume: volumes,
            ending: ending.as_ref(),
            done: done.as_deref(),
            next,
        }
    }
}

impl<'a> Recommendation<'a> {
    fn new(explanation: &'a Explanation) -> Self {
        let (trial, reason) = match &explanation.recommendation {
            Ok((trial, reason)) => (Some(*trial), reason),
            Err(reason) => (None, reason),
        };
        let found = explanation.trials.iter().find(|one| Some(one.number) == trial);
        Self {
            trial,
            reason,
            params: found.map(|one| &one.params),
            metrics: found.and_then(|one| one.state.metrics()),
            predicted: &explanation.predictions,
            confirmed: trial.and_then(|trial| explanation.confirmed.get(&trial)),
            against_baseline: explanation.against_baseline.as_deref(),
        }
    }
}
