//! `peft-tune pareto`: the Pareto front of a study.

use serde_json::json;

use super::costs::{PriceArgs, costs_of};
use super::scaling::scaling_of;
use crate::cli::CliError;
use crate::cli::options::database::DatabaseArgs;
use crate::cli::terminal::output::{terminal_width, write_result};
use crate::report::charts::plot;
use crate::report::{Summary, SummaryInput};
use crate::store::StudyOverview;
use peft_tune_core::objective::Objective;
use peft_tune_core::study::{Trial, TrialNumber};
use peft_tune_search::{Preference, recommend};

/// Show the Pareto front of a study
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Name of the study; the latest where absent
    study: Option<String>,
    /// Draw the front: each pair of objectives, or the two that are named, such as `--plot=throughput,loss`
    #[arg(long, value_name = "X,Y", num_args = 0..=1, require_equals = true, default_missing_value = "", conflicts_with = "json")]
    plot: Option<String>,
    /// Write JSON with raw numbers
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    price: PriceArgs,
    #[command(flatten)]
    database: DatabaseArgs,
}

pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    let (study, trials, front, (confirmed, predicted, variants, kernels), (costs, scaling)) =
        args.database.read(async |store| {
            let study = store.studies().find(args.study.as_deref()).await?;
            let (trials, confirmed) = store.history().confirmed_trials(study.id).await?;
            let front = study.front(&trials);
            let predicted = store.predictions().all(study.id).await?;
            let variants = store.inheritance().variants(study.id).await?;
            let kernels = store.kernel_forms().of(study.id).await?;
            let costs = costs_of(store, &study, &trials, args.price.price).await?;
            let scaling = scaling_of(store, study.id, &trials).await?;
            Ok((
                study,
                trials,
                front,
                (confirmed, predicted, variants, kernels),
                (costs, scaling),
            ))
        })?;
    if let Some(names) = &args.plot {
        return write_result(&plots(&study, &trials, &front, names)?);
    }
    let summary = Summary::new(SummaryInput {
        study: &study.name,
        objectives: &study.objectives,
        trials: &trials,
        front: &front,
        recommendation: None,
        wall_s: study.wall_s,
    })
    .with_confirmed(confirmed)
    .with_variants(&trials, variants)
    .with_predicted(predicted)
    .with_kernels(kernels)
    .with_costs(costs)
    .with_scaling(scaling)
    .with_target(study.target);
    let text = if args.json {
        let front = json!({
            "study": summary.study,
            "objectives": summary.objectives,
            "front": summary.front,
            "confirmed": summary.confirmed,
            "predicted": summary.predicted,
            "variants": summary.variants,
            "kernels": summary.kernels,
            "target": summary.target,
            "costs": summary.costs,
            "scaling": summary.scaling,
        });
        serde_json::to_string_pretty(&front).map_err(CliError::failed)? + "\n"
    } else {
        summary.to_text(terminal_width())
    };
    write_result(&text)
}

/// The front in each pair of objectives, or in the named one.
fn plots(study: &StudyOverview, trials: &[Trial], front: &[TrialNumber], names: &str) -> Result<String, CliError> {
    let problem = study.problem(None);
    // Without a recommendation the plot has no star.
    let recommended = recommend(&problem, trials, &Preference::default())
        .ok()
        .map(|chosen| chosen.trial.number);
    let plots: Vec<String> = pairs(&study.objectives, names)?
        .into_iter()
        .filter_map(|pair| plot(pair, trials, front, recommended, terminal_width()))
        .collect();
    match plots.is_empty() {
        true => Err(CliError::bad_input(anyhow::anyhow!(
            "study `{}` has no complete trial with two objectives to draw: run more trials",
            study.name
        ))),
        false => Ok(plots.join("\n")),
    }
}

fn pairs<'a>(objectives: &'a [Objective], names: &str) -> Result<Vec<(&'a Objective, &'a Objective)>, CliError> {
    if names.is_empty() {
        let below = |y: usize| (0..y).map(move |x| (x, y));
        let all = (0..objectives.len()).flat_map(below);
        return Ok(all.map(|(x, y)| (&objectives[x], &objectives[y])).collect());
    }
    let find = |name: &str| objectives.iter().find(|one| one.metric == name.trim());
    match names.split_once(',').map(|(x, y)| (find(x), find(y))) {
        Some((Some(x), Some(y))) => Ok(vec![(x, y)]),
        _ => {
            let known: Vec<&str> = objectives.iter().map(|one| one.metric.as_str()).collect();
            Err(CliError::bad_input(anyhow::anyhow!(
                "`--plot={names}` does not name two objectives: use two of {}, such as `--plot={},{}`",
                known.join(", "),
                known.first().unwrap_or(&"a"),
                known.last().unwrap_or(&"b")
            )))
        }
    }
}
