//! The other devices of a training: how they are started, and what it means for a person that one of them ends.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::devices::TrainDevices;
use crate::cli::CliError;
use crate::cli::terminal::output::tell;
use crate::cli::terminal::this_command::this_command;
use crate::report::thread_count;
use crate::worker::TrainingRanks;
use peft_tune_core::recipe::{Recipe, Sharding};
use peft_tune_engine::parallel::Collective;
use peft_tune_engine::run::{RunError, latest_checkpoint};

/// The other ranks of this training, and what links this one with them.
pub(super) struct OtherRanks {
    processes: TrainingRanks,
    pub(super) collective: Arc<dyn Collective>,
}

impl OtherRanks {
    /// Starts the other ranks where there are any; without an answer for `patience_s` seconds one counts as hanging.
    ///
    /// # Errors
    /// Processes that cannot be started, or end at once; devices that cannot be linked.
    pub(super) fn start(
        places: &TrainDevices,
        recipe: &Recipe,
        output: &Path,
        patience_s: f64,
    ) -> Result<Option<Self>, CliError> {
        let count = recipe.batch.devices;
        let devices = match places {
            TrainDevices::Ranks(devices) => devices,
            TrainDevices::One { why: None, .. } => return Ok(None),
            TrainDevices::One { why: Some(why), .. } => {
                let holds = match recipe.batch.sharding {
                    Sharding::None => "",
                    Sharding::Full => ", and holds all weights",
                };
                tell(format_args!(
                    "warning: `devices` is {count}, and {why}: it computes the shares of all{holds}, the same result, slower"
                ));
                return Ok(None);
            }
        };
        let threads = thread_count(rayon::current_num_threads());
        let names = devices.join(", ");
        tell(format_args!("training on {count} devices ({names}), {threads} each"));
        let patience = Duration::try_from_secs_f64(patience_s).map_err(CliError::bad_input)?;
        let processes = TrainingRanks::start(devices, recipe, output).map_err(CliError::failed)?;
        let first = places.first().unwrap_or_default();
        let collective = processes.link(first, patience).map_err(|error| match processes.end() {
            Some(end) => CliError::failed(anyhow::anyhow!("{}", end.trim_end())),
            None => CliError::failed(error),
        })?;
        Ok(Some(Self { processes, collective }))
    }

    /// What an error of a training means: where it is a rank's end, how that ended, and how to go on.
    pub(super) fn explain(ranks: Option<&Self>, output: &Path, error: RunError) -> CliError {
        let Some(ranks) = ranks.filter(|_| error.lost_a_rank()) else {
            return CliError::failed(error);
        };
        let cause = ranks.processes.end().map_or_else(|| error.to_string(), str::to_owned);
        let command = this_command(&["--force"], &["--resume".to_owned()]);
        let then = match latest_checkpoint(output) {
            Ok(Some(checkpoint)) => format!("continues from {}", checkpoint.display()),
            _ => "begins again, as no checkpoint was written".to_owned(),
        };
        CliError::failed(anyhow::anyhow!("{}; `{command}` {then}", cause.trim_end()))
    }
}
