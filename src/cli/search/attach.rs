//! `peft-tune attach`: watches a search that another process runs.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use super::resume_command::resume_command_of;
use super::study_status::StudyStatus;
use crate::cli::CliError;
use crate::cli::options::database::DatabaseArgs;
use crate::cli::terminal::output::{tell_part, write_result};
use crate::report::{duration, metric_value, metric_words};
use peft_tune_core::study::{Trial, TrialState};

/// Time between two looks at the database.
const LOOK: Duration = Duration::from_millis(500);

/// Looks in a row that may fail.
const MOST_FAILURES: u32 = 20;

/// Watch a running search; Ctrl-C leaves it running
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Name of the study, the latest where absent
    study: Option<String>,
    #[command(flatten)]
    database: DatabaseArgs,
}

pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    let mut told: Option<usize> = None;
    let mut failures = 0;
    let is_terminal = std::io::stderr().is_terminal();
    loop {
        // What another process writes at the same moment makes a look fail now and then: the next one will do.
        let look = args.database.read(async |store| {
            let study = store.studies().find(args.study.as_deref()).await?;
            let status = StudyStatus::read(store, &study).await?;
            let trials = store.history().confirmed_trials(study.id).await?.0;
            Ok((study, status, trials))
        });
        let (study, status, trials) = match look {
            Ok(look) => look,
            Err(CliError::Database(_)) if failures < MOST_FAILURES => {
                failures += 1;
                std::thread::sleep(LOOK);
                continue;
            }
            Err(error) => return Err(error),
        };
        failures = 0;
        let finished: Vec<&Trial> = trials.iter().filter(|trial| trial.state.is_finished()).collect();
        // What was finished before is not told again.
        let from = told
            .unwrap_or(if status.running { finished.len() } else { 0 })
            .min(finished.len());
        if told.is_some() {
            for trial in &finished[from..] {
                say(&format!("{}\n", line(trial)), is_terminal);
            }
        }
        told = Some(finished.len());
        if !status.running {
            say("", is_terminal);
            let begun = study.resumed_at.as_deref().unwrap_or(&study.created_at);
            let resume = resume_command_of(&study, &args.database);
            write_result(&status.to_text(begun, &resume, &args.database.command(&["dashboard"], None)))?;
            return match status.ending {
                Some(_) => Ok(()),
                None => Err(CliError::failed(anyhow::anyhow!(
                    "the search of study {} was lost with its process; `{resume}` continues it",
                    study.name
                ))),
            };
        }
        if is_terminal {
            let under_way: Vec<String> = status
                .under_way
                .iter()
                .map(|one| format!("{} {}", one.trial, one.phase.as_deref().unwrap_or("started")))
                .collect();
            let spent = duration(status.trial_s);
            tell_part(format_args!(
                "\r\x1b[K{}{} finished, {spent}; under way: {}",
                if status.paused { "paused, " } else { "" },
                status.finished,
                under_way.join(", ")
            ));
            let _ = std::io::stderr().flush();
        }
        std::thread::sleep(LOOK);
    }
}

/// Writes a line above the one that changes.
fn say(text: &str, is_terminal: bool) {
    if is_terminal {
        tell_part(format_args!("\r\x1b[K"));
    }
    tell_part(format_args!("{text}"));
}

/// A finished trial in a line.
fn line(trial: &Trial) -> String {
    let metrics = trial.state.metrics().into_iter().flat_map(|metrics| metrics.iter());
    let shown = metrics.filter(|(name, _)| ["throughput", "peak_memory", "loss"].contains(name));
    let values: Vec<String> = shown
        .map(|(name, value)| format!("{} {}", metric_words(name), metric_value(name, value)))
        .collect();
    let why = match &trial.state {
        TrialState::Failed { reason, .. } => format!(" ({})", reason.name()),
        _ => String::new(),
    };
    format!(
        "trial {}: {}{why} {}",
        trial.number,
        trial.state.name(),
        values.join(", ")
    )
}
