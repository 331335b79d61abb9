//! Small histories with a right answer, for the tests of the answers.

use std::collections::BTreeMap;

use super::AnswersInput;
use crate::store::Variants;
use peft_tune_core::objective::{LOSS, Objective, THROUGHPUT};
use peft_tune_core::space::{Distribution, Parameter, Scale, SearchSpace, Widening};
use peft_tune_core::study::{ParamValue, Trial, TrialNumber, TrialState};
use peft_tune_search::{Insight, Problem, Proposal, UntoldCost};

/// A study of rank (4, 8, 16) and rate (0.1 to 0.6), of throughput and loss.
pub(super) struct Case {
    pub(super) problem: Problem,
    pub(super) trials: Vec<Trial>,
    pub(super) variants: Variants,
    pub(super) recommended: TrialNumber,
    /// Seconds of every trial.
    pub(super) each_s: f64,
    pub(super) next: Vec<Proposal>,
    pub(super) widened: Vec<Widening>,
    pub(super) untold: Vec<UntoldCost>,
}

/// A study whose trials have these params and measured what `values` says: throughput and loss. The last but one of the
/// highest rank is recommended unless the test says otherwise.
pub(super) fn study(params: &[(i64, f64)], values: impl Fn(&ParamValue, &ParamValue) -> [f64; 2]) -> Case {
    let parameter = |name: &str, distribution: Distribution| Parameter {
        name: name.to_owned(),
        distribution,
        condition: None,
        affects: None,
        widest: None,
    };
    let space = SearchSpace {
        parameters: vec![
            parameter(
                "rank",
                Distribution::Categorical {
                    choices: [4i64, 8, 16].map(ParamValue::Int).to_vec(),
                },
            ),
            parameter(
                "rate",
                Distribution::Float {
                    low: 0.1,
                    high: 0.6,
                    scale: Scale::Linear,
                    step: None,
                },
            ),
        ],
    };
    let trial = |(number, (rank, rate)): (u64, &(i64, f64))| {
        let (rank, rate) = (ParamValue::Int(*rank), ParamValue::Float(*rate));
        let [throughput, loss] = values(&rank, &rate);
        Trial {
            number: TrialNumber(number),
            params: [("rank".to_owned(), rank), ("rate".to_owned(), rate)].into(),
            state: TrialState::Complete {
                metrics: [(THROUGHPUT, throughput), (LOSS, loss)].into(),
            },
        }
    };
    Case {
        problem: Problem {
            space,
            objectives: [THROUGHPUT, LOSS].map(Objective::new).to_vec(),
            constraints: Vec::new(),
        },
        trials: (0..).zip(params).map(trial).collect(),
        variants: Variants::new(),
        recommended: TrialNumber(0),
        each_s: 10.0,
        next: Vec::new(),
        widened: Vec::new(),
        untold: Vec::new(),
    }
}

impl Case {
    /// What `ask` says of the study.
    pub(super) fn with<T>(&self, ask: impl FnOnce(AnswersInput<'_>) -> T) -> T {
        let wall_s = self.trials.iter().map(|trial| (trial.number, self.each_s)).collect();
        ask(AnswersInput {
            problem: &self.problem,
            trials: &self.trials,
            variants: &self.variants,
            confirmed: &BTreeMap::new(),
            recommended: Some(self.recommended),
            wall_s: &wall_s,
            insight: &Insight::new(&self.problem, &self.trials, None),
            next: &self.next,
            widened: &self.widened,
            untold: &self.untold,
        })
    }
}

/// A value as a number.
pub(super) fn number(value: &ParamValue) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}
