//! What `search` is asked for.

use std::path::PathBuf;

use super::worker_args::WorkerArgs;
use crate::cli::CliError;
use crate::cli::options::backend::{AskedBackend, BackendName};
use crate::cli::options::database::DatabaseArgs;
use crate::cli::processes::interpreter::resolved;
use crate::cli::study::track::TrackArgs;
use crate::cli::terminal::logging::LogArgs;
use crate::space::{Backend, Dollars, HourlyPrice, Seconds, SpaceError, Study, StudyFile};

/// Search for the settings worth using: run trials, store them, print the Pareto front and a recommendation.
///
/// Started again on the same file and database, it continues where it stopped; nothing that finished is run again.
/// Ctrl-C finishes the trial under way and stops; a second Ctrl-C stops at once.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Search-space file (YAML).
    pub(super) file: PathBuf,
    #[command(flatten)]
    pub(in crate::cli) database: DatabaseArgs,
    /// Trials of the study in all, those of earlier searches included, instead of the file's `budget: trials`. Variants, which
    /// take the loss of a training over and measure a cost alone, come on top. Unless the file says how many, the
    /// recommendation is then confirmed by at most as many repeats as there are complete trials.
    #[arg(long, value_name = "N")]
    pub(super) trials: Option<u64>,
    /// Time that the study may take in all, confirmation included, such as `30m`, instead of the file's `budget: time`.
    #[arg(long, value_name = "TIME")]
    pub(super) time: Option<Seconds>,
    /// Price of an hour of one device that the trials run on, in US dollars, such as `2.49/h`, instead of the file's `price` or an
    /// unchecked one of the built-in list.
    #[arg(long, value_name = "PRICE")]
    pub(super) price: Option<HourlyPrice>,
    /// Money for the trials' and their confirmation's own seconds in all, such as `5`, in quotes if written with `$`: the time that
    /// `--price`, or the file's `price`, pays, instead of the file's `budget: time`.
    #[arg(long, value_name = "SUM", conflicts_with = "time")]
    pub(super) budget: Option<Dollars>,
    /// Most time that the search waits at its end for other programs to leave the processors alone, to measure again what they
    /// disturbed [default: 30s, or a tenth of the budget's time].
    #[arg(long, value_name = "TIME", env = "PEFT_TUNE_WAIT_QUIET", hide_env = true)]
    pub(super) wait_quiet: Option<Seconds>,
    /// Run the file as a study of this name.
    #[arg(long = "as", value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(in crate::cli) name: Option<String>,
    /// Engine that trains the trials, instead of the file's `backend`.
    #[arg(long, value_enum, value_name = "ENGINE")]
    pub(super) backend: Option<AskedBackend>,
    /// Python that has TRL, for `backend: trl` and `auto`, or unsloth [default: that of the active environment, else python3].
    #[arg(long, value_name = "PATH")]
    pub(super) python: Option<PathBuf>,
    /// Measure the settings of a study again whose model or data hold something else than when it began, and keep what
    /// was measured under another name.
    #[arg(long)]
    pub(super) accept_changed_inputs: bool,
    /// Go on where trial after trial fails alike, and take that as their settings' fault.
    #[arg(long)]
    pub(super) keep_going: bool,
    /// A config of yours to compare the recommended setting with (of TRL, axolotl, LLaMA-Factory, torchtune, unsloth, PEFT's
    /// adapter_config.json, or a recipe), instead of the file's `baseline`.
    #[arg(long, value_name = "FILE")]
    pub(super) baseline: Option<PathBuf>,
    /// Tool that this config is for, where its keys do not tell: peft, trl, axolotl, llamafactory, torchtune or unsloth.
    #[arg(long, value_name = "TOOL", requires = "baseline")]
    pub(super) stack: Option<String>,
    /// Start from earlier studies of the database on the same model, data and machine, as the file's `warm_start: true` does.
    #[arg(long)]
    pub(super) warm_start: bool,
    #[command(flatten)]
    pub(in crate::cli) track: TrackArgs,
    #[command(flatten)]
    pub(super) workers: WorkerArgs,
    /// Show what would run, and run nothing.
    #[arg(long, conflicts_with = "detach")]
    pub(super) dry_run: bool,
    /// Run in the background, in a session of its own, with a log file; see `attach`, `status` and `stop`.
    #[arg(long)]
    pub(super) detach: bool,
    #[command(flatten)]
    pub(super) log: LogArgs,
    /// Print the result as JSON.
    #[arg(long)]
    pub(super) json: bool,
}

impl Args {
    /// The study of the file, its trials run by what the options name, else the file; `None` where both leave that open.
    ///
    /// # Errors
    /// A mistake in the file; an interpreter for a study that has no use for one.
    pub(super) fn study(&self) -> Result<Option<Study>, CliError> {
        let asked = match self.backend {
            Some(AskedBackend::Auto) => return Ok(None),
            Some(AskedBackend::Native) => Some(BackendName::Native),
            Some(AskedBackend::Trl) => Some(BackendName::Trl),
            Some(AskedBackend::Unsloth) => Some(BackendName::Unsloth),
            None => None,
        };
        let study = self.study_in(asked)?;
        if study.engine_is_open {
            return Ok(None);
        }
        if self.python.is_some() && !matches!(study.backend, Backend::Trl(_)) {
            return Err(CliError::bad(
                "`--python`: the trials of this study run in no Python; leave it out, or add `--backend trl`",
            ));
        }
        Ok(Some(study))
    }

    /// The study of the file, its trials run by what is `asked` for, else by what the file names, with the interpreter of the options.
    ///
    /// # Errors
    /// A mistake in the file; what such trials do not do.
    pub(super) fn study_in(&self, asked: Option<BackendName>) -> Result<Study, SpaceError> {
        let mut study = StudyFile::read_for(&self.file, asked.map(BackendName::backend))?;
        if let (Some(python), Backend::Trl(backend)) = (&self.python, &mut study.backend) {
            backend.python = Some(resolved(python));
        }
        Ok(study)
    }
}
