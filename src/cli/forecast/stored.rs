//! [`of_stored`]: the forecast of a study of the database.

use std::path::Path;
use std::sync::Arc;

use super::predicted_model::PredictedModel;
use super::trial_device::TrialDevice;
use crate::cli::data::model_config::model_shape;
use crate::cli::data::row_lengths::rows_of;
use crate::cli::options::backend::BackendName;
use crate::space::{Backend, ReadOptions, Study, StudyFile};
use crate::store::{DEVICE, Store, StudyOverview};
use crate::tune::{Forecast, TargetForecast};
use peft_tune_core::predict;
use peft_tune_engine::hub::{HubSettings, ModelFiles};
use peft_tune_kernels::device;
use peft_tune_kernels::device::DeviceFacts;

/// The forecast of a study of the database, where this machine can make one without a network and without measuring anything:
/// it has the model, the data and, for the CPU, ceilings. What the search corrected its trials by.
pub(in crate::cli) async fn of_stored(study: &StudyOverview, store: &Store) -> Option<Arc<Forecast>> {
    let text = store.definitions().file_text(study.id).await.ok()?;
    let options = ReadOptions { check_files: false };
    if !study.backend.trains_recipes() {
        return None;
    }
    // The file may say one engine where the command line asked for another.
    let backend = BackendName::by(study.backend.loader()).backend();
    let mut file = StudyFile::parse_for(&study.space_path, &text, Some(backend), options).ok()?;
    // The file's paths are those of the folder that the search began in; the settings that were stored are whole.
    let settings = store.definitions().settings(study.id).await.ok()?;
    file.base = serde_json::from_value(settings["base"].clone()).ok()?;
    let base = file.base.as_ref()?;
    if file.launcher.is_elsewhere() {
        return None;
    }
    let settings = HubSettings {
        offline: true,
        ..HubSettings::from_env().ok()?
    };
    let files = ModelFiles::resolve_with(&base.model, &settings).ok()?;
    let model = PredictedModel::of(&file.backend, base, &files.config).ok()?;
    let rows = rows_of(&file, base, &files).ok()?;
    let here = device_of(study, &file.backend, store).await?;
    let target = of_target(&file, &files.config);
    Some(Arc::new(here.forecast(&file, model, rows).with_target(target)))
}

/// The device that a study's trials ran on, as far as this machine knows it.
async fn device_of(study: &StudyOverview, backend: &Backend, store: &Store) -> Option<TrialDevice> {
    let here = device::first_gpu();
    let gpu = match backend {
        Backend::Trl(_) => {
            let inputs = store.inputs().of(study.id).await.ok()?;
            let name = inputs.into_iter().find(|input| input.role == DEVICE)?.path;
            if name == "cpu" {
                None
            } else {
                Some(here.filter(|gpu| gpu.name == name).or_else(|| by_sheet(name))?)
            }
        }
        Backend::Native | Backend::Command(_) => here,
    };
    match gpu {
        Some(gpu) => Some(TrialDevice::gpu(&gpu)),
        None => TrialDevice::stored_cpu(store).await,
    }
}

/// A GPU that is not here, by its data sheet.
fn by_sheet(name: String) -> Option<DeviceFacts> {
    let memory_bytes = predict::device_of_driver(&name)?.memory_bytes;
    Some(DeviceFacts { name, memory_bytes })
}

fn of_target(study: &Study, config: &Path) -> Option<Arc<TargetForecast>> {
    let shape = model_shape(config).ok()?;
    TargetForecast::new(study, shape).ok().flatten().map(Arc::new)
}
