//! What a search found, and how it is told when the search ends.

use std::sync::Arc;

use crate::cli::CliError;
use crate::cli::options::database::DatabaseArgs;
use crate::cli::terminal::output::{tell, terminal_width, write_result};
use crate::report::explanation::importance_line;
use crate::report::{
    MeasuredScaling, Recommendation, StudyCosts, Summary, SummaryInput, held_out_warning, with_length,
};
use crate::space::Study;
use crate::store::{Confirmations, KernelsOfTrials, SpentTime, Variants};
use peft_tune_core::objective::LOSS;
use peft_tune_core::study::{Trial, TrialNumber, TrialState};
use peft_tune_search::{Preference, Prior, Problem, importance, most_telling, pareto_front, recommend};

/// Rows of the front that the closing screen shows, beside the recommended one.
const FRONT_ROWS: usize = 15;

/// What a search found.
pub(super) struct SearchResult {
    pub problem: Problem,
    pub prior: Option<Arc<dyn Prior>>,
    pub history: Vec<Trial>,
    pub confirmed: Confirmations,
    pub variants: Variants,
    pub predicted: Vec<(TrialNumber, String, f64)>,
    pub baseline: Option<TrialNumber>,
    pub kernels: KernelsOfTrials,
    /// Time that the search's runs took.
    pub spent: SpentTime,
    /// Costs in money, where the price of the workers is known.
    pub costs: Option<StudyCosts>,
    /// Trials on several devices, each beside one on one device.
    pub scaling: Vec<MeasuredScaling>,
    /// Rows of the held-out set.
    pub held_out_rows: Option<u64>,
}

impl SearchResult {
    /// Refuses a search in which no trial succeeded.
    ///
    /// # Errors
    /// No trial is complete.
    pub(super) fn succeeded(&self, explain: &str) -> Result<(), CliError> {
        let history = &self.history;
        let is_complete = |trial: &Trial| matches!(trial.state, TrialState::Complete { .. });
        if history.iter().any(is_complete) {
            return Ok(());
        }
        let message = match history.len() {
            0 => "no trial was run: the budget allows none".to_owned(),
            trials => format!("none of the {trials} trials succeeded; `{explain}` says why"),
        };
        Err(CliError::failed(anyhow::anyhow!(message)))
    }

    /// Says that the best loss is known less well than finalists differ.
    pub(super) fn warn_of_few_rows(&self, study: &Study) {
        let limit = study.plan.train.as_ref().and_then(|train| train.evaluation_rows);
        let rows = self
            .held_out_rows
            .map(|rows| limit.map_or(rows, |limit| rows.min(limit as u64)));
        let complete = self.history.iter().filter_map(|trial| match &trial.state {
            TrialState::Complete { metrics } => Some((metrics, metrics.value(LOSS)?)),
            _ => None,
        });
        let best = complete.min_by(|one, other| one.1.total_cmp(&other.1));
        if let Some(warning) = best
            .zip(rows)
            .and_then(|((metrics, _), rows)| held_out_warning(metrics, rows))
        {
            tell(format_args!("warning: {warning}"));
        }
    }

    /// Prints the summary of the search.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn print(self, database: &DatabaseArgs, study: &Study, as_json: bool) -> Result<(), CliError> {
        let (problem, history) = (&self.problem, self.history.as_slice());
        let front: Vec<_> = pareto_front(problem, history)
            .iter()
            .map(|point| point.trial.number)
            .collect();
        let recommendation = recommend(problem, history, &Preference::default());
        let recommendation = match &recommendation {
            Ok(chosen) => Some(Recommendation {
                trial: chosen.trial.number,
                reason: with_length(chosen.reason.clone(), study.finds_length, history),
            }),
            Err(error) => {
                tell(format_args!("no recommendation: {error}"));
                None
            }
        };
        let summary = Summary::new(SummaryInput {
            study: &study.name,
            objectives: &study.objectives,
            trials: history,
            front: &front,
            recommendation: recommendation.as_ref(),
            wall_s: self.spent.total_s(),
        })
        .with_confirmed(self.confirmed)
        .with_variants(history, self.variants)
        .with_predicted(self.predicted)
        .with_kernels(self.kernels)
        .with_target(study.target)
        .with_spent(self.spent)
        .with_costs(self.costs)
        .with_scaling(self.scaling)
        .with_baseline(self.baseline, history)
        .with_whole_front(database.command(&["pareto"], Some(&study.name)))
        .showing(
            most_telling(problem, history, FRONT_ROWS)
                .iter()
                .map(|trial| trial.number),
        );
        let text = match as_json {
            true => summary.to_json().map_err(CliError::failed)? + "\n",
            false => {
                let explain = database.command(&["explain"], Some(&study.name));
                let line = importance_line(&importance(problem, history, self.prior));
                let line = line.map(|line| format!("  {line} (`{explain}` says how)\n"));
                summary.to_text(terminal_width()) + &line.unwrap_or_default()
            }
        };
        write_result(&text)
    }
}
