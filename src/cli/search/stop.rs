//! `peft-tune stop`: ends a search that another process runs.

use std::time::{Duration, Instant};

use super::resume_command::resume_command_of;
use crate::cli::CliError;
use crate::cli::options::database::DatabaseArgs;
use crate::cli::terminal::output::write_result;
use peft_tune_core::study::StudyRequest;

/// Time between two looks at the search.
const LOOK: Duration = Duration::from_millis(100);
/// Time between the two signals of `--now`.
const APART: Duration = Duration::from_millis(200);

/// End a running search after the trials under way
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Name of the study, the latest where absent
    study: Option<String>,
    /// End it at once: trials under way are handed back, and the next search runs them again
    #[arg(long)]
    now: bool,
    /// Wait until it has ended
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    database: DatabaseArgs,
}

pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    let name = args.study.as_deref();
    let (study, runner) = args.database.read(async |store| {
        let study = store.studies().find(name).await?;
        let runner = store.studies().live_runner(study.id);
        Ok((study, runner))
    })?;
    let Some(runner) = runner else {
        return write_result(&format!("study {} is not running\n", study.name));
    };
    if args.now {
        // The first asks, the second ends. The lock was held a moment ago, so the number is the search's.
        signal(runner.process)?;
        std::thread::sleep(APART);
        signal(runner.process)?;
    } else {
        args.database
            .write(async |store| store.requests().add(study.id, &StudyRequest::Stop).await)?;
    }
    let asked = Instant::now();
    if !args.wait {
        let what = if args.now { "now" } else { "after the trials under way" };
        return write_result(&format!(
            "study {} ends {what} (process {}); `{}` continues it\n",
            study.name,
            runner.process,
            resume_command_of(&study, &args.database)
        ));
    }
    loop {
        let runner = args
            .database
            .read(async |store| Ok(store.studies().live_runner(study.id)));
        // The database changes while it is looked at; the next look tells.
        if runner.is_ok_and(|runner| runner.is_none()) {
            let waited = asked.elapsed().as_secs_f64();
            return write_result(&format!("study {} was stopped after {waited:.1} s\n", study.name));
        }
        std::thread::sleep(LOOK);
    }
}

fn signal(process: u32) -> Result<(), CliError> {
    let number = libc::pid_t::try_from(process).map_err(CliError::failed)?;
    // SAFETY: sending a signal has no precondition.
    match unsafe { libc::kill(number, libc::SIGTERM) } {
        0 => Ok(()),
        _ => {
            let error = std::io::Error::last_os_error();
            // It may have ended between the two.
            match error.raw_os_error() {
                Some(libc::ESRCH) => Ok(()),
                _ => Err(CliError::failed(error)),
            }
        }
    }
}
