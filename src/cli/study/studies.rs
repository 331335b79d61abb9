//! `peft-tune studies`: what the results database holds.

use serde_json::json;

use crate::cli::CliError;
use crate::cli::options::database::DatabaseArgs;
use crate::cli::terminal::output::{terminal_width, write_result};
use crate::report::{Align, TextTable, duration, minute};
use crate::store::StudyOverview;

/// List the studies in the results database
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Write JSON with raw numbers
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    database: DatabaseArgs,
}

pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    let studies = args.database.read(async |store| store.studies().all().await)?;
    let text = if args.json {
        let studies: Vec<serde_json::Value> = studies.iter().map(study_json).collect();
        serde_json::to_string_pretty(&studies).map_err(CliError::failed)? + "\n"
    } else if studies.is_empty() {
        "no studies yet: run `peft-tune search` first\n".to_owned()
    } else {
        table(&studies).to_text(terminal_width()) + "\n"
    };
    write_result(&text)
}

/// A study as JSON, with raw numbers.
pub(super) fn study_json(study: &StudyOverview) -> serde_json::Value {
    json!({
        "study": study.name,
        "space_path": study.space_path,
        "model": study.model,
        "sampler": study.sampler,
        "seed": study.seed,
        "objectives": study.objectives,
        "constraints": study.constraints,
        "target": study.target,
        "created_at": study.created_at,
        "resumed_at": study.resumed_at,
        "wall_s": study.wall_s,
        "trials": study.trials(),
        "variants": study.variants,
        "states": study.states,
    })
}

fn table(studies: &[StudyOverview]) -> TextTable {
    let mut table = TextTable::new([
        ("study".to_owned(), Align::Left),
        ("trials".to_owned(), Align::Right),
        ("variants".to_owned(), Align::Right),
        ("complete".to_owned(), Align::Right),
        ("failed".to_owned(), Align::Right),
        ("trial time".to_owned(), Align::Right),
        ("last started".to_owned(), Align::Left),
        ("objectives".to_owned(), Align::Left),
        ("model".to_owned(), Align::Left),
    ]);
    for study in studies {
        let of = |state: &str| study.states.get(state).copied().unwrap_or(0).to_string();
        let objectives: Vec<&str> = study
            .objectives
            .iter()
            .map(|objective| objective.metric.as_str())
            .collect();
        table.push([
            study.name.clone(),
            study.trials().to_string(),
            study.variants.to_string(),
            of("complete"),
            of("failed"),
            duration(study.wall_s),
            minute(study.resumed_at.as_ref().unwrap_or(&study.created_at)),
            objectives.join(", "),
            study.model.clone().unwrap_or_default(),
        ]);
    }
    table
}
