//! `peft-tune pareto`: the Pareto front of a study.

use serde_json::json;

use super::CliError;
use super::database::DatabaseArgs;
use super::output::{terminal_width, write_result};
use crate::report::{Summary, SummaryInput};

/// Show the Pareto front of a study
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the study; the latest where absent
    study: Option<String>,
    /// Draw the front: each pair of objectives, or the two that are named, such as `throughput,loss`
    #[arg(long, value_name = "X,Y", num_args = 0..=1, default_missing_value = "", conflicts_with = "json")]
    plot: Option<String>,
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
        let front = store.front(study.id).await?;
        Ok(Summary::new(SummaryInput {
            study: &study.name,
            objectives: &study.objectives,
            trials: &trials,
            front: &front,
            recommendation: None,
            wall_s: study.wall_s,
        }))
    })?;
    let text = if args.json {
        let front = json!({
            "study": summary.study,
            "objectives": summary.objectives,
            "front": summary.front,
        });
        serde_json::to_string_pretty(&front).map_err(CliError::failed)? + "\n"
    } else {
        summary.to_text(terminal_width())
    };
    write_result(&text)
}
