//! Which trial of the results database `export` writes: the one that was named, or the recommended one.

use super::args::{Args, RuleArgs};
use crate::cli::CliError;
use crate::report::{
    against_baseline, confirmation_text, disturbance_text, loss_rows_text, target_text, unsaid_length,
    with_found_length,
};
use crate::space::Target;
use crate::store::{Confirmations, StudyOverview, TrialDetail};
use peft_tune_core::objective::{Bound, Constraint, LOSS, Objective, PEAK_MEMORY, counted_as};
use peft_tune_core::recipe::{Recipe, TrainedRows};
use peft_tune_core::study::{Metrics, Trial, TrialNumber};
use peft_tune_search::{Preference, Rule, recommend};

/// A trial that is exported.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Chosen {
    pub recipe: Recipe,
    pub study: String,
    pub trial: TrialNumber,
    pub metrics: Metrics,
    /// The stack that its study is for, where it is another.
    pub target: Option<Target>,
    /// Sentences that say why it was chosen.
    pub reasons: Vec<String>,
    /// Training rows, where they were recorded.
    pub trained: Option<TrainedRows>,
}

/// What the database has for the arguments.
struct Stored {
    study: StudyOverview,
    /// Trials of the study, with what repeats say in the place of what was measured once.
    trials: Vec<Trial>,
    confirmed: Confirmations,
    /// The trial that others are compared with.
    baseline: Option<TrialNumber>,
}

/// Finds the trials to export: one, or the whole front.
///
/// # Errors
/// Bad input where the database has no such study or trial, where no trial meets the preferences, or where the trial has no
/// recipe.
pub(super) fn choose(args: &Args) -> Result<Vec<Chosen>, CliError> {
    let database = &args.database;
    let (stored, front) = database.read(async |store| {
        let study = store.studies().find(args.study.as_deref()).await?;
        let (trials, confirmed) = store.history().confirmed_trials(study.id).await?;
        let front = match args.front {
            true => study.front(&trials),
            false => Vec::new(),
        };
        let stored = Stored {
            baseline: store.baselines().of(study.id).await?,
            study,
            trials,
            confirmed,
        };
        Ok((stored, front))
    })?;
    let chosen: Vec<(TrialNumber, String)> = match args.trial {
        Some(number) => vec![(TrialNumber(number), format!("trial {number}, as asked"))],
        None if args.front => {
            let reason = |number: TrialNumber| (number, format!("trial {number}, as it is on the front"));
            front.into_iter().map(reason).collect()
        }
        None => vec![recommended(&stored, &args.rule)?],
    };
    if chosen.is_empty() {
        let why = "no trial is complete with every objective known: run more trials";
        return Err(CliError::bad_input(anyhow::anyhow!(
            "study `{}` has no front: {why}",
            stored.study.name
        )));
    }
    chosen
        .into_iter()
        .map(|(number, reason)| with_recipe(args, &stored, number, reason))
        .collect()
}

fn with_recipe(args: &Args, stored: &Stored, number: TrialNumber, reason: String) -> Result<Chosen, CliError> {
    let study = &stored.study;
    let detail = args
        .database
        .read(async |store| store.trial_details().of(study.id, number).await)?;
    let recipe = recipe_of(&detail, stored, number)?;
    let trial = stored.trials.iter().find(|trial| trial.number == number);
    let metrics = trial
        .and_then(|trial| trial.state.metrics())
        .cloned()
        .unwrap_or_default();
    let disturbance = disturbance_text(&metrics);
    let basis = confirmation_text(stored.confirmed.get(&number)).unwrap_or_else(|| "measured once".to_owned());
    // Where trials are named, or another wish chose, the reason says nothing of the length.
    let length = unsaid_length(&reason, study.finds_length, &stored.trials);
    Ok(Chosen {
        recipe,
        study: study.name.clone(),
        trial: number,
        target: study.target,
        reasons: [Some(reason), Some(basis), length]
            .into_iter()
            .flatten()
            .chain(target_text(study.target, &metrics))
            .chain(disturbance)
            .chain(loss_rows_text(&metrics))
            .chain(against(stored, number))
            .collect(),
        trained: study.trained,
        metrics,
    })
}

/// What a trial wins against the baseline of its study, where that has one.
fn against(stored: &Stored, number: TrialNumber) -> Option<String> {
    let of = |number: TrialNumber| stored.trials.iter().find(|trial| trial.number == number);
    let (recommended, baseline) = (of(number)?, of(stored.baseline?)?);
    Some(against_baseline(
        &stored.study.objectives,
        recommended,
        baseline,
        &stored.confirmed,
    ))
}

fn recommended(stored: &Stored, rule: &RuleArgs) -> Result<(TrialNumber, String), CliError> {
    let problem = stored.study.problem(None);
    let chosen =
        recommend(&problem, &stored.trials, &wish_of(rule, &stored.study.objectives)).map_err(CliError::bad_input)?;
    Ok((chosen.trial.number, chosen.reason))
}

/// What people ask for in the metrics of the study: those predicted of another stack where it is for one.
fn wish_of(rule: &RuleArgs, objectives: &[Objective]) -> Preference {
    let counted = |metric: &str| counted_as(metric, objectives).to_owned();
    let limit = rule.max_memory.map(|bytes| Constraint {
        metric: counted(PEAK_MEMORY),
        bound: Bound::AtMost(bytes as f64),
    });
    Preference {
        rule: match (&rule.prefer, &rule.weights) {
            (Some(preference), _) => match preference.metric() {
                Some(metric) => Rule::Prefer(counted(metric)),
                None => Rule::Knee,
            },
            (None, Some(weights)) => {
                let weights = weights.0.iter();
                Rule::Weights(weights.map(|(metric, weight)| (counted(metric), *weight)).collect())
            }
            (None, None) => Rule::Fastest,
        },
        limits: limit.into_iter().collect(),
        slack: rule
            .max_loss_increase
            .map(|share| (LOSS.to_owned(), share))
            .into_iter()
            .collect(),
    }
}

fn recipe_of(detail: &TrialDetail, stored: &Stored, number: TrialNumber) -> Result<Recipe, CliError> {
    let study = &stored.study.name;
    let Some(recipe) = &detail.recipe else {
        let why = "it has no recipe: a program of the user's ran it, or its settings make none";
        return Err(CliError::bad_input(anyhow::anyhow!(
            "trial {number} of study `{study}` cannot be exported: {why}"
        )));
    };
    let recipe = with_found_length(recipe.clone(), &stored.trials);
    serde_json::from_value(recipe).map_err(|error| {
        let message = format!("the recipe of trial {number} of study `{study}` is not one this version reads");
        CliError::failed(anyhow::Error::new(error).context(message))
    })
}
