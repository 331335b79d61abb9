//! `peft-tune pareto`: the Pareto front of a study.

use serde_json::json;

use super::CliError;
use super::database::DatabaseArgs;
use super::output::{terminal_width, write_result};
use crate::report::{Summary, SummaryInput};
use crate::search::{Problem, pareto_front};
use crate::space::SearchSpace;
use crate::store::StudyOverview;
use crate::study::{Trial, TrialNumber, with_confirmed};

/// Show the Pareto front of a study
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the study; the latest where absent
    study: Option<String>,
    /// Write JSON with raw numbers
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    database: DatabaseArgs,
}

pub fn run(args: Args) -> Result<(), CliError> {
    let summary = args.database.read(async |store| {
        let study = store.study(args.study.as_deref()).await?;
        let trials = store.trials(study.id).await?;
        let confirmed = store.confirmations(study.id).await?;
        let trials = with_confirmed(&trials, &confirmed);
        let front = match confirmed.is_empty() {
            true => store.front(study.id).await?,
            // The view knows only what was measured in the trials themselves.
            false => front_of(&study, &trials),
        };
        Ok(Summary::new(SummaryInput {
            study: &study.name,
            objectives: &study.objectives,
            trials: &trials,
            front: &front,
            recommendation: None,
            wall_s: study.wall_s,
        })
        .with_confirmed(confirmed))
    })?;
    let text = if args.json {
        let front = json!({
            "study": summary.study,
            "objectives": summary.objectives,
            "front": summary.front,
            "confirmed": summary.confirmed,
        });
        serde_json::to_string_pretty(&front).map_err(CliError::failed)? + "\n"
    } else {
        summary.to_text(terminal_width())
    };
    write_result(&text)
}

/// The front of trials whose repeats count.
fn front_of(study: &StudyOverview, trials: &[Trial]) -> Vec<TrialNumber> {
    let problem = Problem {
        space: SearchSpace::default(),
        objectives: study.objectives.clone(),
        constraints: study.constraints.clone(),
    };
    let front = pareto_front(&problem, trials);
    front.iter().map(|one| one.trial.number).collect()
}
