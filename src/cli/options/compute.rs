//! What the commands that compute in this process share: threads, devices, models.

use std::path::{Path, PathBuf};

use crate::cli::CliError;
use crate::cli::terminal::output::tell;
use peft_tune_core::recipe::Precision;
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::{BaseModel, CpuOnlyError, Sparsity};
use peft_tune_kernels::device;
use peft_tune_kernels::{Kernels, set_kernels};

/// Device, threads and kernels to compute with.
#[derive(Clone, Debug, Default, clap::Args)]
pub(in crate::cli) struct ComputeArgs {
    /// Threads to compute with [default: all cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// Device: `cpu`, `cuda`, `cuda:1` or `auto` [default: the first GPU that this program can use, else the CPU].
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    #[command(flatten)]
    pub kernels: KernelArgs,
}

/// A base model, perhaps with an adapter.
#[derive(Clone, Debug, clap::Args)]
pub(in crate::cli) struct BaseArgs {
    /// Base model: a directory or a hub id; the one that the adapter names if absent.
    #[arg(long, value_name = "DIR|ID", required_unless_present = "adapter")]
    pub model: Option<String>,
    /// PEFT adapter directory.
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
    /// How the base weights are stored and multiplied [default: as the model stores them].
    #[arg(long, value_name = "PRECISION", value_parser = parse_precision)]
    precision: Option<Precision>,
}

impl BaseArgs {
    /// The model that was named, else the one that the adapter names.
    pub(in crate::cli) fn name(&self) -> Result<String, CliError> {
        match (&self.model, &self.adapter) {
            (Some(model), _) => Ok(model.clone()),
            (None, Some(adapter)) => base_of(adapter),
            (None, None) => {
                let message = "no model; name one with `--model`";
                Err(CliError::bad_input(anyhow::anyhow!(message)))
            }
        }
    }

    /// The precision that was asked for, else that of the model's own files.
    pub(in crate::cli) fn precision(&self, files: &ModelFiles) -> Result<Precision, CliError> {
        let stored = || BaseModel::stored_precision(&files.folder).map_err(CliError::bad_input);
        self.precision.map_or_else(stored, Ok)
    }
}

/// The variable that means the same as `--kernels`.
pub(in crate::cli) const KERNELS_VARIABLE: &str = "PEFT_TUNE_KERNELS_FORM";

/// Which form of the ops computes.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(in crate::cli) struct KernelArgs {
    /// Kernels: the engine's own, some of them, the same replayed from CUDA graphs, or plain tensor ops. Plain ops are
    /// slower, compute the same, and tell whether a fault lies in a kernel.
    #[arg(long, value_enum, default_value_t, value_name = "FORM", env = KERNELS_VARIABLE)]
    kernels: KernelForm,
}

/// [`Kernels`] on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum KernelForm {
    /// Own kernels and loops, the fastest that the device has. Also called `fused`.
    #[default]
    #[value(alias = "fused")]
    Auto,
    /// Own kernels on an NVIDIA GPU, attention never in those that only Hopper has.
    Tiled,
    /// Own kernels on a GPU of the Hopper generation (H100, H200); other devices are refused.
    Hopper,
    /// Plain tensor ops.
    Reference,
    /// Own kernels; on an NVIDIA GPU, passes of known shapes, and updates, are CUDA graphs. Not yet run on a GPU.
    Graphs,
}

impl KernelArgs {
    /// The form that was asked for.
    pub(in crate::cli) fn form(self) -> Kernels {
        match self.kernels {
            KernelForm::Auto => Kernels::Fused,
            KernelForm::Tiled => Kernels::Tiled,
            KernelForm::Hopper => Kernels::Hopper,
            KernelForm::Reference => Kernels::Reference,
            KernelForm::Graphs => Kernels::Graphs,
        }
    }

    /// The words that ask for the same again; none for the default, where no variable says otherwise.
    pub(in crate::cli) fn words(self) -> Vec<String> {
        match self.form() {
            Kernels::Fused if std::env::var_os(KERNELS_VARIABLE).is_none() => Vec::new(),
            form => vec!["--kernels".to_owned(), form.flag().to_owned()],
        }
    }
}

impl ComputeArgs {
    /// Makes this process compute with these kernels. Its threads are made before any command begins.
    pub(in crate::cli) fn set_up(&self) {
        set_kernels(self.kernels.form());
    }

    /// The threads that were asked for.
    pub(in crate::cli) fn threads(&self) -> Option<usize> {
        self.threads.map(usize::from)
    }

    /// The device that was asked for, else the default one.
    pub(in crate::cli) fn device_name(&self) -> &str {
        self.device.as_deref().unwrap_or_else(|| device::default_name())
    }

    /// Loads the model in `files` as `adapter` was trained on it: without the values that were left out of its weights then.
    pub(in crate::cli) fn load_under(
        &self,
        files: &ModelFiles,
        precision: Precision,
        adapter: Option<&Path>,
    ) -> Result<BaseModel, CliError> {
        let sparsity = adapter
            .map(Sparsity::of_adapter)
            .transpose()
            .map_err(CliError::bad_input)?;
        let Some(sparsity) = sparsity.flatten() else {
            return self.load(files, precision);
        };
        tell(format_args!(
            "the adapter was trained with `weight_sparsity: {}`: the base model's weights are the sparse ones",
            sparsity.kind()
        ));
        let device = device::open(self.device_name()).map_err(CliError::bad_input)?;
        if !device.is_cpu() {
            let sparsity = sparsity.kind();
            return Err(CliError::bad_input(CpuOnlyError::Sparsity { sparsity }));
        }
        BaseModel::load_sparse(&files.folder, precision, sparsity, &device).map_err(CliError::bad_input)
    }

    /// Loads the model in `files`.
    pub(super) fn load(&self, files: &ModelFiles, precision: Precision) -> Result<BaseModel, CliError> {
        let device = device::open(self.device_name()).map_err(CliError::bad_input)?;
        BaseModel::load(&files.folder, precision, &device).map_err(CliError::bad_input)
    }
}

/// Makes every product of this process use so many threads. Called first of all, while there is one thread.
pub(in crate::cli) fn use_threads(threads: usize) {
    // SAFETY: no other thread is running yet that could read the environment at the same time: commands call this before
    // they do anything else.
    unsafe { std::env::set_var("RAYON_NUM_THREADS", threads.to_string()) };
}

/// A precision by its name in recipes.
pub(in crate::cli) fn parse_precision(text: &str) -> Result<Precision, String> {
    serde_json::from_value(text.into()).map_err(|_| "write fp32, bf16, fp16, int8, nf4 or nf4_double".to_owned())
}

/// The model that an adapter was trained on, as its `adapter_config.json` says.
pub(in crate::cli) fn base_of(adapter: &std::path::Path) -> Result<String, CliError> {
    let path: PathBuf = adapter.join("adapter_config.json");
    let text = std::fs::read(&path).map_err(|error| {
        let message = format!(
            "cannot read {}: {error}; name the base model with `--model`",
            path.display()
        );
        CliError::bad_input(anyhow::anyhow!(message))
    })?;
    let config: Option<serde_json::Value> = serde_json::from_slice(&text).ok();
    let base = config.and_then(|config| Some(config.get("base_model_name_or_path")?.as_str()?.to_owned()));
    base.filter(|base| !base.is_empty()).ok_or_else(|| {
        let message = "does not say which model it belongs to; name the base model with `--model`";
        CliError::bad_input(anyhow::anyhow!("{} {message}", path.display()))
    })
}
