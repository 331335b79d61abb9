//! `peft-tune track`: a study in experiment trackers, while its search runs and afterwards.

use std::time::Duration;

use crate::cli::CliError;
use crate::cli::options::database::DatabaseArgs;
use crate::cli::terminal::output::{tell, write_result};
use crate::report::printable;
use crate::shell::command_line;
use crate::space::{Destination, Study};
use crate::track::{Follower, Missing, Told};

/// Time between two looks for a running search.
const LOOK: Duration = Duration::from_secs(1);

/// Time that a search which has ended waits for its trackers.
const AT_THE_END: Duration = Duration::from_secs(60);

/// Keep a study up to date in MLflow, TensorBoard, Optuna, W&B or trackio, until its search ends
///
/// Of a study that nobody runs it writes all there is. What is there already is continued, so that the same command brings what
/// was missing. `search --track` does the same from within the search.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Name of the study, the latest where absent.
    study: Option<String>,
    #[command(flatten)]
    database: DatabaseArgs,
    /// Tracker, and where it keeps studies: `mlflow=http://HOST:PORT` (or a folder), `optuna=FILE`, `tensorboard=FOLDER`,
    /// `trackio=FOLDER`, `wandb=FOLDER` (offline runs). May be given several times.
    #[arg(long, value_name = "TRACKER=WHERE", required = true)]
    to: Vec<Destination>,
}

/// Trackers of a search.
#[derive(Clone, Debug, Default, clap::Args)]
pub(in crate::cli) struct TrackArgs {
    /// Keep the study up to date in a tracker while it is searched: `mlflow=http://HOST:PORT` (or a folder), `optuna=FILE`,
    /// `tensorboard=FOLDER`, `trackio=FOLDER`, `wandb=FOLDER` (offline runs). May be given several times, and adds to the file's
    /// `track`.
    #[arg(long = "track", value_name = "TRACKER=WHERE")]
    to: Vec<Destination>,
    /// Leave out the trackers that the file's `track` names.
    #[arg(long = "no-track")]
    without_those_of_the_file: bool,
}

/// Runs the command.
pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    let (database, wanted) = (&args.database, args.study.as_deref());
    let name = database.read(async |store| Ok(store.studies().find(wanted).await?.name))?;
    let follower = start(database, &name, &args.to)?;
    let is_running = || {
        let running = database.read(async |store| {
            let study = store.studies().find(Some(&name)).await?;
            Ok(store.studies().live_runner(study.id).is_some())
        });
        // A database that cannot be read now may be a moment later; where it is gone, the last look says so.
        running.unwrap_or_else(|_| database.path().exists())
    };
    while is_running() {
        std::thread::sleep(LOOK);
    }
    let missing = follower.finish(None);
    for one in &missing {
        tell(format_args!("{}", lacking(one)));
    }
    if missing.is_empty() {
        let places: Vec<String> = args.to.iter().map(ToString::to_string).collect();
        return write_result(&format!("study {} is in {}\n", printable(&name), places.join(", ")));
    }
    Err(CliError::failed(anyhow::anyhow!(
        "not everything could be tracked; the same command brings what is missing"
    )))
}

/// The trackers of a search that runs.
pub(in crate::cli) struct Tracking {
    follower: Follower,
    /// Command that brings what is missing.
    command: String,
}

impl TrackArgs {
    /// Adds the command line's trackers to those of a study's file, or takes their place.
    pub(in crate::cli) fn apply(&self, study: &mut Study) {
        if self.without_those_of_the_file {
            study.track.clear();
        }
        let absolute =
            |one: &Destination| one.map_path(|path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
        for to in &self.to {
            if !study.track.iter().any(|known| absolute(known) == absolute(to)) {
                study.track.push(to.clone());
            }
        }
    }
}

/// Places that a study is tracked in, for people; `None` where it is not tracked.
pub(in crate::cli) fn places(study: &Study) -> Option<String> {
    let places: Vec<String> = study.track.iter().map(ToString::to_string).collect();
    (!places.is_empty()).then(|| places.join(", "))
}

impl Tracking {
    /// Starts to keep a study's trackers up to date; `None` where there are none.
    pub(in crate::cli) fn start(database: &DatabaseArgs, study: &Study) -> Result<Option<Self>, CliError> {
        if study.track.is_empty() {
            return Ok(None);
        }
        let words: Vec<String> = study
            .track
            .iter()
            .flat_map(|to| ["--to".to_owned(), to.to_string()])
            .collect();
        Ok(Some(Self {
            follower: start(database, &study.name, &study.track)?,
            command: format!(
                "{} {}",
                database.command(&["track"], Some(&study.name)),
                command_line(words.iter().map(String::as_str))
            ),
        }))
    }

    /// Brings what is there at the end of a search, and says what is missing.
    pub(in crate::cli) fn finish(self) {
        for missing in self.follower.finish(Some(AT_THE_END)) {
            tell(format_args!(
                "warning: {}; `{}` brings it",
                lacking(&missing),
                self.command
            ));
        }
    }
}

fn start(database: &DatabaseArgs, study: &str, to: &[Destination]) -> Result<Follower, CliError> {
    Follower::start(&database.path(), study, to, say).map_err(CliError::failed)
}

fn say(told: Told) {
    match told {
        Told::Failing { destination, reason } => {
            tell(format_args!(
                "warning: {destination} does not take the study now: {reason}; it is tried again"
            ));
        }
        Told::Recovered { destination } => tell(format_args!("{destination} takes the study again")),
    }
}

/// Says what a tracker lacks: `tensorboard=runs lacks 3 trials: why`.
fn lacking(missing: &Missing) -> String {
    let what = match missing.trials {
        0 => "may lack something".to_owned(),
        1 => "lacks one trial or a part of it".to_owned(),
        trials => format!("lacks {trials} trials or parts of them"),
    };
    format!("{} {what}: {}", missing.destination, missing.reason)
}
