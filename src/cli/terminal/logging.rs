//! Logs: what a program did, with numbers, for people who look for a cause and for machines that collect.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::sync::Mutex;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use super::output::{Messages, tell};
use crate::cli::CliError;

/// What is logged, how and where.
#[derive(Clone, Debug, Default, clap::Args)]
pub(in crate::cli) struct LogArgs {
    /// Format of the log.
    #[arg(long, value_enum, value_name = "FORM", default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    /// What to log: `error`, `warn`, `info`, `debug`, `trace`, or as `RUST_LOG` has it [env: RUST_LOG] [default: warn;
    /// info in a file]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// File to append the log to, instead of standard error.
    #[arg(long, value_name = "PATH")]
    pub log_file: Option<PathBuf>,
}

/// Form of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum LogFormat {
    /// A line for people.
    #[default]
    Text,
    /// A JSON object a line.
    Json,
}

impl LogArgs {
    /// Begins to log. Called once in a process.
    ///
    /// # Errors
    /// Bad input: a level that is none, a file that cannot be written.
    pub(in crate::cli) fn begin(&self) -> Result<(), CliError> {
        let usual = if self.log_file.is_some() { "info" } else { "warn" };
        let environment = std::env::var("RUST_LOG").ok().filter(|level| !level.is_empty());
        let level = self
            .log_level
            .clone()
            .or(environment)
            .unwrap_or_else(|| usual.to_owned());
        let filter = filter_of(&level).ok_or_else(|| {
            let message = format!("`{level}` is not a log level: write `info`, or `warn,peft_tune=debug`");
            CliError::bad_input(anyhow::anyhow!(message))
        })?;
        let writer = match &self.log_file {
            None => BoxMakeWriter::new(|| Messages),
            Some(path) => BoxMakeWriter::new(Mutex::new(append_to(path)?)),
        };
        start(self.log_format, filter, writer, self.log_file.is_none());
        Ok(())
    }
}

/// Begins to log this program's warnings on standard error, as commands do that have no [`LogArgs`]; `RUST_LOG` asks for something else.
/// A value of it that is none is passed over, which is told.
pub(in crate::cli) fn begin_plainly() {
    let environment = std::env::var("RUST_LOG").ok().filter(|level| !level.is_empty());
    let filter = environment.as_deref().and_then(filter_of);
    if let (Some(level), None) = (&environment, &filter) {
        tell(format_args!(
            "warning: RUST_LOG is passed over: `{level}` is not a log level; write `info`, or `warn,peft_tune=debug`"
        ));
    }
    let filter = filter.unwrap_or_else(|| EnvFilter::new("peft_tune=warn"));
    start(LogFormat::Text, filter, std::io::stderr, true);
}

/// The filter that a text means. The library takes any word for the name of a module; here each part has to say a level.
fn filter_of(text: &str) -> Option<EnvFilter> {
    let says_level = |part: &str| {
        let level = part.rsplit('=').next().unwrap_or(part);
        level.trim().parse::<LevelFilter>().is_ok()
    };
    text.split(',').all(says_level).then(|| EnvFilter::try_new(text).ok())?
}

fn append_to(path: &PathBuf) -> Result<File, CliError> {
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.map_err(|error| {
        let message = format!(
            "cannot write the log {}: {error}; name another with `--log-file`",
            path.display()
        );
        CliError::bad_input(anyhow::anyhow!(message))
    })
}

fn start(
    format: LogFormat,
    filter: EnvFilter,
    writer: impl for<'a> MakeWriter<'a> + Send + Sync + 'static,
    is_screen: bool,
) {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        // Standard error may be a terminal that is gone.
        .log_internal_errors(false);
    // A second begin in one process keeps the first.
    let _ = match format {
        LogFormat::Json => builder.json().flatten_event(true).with_target(false).try_init(),
        LogFormat::Text if is_screen => builder.with_target(false).without_time().with_ansi(false).try_init(),
        LogFormat::Text => builder.with_target(false).with_ansi(false).try_init(),
    };
}
