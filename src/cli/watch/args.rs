//! Options of `peft-tune watch`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::cli::options::database::DatabaseArgs;

/// Run a training of any tool as it is, watch it, and say how fast it was and what memory it took, beside what was predicted.
///
/// The settings are read from the file that the command names, from its own options, or from the script that it runs. The
/// command gets its words, its input and its terminal unchanged, and its exit code is the program's. The report says what was
/// expected and measured, and by what evidence a gap came about: waits for data, a long row, memory that grows, an evaluation,
/// swap, other programs, limits of processors. Nothing is ever sent to the command but signals that were sent to
/// this program, and a change of the terminal's size.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Settings file of the tool, where the command does not name it.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Tool that trains (peft, trl, axolotl, llamafactory, unsloth or torchtune), where neither file nor command tells it.
    #[arg(long, value_name = "TOOL")]
    pub(super) stack: Option<String>,
    /// The model's folder or hub id, where the file names another.
    #[arg(long, value_name = "MODEL")]
    pub(super) model: Option<String>,
    /// Device to predict for, such as `A100 80GB`, or `cpu`: this machine's processor, which is measured before the run begins
    /// [default: the first GPU that the driver names].
    #[arg(long, value_name = "NAME")]
    pub(super) device: Option<String>,
    /// Devices that share the work [default: as the launcher is told, else one].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) devices: Option<u64>,
    /// File to write the report to, as JSON; one that is there is replaced.
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
    /// Report of an earlier run to compare this one with.
    #[arg(long, value_name = "FILE")]
    pub(super) against: Option<PathBuf>,
    /// File of JSON lines that the training writes, beside its output, or its event file of TensorBoard, or a folder with those.
    #[arg(long, value_name = "FILE")]
    pub(super) log: Option<PathBuf>,
    /// Trace that PyTorch's profiler writes in the run (`export_chrome_trace`), for tables of its ops behind the report; without a
    /// command it is read as `profile --read` does.
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Time from one sample to the next, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = EVERY_S, value_parser = interval)]
    pub(super) every: Duration,
    /// Hand the command this program's own output; progress is then read from log files alone.
    #[arg(long)]
    pub(super) untouched: bool,
    #[command(flatten)]
    pub(super) database: DatabaseArgs,
    /// The command and its words.
    #[arg(last = true, required_unless_present = "trace", value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

/// Time between two samples where nobody asks for another.
const EVERY_S: &str = "1";
/// Shortest time between two samples: more of them would take a part of a processor.
const SHORTEST_S: f64 = 0.02;
const LONGEST_S: f64 = 3600.0;

impl Args {
    /// Whether an option asks for something that only a run has. A database may be named for all commands, by a variable.
    pub(super) fn asks_for_a_run(&self) -> bool {
        let Self {
            config,
            stack,
            model,
            device,
            devices,
            report,
            against,
            log,
            trace: _,
            every,
            untouched,
            database: _,
            command: _,
        } = self;
        let asked = [
            config.is_some(),
            stack.is_some(),
            model.is_some(),
            device.is_some(),
            devices.is_some(),
            report.is_some(),
            against.is_some(),
            log.is_some(),
            interval(EVERY_S) != Ok(*every),
            *untouched,
        ];
        asked.contains(&true)
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "write a number of seconds, such as 0.5".to_owned())?;
    match (SHORTEST_S..=LONGEST_S).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(format!("write a number from {SHORTEST_S} to {LONGEST_S}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_a_number_of_seconds_within_bounds() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "nan", "inf", "1s", "", "1e9"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
