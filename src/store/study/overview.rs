//! Studies as lists show them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::space::{BackendKind, Target, problem_of};
use crate::store::StudyId;
use peft_tune_core::objective::{Constraint, Objective};
use peft_tune_core::predict::WorkerPrice;
use peft_tune_core::recipe::TrainedRows;
use peft_tune_core::space::SearchSpace;
use peft_tune_core::study::{Trial, TrialNumber};
use peft_tune_search::{Problem, pareto_front};

/// A study as lists show it.
#[derive(Clone, Debug, PartialEq)]
pub struct StudyOverview {
    pub id: StudyId,
    pub name: String,
    pub space_path: PathBuf,
    pub sampler: String,
    pub seed: u64,
    pub model: Option<String>,
    /// What runs the trials.
    pub backend: BackendKind,
    /// Whether the search finds how long the exported recipe trains.
    pub finds_length: bool,
    /// Rows that are trained on, where they were recorded.
    pub trained: Option<TrainedRows>,
    /// Words on what is learnt of the data.
    pub learnt: Option<String>,
    /// Beginning in UTC, ISO 8601.
    pub created_at: String,
    /// Latest resumption in UTC, ISO 8601.
    pub resumed_at: Option<String>,
    pub objectives: Vec<Objective>,
    pub constraints: Vec<Constraint>,
    /// The stack that the settings are for, where that is another one than the native engine.
    pub target: Option<Target>,
    /// Price of the workers of its last search, where it was known.
    pub price: Option<WorkerPrice>,
    /// Trials by the name of their state.
    pub states: BTreeMap<String, u64>,
    /// Trials that took their loss over from another.
    pub variants: u64,
    /// Wall-clock seconds of all trials together.
    pub wall_s: f64,
}

impl StudyOverview {
    /// Trials in any state.
    pub fn trials(&self) -> u64 {
        self.states.values().sum()
    }

    /// The problem that the study searches; fronts and recommendations need no space.
    pub fn problem(&self, space: Option<SearchSpace>) -> Problem {
        problem_of(
            space.unwrap_or_default(),
            &self.objectives,
            &self.constraints,
            self.backend.trains_recipes(),
        )
    }

    /// The Pareto front of its trials, with the values that repeats confirmed, in order of number, as the view
    /// `pareto_front` has it.
    pub fn front(&self, trials: &[Trial]) -> Vec<TrialNumber> {
        let front = pareto_front(&self.problem(None), trials);
        front.iter().map(|one| one.trial.number).collect()
    }
}

/// Key of a study's definition with what its workers cost an hour ([`WorkerPrice`]), which is no part of the study's identity; absent
/// where that is not known.
pub const PRICE: &str = "price";

/// Key of a study's definition that says whether the search finds how long the exported recipe trains; absent where it
/// does not.
pub const FINDS_LENGTH: &str = "finds_length";
