//! `peft-tune explain`: what a study found, in words: which trial to take and why, and why not its neighbours, which parameters
//! matter and what each is worth, where the search did not look, how sure the loss is, what failed and why, whether it is
//! done, and what more time would bring.

use super::answers::{Asked, PROPOSALS};
use super::costs::{PriceArgs, costs_of};
use crate::cli::CliError;
use crate::cli::options::database::DatabaseArgs;
use crate::cli::terminal::output::{terminal_width, write_result};
use crate::report::explanation::{Explained, Explanation, explanation_text};
use crate::report::{StudyCosts, against_baseline, with_length};
use crate::store::{EndingRecord, PredictionRecord, StudyOverview};
use peft_tune_core::space::StopRule;
use peft_tune_core::study::{Trial, TrialNumber};
use peft_tune_search::{Importance, Preference, hypervolume_history, recommend, stop_reason};

/// Parameters that are looked at closely: the most important ones of each objective.
const CLOSE: usize = 3;
/// Least share of a metric's variation that makes a parameter worth a look.
const LEAST_SHARE: f64 = 0.03;

/// Explain in words what a study found: the recommendation and its neighbours, what each setting is worth, what is not known
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Name of the study, the latest where absent
    study: Option<String>,
    /// Name of the study, as an option
    #[arg(long = "study", value_name = "NAME", conflicts_with = "study")]
    named: Option<String>,
    /// Trials to propose
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    next: usize,
    /// Write JSON with raw numbers
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    price: PriceArgs,
    #[command(flatten)]
    database: DatabaseArgs,
}

/// What the database has of the study.
struct Stored {
    study: StudyOverview,
    asked: Asked,
    /// Hypervolume that each trial was expected to add.
    expected: Vec<Option<f64>>,
    ending: Option<EndingRecord>,
    /// Predictions of the recommended trial.
    predictions: Vec<PredictionRecord>,
    baseline: Option<TrialNumber>,
    costs: Option<StudyCosts>,
}

pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    let stored = read(&args)?;
    let explanation = explain(stored, args.next);
    let text = match args.json {
        true => serde_json::to_string_pretty(&Explained::new(&explanation)).map_err(CliError::failed)? + "\n",
        false => explanation_text(&explanation, terminal_width()),
    };
    write_result(&text)
}

fn read(args: &Args) -> Result<Stored, CliError> {
    let name = args.study.as_deref().or(args.named.as_deref());
    args.database.read(async |store| {
        let study = store.studies().find(name).await?;
        let asked = Asked::read(store, &study).await?;
        let expectations = store.proposals().expectations(study.id).await?;
        let expected = asked
            .trials
            .iter()
            .map(|trial| expectations.get(&trial.number).copied());
        let predictions = match recommend(&asked.problem, &asked.trials, &Preference::default()) {
            Ok(chosen) => store.predictions().of(study.id, chosen.trial.number).await?,
            Err(_) => Vec::new(),
        };
        Ok(Stored {
            ending: store.searches().last_ending(study.id).await?,
            expected: expected.collect(),
            baseline: store.baselines().of(study.id).await?,
            costs: costs_of(store, &study, &asked.trials, args.price.price).await?,
            predictions,
            study,
            asked,
        })
    })
}

fn explain(stored: Stored, next: usize) -> Explanation {
    let Stored { study, asked, .. } = stored;
    let answered = asked.answer(next.max(PROPOSALS));
    let importance = answered.insight.importance();
    let of = |parameter: &String| {
        let worth = answered.answers.worth.iter();
        worth.filter(|effect| effect.parameter == *parameter).cloned().collect()
    };
    let effects = worth_a_look(&importance)
        .into_iter()
        .map(|parameter| (parameter.clone(), of(&parameter)))
        .collect();
    let finished: Vec<(Trial, Option<f64>)> = asked
        .trials
        .iter()
        .cloned()
        .zip(stored.expected)
        .filter(|(trial, _)| trial.state.is_finished())
        .collect();
    let (finished, expected): (Vec<Trial>, Vec<Option<f64>>) = finished.into_iter().unzip();
    let volumes = hypervolume_history(&asked.problem, &finished);
    let recommendation = recommend(&asked.problem, &asked.trials, &Preference::default());
    let baseline = stored
        .baseline
        .and_then(|number| asked.trials.iter().find(|trial| trial.number == number));
    let against_baseline = recommendation
        .as_ref()
        .ok()
        .zip(baseline)
        .map(|(chosen, baseline)| against_baseline(&study.objectives, chosen.trial, baseline, &asked.confirmed));
    Explanation {
        recommendation: recommendation
            .map(|chosen| {
                let reason = with_length(chosen.reason, study.finds_length, &asked.trials);
                (chosen.trial.number, reason)
            })
            .map_err(|error| error.to_string()),
        against_baseline,
        importance,
        effects,
        done: stop_reason(&StopRule::default(), &volumes, &expected),
        next: answered.next.into_iter().take(next).collect(),
        answers: answered.answers,
        volumes,
        ending: stored.ending,
        predictions: stored.predictions,
        costs: stored.costs,
        study,
        trials: asked.trials,
        confirmed: asked.confirmed,
        variants: asked.variants,
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
