//! `peft-tune explain`: what a study found, in words: which trial to take and why, which parameters matter and how each
//! works, what failed and why, whether it is done, and what to try next.

use serde_json::{Value, json};

use super::CliError;
use super::database::DatabaseArgs;
use super::explain_text;
use super::output::{terminal_width, write_result};
use crate::store::{Confirmations, EndingRecord, PredictionRecord, StudyOverview};
use peft_tune_core::space::{SearchSpace, StopRule};
use peft_tune_core::study::{Trial, TrialNumber};
use peft_tune_search::{
    Bayes, Effect, Importance, Insight, Preference, Proposal, hypervolume_history, recommend, stop_reason,
};

/// Parameters that are looked at closely: the most important ones of each objective.
const CLOSE: usize = 3;
/// Least share of a metric's variation that makes a parameter worth a look.
const LEAST_SHARE: f64 = 0.03;

/// Explain in words what a study found: the recommendation, what matters and how, what failed, what to try next
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the study, the latest where absent
    study: Option<String>,
    /// The same
    #[arg(long = "study", value_name = "NAME", conflicts_with = "study")]
    named: Option<String>,
    /// Trials to propose
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    next: usize,
    /// Write JSON with raw numbers
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    database: DatabaseArgs,
}

/// What the database has of the study.
struct Stored {
    study: StudyOverview,
    space: Option<SearchSpace>,
    /// With what repeats say in the place of what was measured once.
    trials: Vec<Trial>,
    confirmed: Confirmations,
    /// Hypervolume that each trial was expected to add.
    expected: Vec<Option<f64>>,
    ending: Option<EndingRecord>,
    /// Of the recommended trial.
    predictions: Vec<PredictionRecord>,
}

/// Everything that is said about a study.
pub(super) struct Explanation {
    pub(super) study: StudyOverview,
    pub(super) trials: Vec<Trial>,
    pub(super) confirmed: Confirmations,
    pub(super) recommendation: Result<(TrialNumber, String), String>,
    pub(super) predictions: Vec<PredictionRecord>,
    pub(super) importance: Vec<Importance>,
    /// The most important parameters with their effects on every objective.
    pub(super) effects: Vec<(String, Vec<Effect>)>,
    pub(super) volumes: Vec<f64>,
    pub(super) ending: Option<EndingRecord>,
    /// Why the study may end by the usual rule, where it may.
    pub(super) done: Option<String>,
    pub(super) next: Vec<Proposal>,
}

pub fn run(args: Args) -> Result<(), CliError> {
    let stored = read(&args)?;
    let explanation = explain(stored, args.next);
    let text = match args.json {
        true => serde_json::to_string_pretty(&to_json(&explanation)).map_err(CliError::failed)? + "\n",
        false => explain_text::text(&explanation, terminal_width()),
    };
    write_result(&text)
}

fn read(args: &Args) -> Result<Stored, CliError> {
    let name = args.study.as_deref().or(args.named.as_deref());
    args.database.read(async |store| {
        let study = store.study(name).await?;
        let (trials, confirmed) = store.confirmed_trials(study.id).await?;
        let expectations = store.expectations(study.id).await?;
        let expected = trials.iter().map(|trial| expectations.get(&trial.number).copied());
        let problem = study.problem(None);
        let predictions = match recommend(&problem, &trials, &Preference::default()) {
            Ok(chosen) => store.predictions(study.id, chosen.trial.number).await?,
            Err(_) => Vec::new(),
        };
        Ok(Stored {
            space: store.search_space(study.id).await?,
            ending: store.ending(study.id).await?,
            expected: expected.collect(),
            predictions,
            study,
            trials,
            confirmed,
        })
    })
}

fn explain(stored: Stored, next: usize) -> Explanation {
    let problem = stored.study.problem(stored.space);
    let insight = Insight::new(&problem, &stored.trials);
    let importance = insight.importance();
    let effects = worth_a_look(&importance)
        .into_iter()
        .map(|parameter| (parameter.clone(), insight.effects(&parameter)))
        .collect();
    let finished: Vec<(Trial, Option<f64>)> = stored
        .trials
        .iter()
        .cloned()
        .zip(stored.expected)
        .filter(|(trial, _)| trial.state.is_finished())
        .collect();
    let (finished, expected): (Vec<Trial>, Vec<Option<f64>>) = finished.into_iter().unzip();
    let volumes = hypervolume_history(&problem, &finished);
    let recommendation = recommend(&problem, &stored.trials, &Preference::default())
        .map(|chosen| (chosen.trial.number, chosen.reason))
        .map_err(|error| error.to_string());
    // More objectives than the model takes, or nothing to choose: nothing is proposed.
    let can_propose = !problem.space.parameters.is_empty() && (1..=4).contains(&problem.objectives.len());
    Explanation {
        recommendation,
        importance,
        effects,
        done: stop_reason(&StopRule::default(), &volumes, &expected),
        next: match can_propose {
            true => Bayes::new(stored.study.seed).propose_many(&problem, &stored.trials, next),
            false => Vec::new(),
        },
        volumes,
        ending: stored.ending,
        predictions: stored.predictions,
        study: stored.study,
        trials: stored.trials,
        confirmed: stored.confirmed,
    }
}

/// The most important parameters of every objective, each once.
fn worth_a_look(importance: &[Importance]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for one in importance {
        let shares = one.shares.iter().take(CLOSE).filter(|share| share.total >= LEAST_SHARE);
        for share in shares {
            if !names.contains(&share.parameter) {
                names.push(share.parameter.clone());
            }
        }
    }
    names
}

fn to_json(explanation: &Explanation) -> Value {
    let recommendation = match &explanation.recommendation {
        Ok((trial, reason)) => {
            let found = explanation.trials.iter().find(|one| one.number == *trial);
            json!({
                "trial": trial,
                "reason": reason,
                "params": found.map(|one| &one.params),
                "metrics": found.and_then(|one| one.state.metrics()),
                "predicted": explanation.predictions,
                "confirmed": explanation.confirmed.get(trial),
            })
        }
        Err(reason) => json!({"trial": null, "reason": reason}),
    };
    let effects: Vec<&Effect> = explanation.effects.iter().flat_map(|(_, effects)| effects).collect();
    json!({
        "study": explanation.study.name,
        "recommendation": recommendation,
        "importance": explanation.importance,
        "effects": effects,
        "failures": explain_text::failures(&explanation.trials),
        "hypervolume": explanation.volumes,
        "ending": explanation.ending,
        "done": explanation.done,
        "next": explanation.next,
    })
}
