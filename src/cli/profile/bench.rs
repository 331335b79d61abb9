//! A model and its data, loaded, on which recipes are profiled one after the other.

use std::path::Path;
use std::sync::Arc;

use super::ceilings::MachineCeilings;
use crate::cli::CliError;
use crate::cli::data::prepare::prepared_for_training;
use crate::cli::machine::record::machine;
use crate::cli::options::compute::ComputeArgs;
use crate::cli::options::database::DatabaseArgs;
use crate::cli::terminal::download_progress::DownloadProgress;
use crate::cli::terminal::output::tell;
use crate::cli::terminal::reading_progress::Reading;
use crate::cli::train::watch::TrainWatch;
use crate::space::Bytes;
use peft_tune_core::recipe::{Precision, Recipe};
use peft_tune_engine::data::PreparedData;
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::profile::diagnosis;
use peft_tune_engine::profile::diagnosis::{Evidence, FasterType, Finding, Oracle, RankLoss};
use peft_tune_engine::profile::sample::sampler_of;
use peft_tune_engine::profile::{
    DeviceMemory, Measured, Profile, ProfileError, ProfileInputs, ProfileSettings, StepLog,
};
use peft_tune_engine::{BaseModel, BaseSource, load_base};
use peft_tune_kernels::device;
use peft_tune_kernels::device::Device;

/// How recipes are measured.
#[derive(Clone, Copy)]
pub(super) struct BenchSettings<'a> {
    /// Seconds that measuring one recipe may take.
    pub budget_s: f64,
    /// Part of the throughput to which it has to be known: measuring ends earlier then.
    pub interval: f64,
    /// Memory that trainings may take; all of the device's where absent.
    pub memory_limit: Option<Bytes>,
    pub compute: &'a ComputeArgs,
    /// Database that keeps measured ceilings; absent: nothing is kept.
    pub database: Option<&'a DatabaseArgs>,
}

/// What can be profiled: the recipe's model and data, loaded, and others where a change asks for them.
pub(super) struct Bench<'a> {
    settings: BenchSettings<'a>,
    files: ModelFiles,
    data: PreparedData,
    /// The base model that was used last, where it stays frozen.
    base: Option<Arc<BaseModel>>,
    /// Ceilings of the machine. Absent where they are not known: of a GPU that cannot be measured and has no data
    /// sheet.
    ceilings: Option<MachineCeilings>,
    memory_limit_bytes: Option<u64>,
}

impl<'a> Bench<'a> {
    pub(super) fn load(settings: BenchSettings<'a>, recipe: &Recipe) -> Result<Self, CliError> {
        let files = ModelFiles::resolve_weights(&recipe.model, &mut DownloadProgress::default())
            .map_err(CliError::bad_input)?;
        let data = prepared_for_training(recipe, &files, Reading::shown())?;
        for warning in data.warnings() {
            tell(format_args!("warning: {warning}"));
        }
        if !recipe.precision_schedule.is_none() {
            tell(format_args!(
                "`precision_schedule: {}`: what is measured are steps in {}; those in fp32 take longer and more memory",
                recipe.precision_schedule,
                recipe.precision.name()
            ));
        }
        if !recipe.batch.sharding.is_none() {
            tell(format_args!(
                "`sharding: {}`: what is measured is one process, which has all weights and gathers none",
                recipe.batch.sharding
            ));
        }
        if !recipe.weight_sparsity.is_none() {
            tell(format_args!(
                "`weight_sparsity: {}`: two of each four values of the frozen linear weights are left out; what that costs in loss is \
                 measured by the trials of a study (`loss_before_dense`, `loss_before`, `loss`)",
                recipe.weight_sparsity
            ));
        }
        let device = device::open(settings.compute.device_name()).map_err(CliError::bad_input)?;
        let ceilings = MachineCeilings::of(&device, recipe, &files, &data, settings.database)?;
        let limit = settings.memory_limit.map(|limit| limit.0);
        Ok(Self {
            settings,
            ceilings,
            files,
            data,
            base: None,
            memory_limit_bytes: limit.or_else(|| whole_memory(&device)),
        })
    }

    /// Profiles `recipe`, with one step in `log_every` written down.
    pub(super) fn measure(&mut self, recipe: &Recipe, log_every: u64) -> Result<Measured, CliError> {
        let (base, program_bytes) = self.base_for(recipe)?;
        let log = step_log(&base, log_every)?;
        let sampler = sampler_of(base.device());
        let inputs = ProfileInputs {
            recipe,
            base,
            data: &self.data,
            program_bytes,
            memory_limit_bytes: self.memory_limit_bytes,
            ceiling: self.ceilings.as_ref().and_then(|known| known.ceiling(recipe.precision)),
            sampler,
            log,
        };
        let settings = ProfileSettings {
            budget_s: self.settings.budget_s,
            interval: self.settings.interval,
            ..ProfileSettings::default()
        };
        peft_tune_engine::profile::profile(inputs, &settings).map_err(error_of)
    }

    /// The base model for `recipe`, and the bytes that were in use without it. Where every parameter trains, the trainer
    /// loads its own.
    fn base_for(&mut self, recipe: &Recipe) -> Result<(BaseSource, u64), CliError> {
        let compute = self.settings.compute;
        self.base
            .take_if(|base| recipe.adapter.is_none() || is_other(base, recipe));
        let device = device::open(compute.device_name()).map_err(CliError::bad_input)?;
        let memory = DeviceMemory::of(&device).map_err(CliError::failed)?;
        device::prepare(&device).map_err(CliError::failed)?;
        let held = self.base.as_ref().map_or(0, |base| base.bytes() as u64);
        let program_bytes = memory.in_use_bytes().saturating_sub(held);
        if recipe.adapter.is_none() {
            let fresh = BaseSource::Fresh {
                folder: self.files.folder.clone(),
                precision: recipe.precision,
                device,
            };
            return Ok((fresh, program_bytes));
        }
        let base = match &self.base {
            Some(base) => Arc::clone(base),
            None => {
                Arc::new(load_base(&self.files.folder, recipe, &self.data, None, &device).map_err(CliError::bad_input)?)
            }
        };
        self.base = Some(Arc::clone(&base));
        Ok((BaseSource::Kept(base), program_bytes))
    }

    /// What the profile of `recipe` says should be changed; `losses_by_rank` are of trials that differ in their rank alone.
    pub(super) fn diagnose(&self, recipe: &Recipe, profile: &Profile, losses_by_rank: &[RankLoss]) -> Vec<Finding> {
        diagnosis::diagnose(&Evidence {
            profile,
            recipe,
            oracle: self.oracle(),
            faster_type: self.faster_type(recipe.precision),
            losses_by_rank,
        })
    }

    /// What knows the cost of other settings.
    fn oracle(&self) -> &dyn Oracle {
        match &self.ceilings {
            Some(known) => known.oracle(),
            None => &(),
        }
    }

    /// A number type that this device multiplies faster.
    fn faster_type(&self, precision: Precision) -> Option<FasterType> {
        self.ceilings.as_ref()?.faster_type(precision)
    }
}

/// All memory that trainings on a device have; `None` where the system does not say.
fn whole_memory(device: &Device) -> Option<u64> {
    let bytes = match device::facts(device) {
        Some(gpu) => gpu.memory_bytes,
        None => machine().memory_bytes,
    };
    (bytes > 0).then_some(bytes)
}

fn error_of(error: ProfileError) -> CliError {
    match &error {
        ProfileError::Train(inner) if inner.out_of_memory() => CliError::failed(error),
        ProfileError::Thread(_) => CliError::failed(error),
        _ => CliError::bad_input(error),
    }
}

/// Writes steps down where a training would do it: in the working directory. `None` where no file can be made there; the
/// profile then does not tell what that costs.
fn step_log(base: &BaseSource, every: u64) -> Result<Option<StepLog>, CliError> {
    let memory = DeviceMemory::of(base.device()).map_err(CliError::failed)?;
    match TrainWatch::unseen(Path::new("."), memory) {
        Ok(watch) => Ok(Some(StepLog {
            observer: Box::new(watch),
            every,
        })),
        Err(error) => {
            tell(format_args!(
                "warning: no steps are logged, as a training would do: {error}"
            ));
            Ok(None)
        }
    }
}

/// Whether `recipe` has another base model than `base`. The bench has one set of data, so that what activations decide is the same for
/// all of its recipes.
fn is_other(base: &BaseModel, recipe: &Recipe) -> bool {
    base.precision() != recipe.precision || base.sparsity().kind() != recipe.weight_sparsity
}
