//! `peft-tune status`: where studies stand, and who runs them.

use super::resume_command::resume_command_of;
use super::study_status::StudyStatus;
use crate::cli::CliError;
use crate::cli::options::database::DatabaseArgs;
use crate::cli::terminal::output::write_result;

/// Show the state of a study: who runs it, what is under way, how it ended
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Name of the study, the latest where absent
    study: Option<String>,
    /// Write JSON with raw numbers
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    database: DatabaseArgs,
}

pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    let (study, status) = args.database.read(async |store| {
        let study = store.studies().find(args.study.as_deref()).await?;
        let status = StudyStatus::read(store, &study).await?;
        Ok((study, status))
    })?;
    let begun = study.resumed_at.as_deref().unwrap_or(&study.created_at);
    write_result(&match args.json {
        true => serde_json::to_string_pretty(&status).map_err(CliError::failed)? + "\n",
        false => {
            let dashboard = args.database.command(&["dashboard"], None);
            status.to_text(begun, &resume_command_of(&study, &args.database), &dashboard)
        }
    })
}
