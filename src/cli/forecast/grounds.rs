//! [`Grounds`]: what a search predicts its trials from.

use std::sync::Arc;

use super::predicted_model::PredictedModel;
use super::trial_device::{TrialDevice, precisions_of};
use crate::cli::CliError;
use crate::cli::data::model_files::files_for;
use crate::cli::data::row_lengths::rows_of;
use crate::cli::machine::cpu_ceilings::Measuring;
use crate::cli::processes::interpreter::Stack;
use crate::cli::terminal::download_progress::DownloadProgress;
use crate::cli::terminal::output::tell;
use crate::space::{Backend, Study};
use crate::store::Store;
use crate::tune::{Forecast, TargetForecast, TrainingRows};
use crate::worker::Placement;
use peft_tune_core::recipe::Recipe;
use peft_tune_engine::hub::ModelFiles;
use peft_tune_kernels::device;
use peft_tune_kernels::device::DeviceFacts;

/// What a study's forecast needs but for its data: its model, and what is known of this machine.
pub(in crate::cli) struct Grounds<'a> {
    study: &'a Study,
    base: &'a Recipe,
    files: ModelFiles,
    model: PredictedModel,
    here: TrialDevice,
}

impl<'a> Grounds<'a> {
    /// Finds them for a search on this machine; `None` where its trials cannot be predicted: those of a command, and of another
    /// machine. `stack` knows the devices where trials do not run on this program's own.
    ///
    /// # Errors
    /// Bad input: no model; a database that cannot be read; ceilings that could not be measured.
    pub(in crate::cli) async fn of_search(
        study: &'a Study,
        store: &Store,
        slot: &Placement,
        stack: Option<&Stack>,
    ) -> Result<Option<Self>, CliError> {
        // This machine says nothing of another.
        let Some(base) = study.base.as_ref().filter(|_| !study.launcher.is_elsewhere()) else {
            return Ok(None);
        };
        let mut download = DownloadProgress::default();
        let files = files_for(&study.backend, &base.model, &mut download)?;
        let model = match (PredictedModel::of(&study.backend, base, &files.config), &study.backend) {
            (Ok(model), _) => model,
            // TRL may train what nothing can be said of.
            (Err(error), Backend::Trl(_)) => {
                tell(format_args!(
                    "costs of trials are not predicted, and all settings are tried: {error}"
                ));
                return Ok(None);
            }
            (Err(error), _) => return Err(error),
        };
        let how = Measuring::on(slot.threads).within(study.budget.time_s);
        let gpu = gpu_of(slot, stack);
        let here = TrialDevice::on(gpu, Some(store), how, &precisions_of(study, base)).await?;
        Ok(Some(Self {
            study,
            base,
            files,
            model,
            here,
        }))
    }

    /// The forecast of the study's data.
    pub(in crate::cli) fn forecast(self, target: Option<Arc<TargetForecast>>) -> Result<Arc<Forecast>, CliError> {
        let rows = rows_of(self.study, self.base, &self.files)?;
        let forecast = self.here.forecast(self.study, self.model, rows);
        Ok(Arc::new(forecast.with_target(target)))
    }

    /// The forecast before the data are read: every row is taken for as long as a row may be.
    pub(in crate::cli) fn with_full_rows(&self) -> Forecast {
        let here = self.here.clone();
        here.forecast(self.study, self.model.clone(), TrainingRows::default())
    }
}

/// GPU that the trials of a slot run on, as PyTorch names it where that computes; `None` for the processor.
fn gpu_of(slot: &Placement, stack: Option<&Stack>) -> Option<DeviceFacts> {
    let named = slot.device.as_deref();
    match stack {
        Some(stack) => stack.gpu(named?).map(|gpu| DeviceFacts {
            name: gpu.name.clone(),
            memory_bytes: gpu.bytes,
        }),
        None => device::first_gpu().filter(|_| named != Some("cpu")),
    }
}
