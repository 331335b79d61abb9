//! What `train` is asked for.

use std::path::{Path, PathBuf};

use super::devices::{AskedDevices, TrainDevices};
use super::output_folder::usual_output;
use crate::cli::CliError;
use crate::cli::options::compute::ComputeArgs;
use crate::cli::options::count::counts;
use crate::space::RecipeFile;
use peft_tune_core::recipe::Recipe;
use peft_tune_engine::run::{OnSpike, RunSettings, Start};
use peft_tune_kernels::device;

/// Train what a recipe file describes, and write a PEFT adapter (or, with `adapter: null`, a whole model).
///
/// Several recipe files train at the same time on one base model, which is read once: their adapters, optimizers, rates and
/// lengths may differ, and each ends as it would alone.
///
/// The output folder gets the adapter, checkpoints, the best adapter where there are several evaluations, event files for
/// TensorBoard, and the recipe. Ctrl-C finishes the step under way, writes a checkpoint and ends with exit code 130;
/// `--resume` continues from there, in float32 bit by bit as if nothing had happened.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Recipe file (YAML), or several that agree on model, data, batch, precision and checkpointing.
    #[arg(required = true, value_name = "RECIPE")]
    recipes: Vec<PathBuf>,
    /// Folder to write to; it must be empty, except with --resume or --force. Several recipes have a folder each in it, by
    /// the name of their file [default: <recipe>-trained].
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Most of several recipes that train at a time; the others begin as these end [default: as many as the memory holds, by
    /// prediction].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    at_a_time: Option<u16>,
    /// Continue from the latest whole checkpoint in the output folder; start anew where there is none yet.
    #[arg(long, conflicts_with = "force")]
    resume: bool,
    /// Remove an earlier training from the output folder and start again.
    #[arg(long)]
    force: bool,
    /// Write a checkpoint after every N steps [default: a tenth of the training].
    #[arg(long, value_name = "N", value_parser = counts::<u64>(1..=u64::MAX))]
    checkpoint_every: Option<u64>,
    /// Keep the last K checkpoints; two at least to back off.
    #[arg(long, value_name = "K", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    keep_checkpoints: u16,
    /// Log one step in N to the event file and the screen, besides the first and the last.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = counts::<u64>(1..=u64::MAX))]
    log_every: u64,
    /// Stop after N evaluations in a row without a lower held-out loss.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    patience: Option<u64>,
    /// Action where the training loss spikes and no row explains it, or is no number any more. The cause of each spike is looked
    /// into and told.
    #[arg(long, value_name = "ACTION", value_enum, default_value_t)]
    on_spike: SpikeAction,
    /// Tell the text of the rows that led to a spike, too, beside where they stand.
    #[arg(long)]
    show_rows: bool,
    /// Print one JSON object per logged step and per evaluation on standard output, and one at the end of each training.
    #[arg(long)]
    pub(super) json: bool,
    /// Devices for the shares of the recipe's `devices`, one each, or one that computes them all: numbers of GPUs, or names such as
    /// `cuda:0` and `cpu` [default: the first GPUs, else processes on the CPU; one that is named by --device computes them all].
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "device")]
    devices: Vec<String>,
    /// Seconds after which a rank that the others wait for counts as hanging.
    #[arg(long, hide = true, env = "PEFT_TUNE_RANK_PATIENCE_S", default_value_t = 300.0)]
    pub(super) rank_patience_s: f64,
    #[command(flatten)]
    pub(in crate::cli) compute: ComputeArgs,
}

/// Action at a spike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum SpikeAction {
    /// Go on behind a spike; end where a number is none any more.
    #[default]
    GoOn,
    /// Return to the last good checkpoint at half the learning rate, ten times at most.
    BackOff,
}

impl Args {
    /// How many processes of this training share this machine's threads. What is wrong with the recipe is said later.
    pub(in crate::cli) fn processes(&self) -> usize {
        let devices = RecipeFile::read(self.first())
            .ok()
            .and_then(|recipe| self.places(&recipe).ok());
        devices.map_or(1, |devices| devices.processes())
    }

    /// The first recipe file; there is always one.
    pub(super) fn first(&self) -> &Path {
        self.recipes.first().map_or(Path::new(""), PathBuf::as_path)
    }

    /// All recipe files.
    pub(super) fn recipes(&self) -> &[PathBuf] {
        &self.recipes
    }

    pub(super) fn output(&self) -> Option<&Path> {
        self.output.as_deref()
    }

    pub(super) fn at_a_time(&self) -> Option<usize> {
        self.at_a_time.map(usize::from)
    }

    pub(super) fn log_every(&self) -> u64 {
        self.log_every
    }

    /// Devices that compute the recipe's shares.
    pub(super) fn places(&self, recipe: &Recipe) -> Result<TrainDevices, CliError> {
        let asked = AskedDevices {
            one: self.compute.device.as_deref(),
            each: &self.devices,
        };
        TrainDevices::new(recipe.batch.devices, asked, device::gpu_count())
    }

    /// What a training that writes to `output` is told beside its recipe.
    pub(super) fn settings(&self, output: PathBuf) -> RunSettings {
        RunSettings {
            start: match (self.resume, self.force) {
                (true, _) => Start::Resume,
                (false, true) => Start::Force,
                (false, false) => Start::New,
            },
            checkpoint_every: self.checkpoint_every,
            keep_checkpoints: usize::from(self.keep_checkpoints),
            patience: self.patience,
            on_spike: match self.on_spike {
                SpikeAction::GoOn => OnSpike::GoOn,
                SpikeAction::BackOff => OnSpike::BackOff,
            },
            shows_rows: self.show_rows,
            ..RunSettings::new(output)
        }
    }

    /// The folder that a training of one recipe writes to.
    pub(super) fn output_folder(&self) -> PathBuf {
        self.output.clone().unwrap_or_else(|| usual_output(self.first()))
    }
}
