//! What `plan` and `search` need to predict a study: the model's dimensions, the lengths of the data's rows, and what is known
//! of this machine: a GPU's data sheet, or the CPU's ceilings, measured once and kept in the results database.

use std::path::Path;
use std::sync::Arc;

use crate::cli::CliError;
use crate::cli::data::known_offline::shape_in;
use crate::cli::data::model_family::{SEARCH_IN_TRL, architecture_of};
use crate::cli::data::row_lengths::{Rows, rows_of};
use crate::cli::machine::cpu_ceilings::{Measuring, stored, stored_or_measured};
use crate::cli::machine::record::usable_memory_bytes;
use crate::cli::options::database::{DatabaseArgs, block_on};
use crate::cli::terminal::download_progress::DownloadProgress;
use crate::space::{Backend, ReadOptions, Study, StudyFile};
use crate::store::{Store, StudyOverview};
use crate::tune::{Forecast, TargetForecast};
use crate::worker::Placement;
use peft_tune_core::architecture::Architecture;
use peft_tune_core::plan::Memory;
use peft_tune_core::predict;
use peft_tune_core::predict::{DataSheet, Host, HostRates, Machine, Predictor};
use peft_tune_core::recipe::{Precision, Recipe};
use peft_tune_engine::hub::{HubSettings, ModelFiles};
use peft_tune_engine::profile::ceilings;
use peft_tune_kernels::device;
use peft_tune_kernels::device::DeviceFacts;

/// What a study's forecast needs but for its data: its model, and what is known of this machine.
pub(super) struct Grounds<'a> {
    study: &'a Study,
    base: &'a Recipe,
    files: ModelFiles,
    architecture: Architecture,
    here: TrialDevice,
}

impl<'a> Grounds<'a> {
    /// Finds them for a search on this machine; `None` where its trials cannot be predicted: another engine, or another machine.
    pub(super) async fn of_search(study: &'a Study, store: &Store, slot: &Placement) -> Result<Option<Self>, CliError> {
        let (Some(base), Backend::Native) = (&study.base, &study.backend) else {
            return Ok(None);
        };
        // This machine says nothing of another.
        if study.launcher.is_elsewhere() {
            return Ok(None);
        }
        let mut download = DownloadProgress::default();
        let files = ModelFiles::resolve_weights(&base.model, &mut download).map_err(CliError::bad_input)?;
        let architecture = architecture_of(&files.config, SEARCH_IN_TRL)?;
        let how = Measuring::on(slot.threads).within(study.budget.time_s);
        let device = slot.device.as_deref();
        let here = TrialDevice::find(device, Some(store), how, &study.precisions(base)).await?;
        Ok(Some(Self {
            study,
            base,
            files,
            architecture,
            here,
        }))
    }

    /// The forecast of the study's data.
    pub(super) fn forecast(self, target: Option<Arc<TargetForecast>>) -> Result<Arc<Forecast>, CliError> {
        let rows = rows_of(self.study, self.base, &self.files)?;
        let forecast = self.here.forecast(self.study, self.architecture, rows);
        Ok(Arc::new(forecast.with_target(target)))
    }

    /// The forecast before the data are read: every row is taken for as long as a row may be.
    pub(super) fn with_full_rows(&self) -> Forecast {
        let here = self.here.clone();
        here.forecast(self.study, self.architecture.clone(), Rows::new())
    }
}

/// The forecast of a study of the database, where this machine can make one without a network and without measuring anything:
/// it has the model, the data and, for the CPU, ceilings. What the search corrected its trials by.
pub(super) async fn of_stored(study: &StudyOverview, store: &Store) -> Option<Arc<Forecast>> {
    let text = store.definitions().file_text(study.id).await.ok()?;
    let options = ReadOptions { check_files: false };
    let mut file = StudyFile::parse(&study.space_path, &text, options).ok()?;
    // The file's paths are those of the folder that the search began in; the settings that were stored are whole.
    let settings = store.definitions().settings(study.id).await.ok()?;
    // The file may say `native` where the command line asked for TRL.
    if !settings["backend"].is_null() {
        return None;
    }
    file.base = serde_json::from_value(settings["base"].clone()).ok()?;
    let (base, Backend::Native) = (file.base.as_ref()?, &file.backend) else {
        return None;
    };
    if file.launcher.is_elsewhere() {
        return None;
    }
    let settings = HubSettings {
        offline: true,
        ..HubSettings::from_env().ok()?
    };
    let files = ModelFiles::resolve_with(&base.model, &settings).ok()?;
    let architecture = Architecture::from_config(&files.config).ok()?;
    let rows = rows_of(&file, base, &files).ok()?;
    let here = match device::first_gpu() {
        Some(gpu) => TrialDevice::gpu(&gpu),
        None => TrialDevice {
            name: String::new(),
            machine: Machine::Measured(Box::new(
                stored(store, rayon::current_num_threads()).await.ok()??.ceilings,
            )),
            device_bytes: None,
            disturbed: 0.0,
        },
    };
    let target = of_target(&file, &files.config);
    Some(Arc::new(here.forecast(&file, architecture, rows).with_target(target)))
}

fn of_target(study: &Study, config: &Path) -> Option<Arc<TargetForecast>> {
    let shape = shape_in(config)?;
    TargetForecast::new(study, shape).ok().flatten().map(Arc::new)
}

/// What is known of the device that trials of this machine run on.
#[derive(Clone)]
pub(super) struct TrialDevice {
    /// Name of the device, for people.
    pub name: String,
    machine: Machine,
    /// Memory that trials may take: a GPU's, or this machine's.
    device_bytes: Option<u64>,
    /// Share of the speed that other programs may have taken while it was measured.
    pub disturbed: f64,
}

impl TrialDevice {
    /// The first GPU, or where there is none, or `device` says so, the CPU with its ceilings.
    pub(super) async fn find(
        device: Option<&str>,
        store: Option<&Store>,
        how: Measuring,
        precisions: &[Precision],
    ) -> Result<Self, CliError> {
        match device::first_gpu().filter(|_| device != Some("cpu")) {
            Some(gpu) => Ok(Self::gpu(&gpu)),
            None => {
                let found = stored_or_measured(store, how, precisions).await?;
                Ok(Self {
                    name: "this machine".to_owned(),
                    machine: Machine::Measured(Box::new(found.ceilings)),
                    device_bytes: usable_memory_bytes(),
                    disturbed: found.disturbed,
                })
            }
        }
    }

    /// The device of this machine for a plan, whose ceilings the results database keeps where it can be written.
    ///
    /// # Errors
    /// Ceilings that cannot be measured; a database that cannot be read.
    pub(super) fn of_plan(
        database: &DatabaseArgs,
        threads: Option<usize>,
        precisions: &[Precision],
    ) -> Result<Self, CliError> {
        block_on(async {
            let store = database.open_for_ceilings().await?;
            let here = Self::find(None, store.as_ref(), Measuring::on(threads), precisions).await;
            if let Some(store) = store {
                store.close().await?;
            }
            here
        })
    }

    /// A GPU: its speed from the data sheet, where the table has it, its memory from the driver.
    fn gpu(gpu: &DeviceFacts) -> Self {
        let sheet = predict::device_of_driver(&gpu.name);
        let speed = if sheet.is_some() {
            "from its data sheet"
        } else {
            "its speed is not known"
        };
        Self {
            name: format!("{} ({speed})", gpu.name),
            machine: sheet.map_or(Machine::Unmeasured(Host::gpu(gpu.memory_bytes)), Machine::DataSheet),
            device_bytes: Some(gpu.memory_bytes),
            disturbed: 0.0,
        }
    }

    /// Copies this device as one of whose speed nothing is known.
    pub(super) fn without_speed(&self) -> Self {
        Self {
            name: self.name.clone(),
            machine: Machine::Unmeasured(self.machine.host()),
            ..*self
        }
    }

    /// Predictor of a model's settings here, some of which have their updates on the host where `offloads` says so.
    pub(super) fn predictor(self, architecture: Architecture, offloads: bool) -> Predictor {
        let is_gpu = self.machine.host().memory() == Memory::Device;
        let predictor = peft_tune_engine::predictor(architecture, self.machine);
        match is_gpu && offloads {
            true => predictor.with_host(HostRates {
                memory_bytes_per_s: ceilings::host_memory_bytes_per_s(),
                ..HostRates::USUAL
            }),
            false => predictor,
        }
    }

    /// The forecast of `study` here.
    pub(super) fn forecast(self, study: &Study, architecture: Architecture, rows: Rows) -> Forecast {
        let device_bytes = self.device_bytes;
        let forecast = Forecast::new(study, self.predictor(architecture, study.offloads_updates()), rows);
        match device_bytes {
            Some(bytes) => forecast.within(bytes as f64),
            None => forecast,
        }
    }
}

/// Data sheet of this machine's processor as a device of other stacks: its ceilings in place of a maker's peaks.
///
/// # Errors
/// Ceilings that could not be measured.
pub(super) async fn host_sheet(store: &Store) -> Result<&'static DataSheet, CliError> {
    let ceilings = stored_or_measured(Some(store), Measuring::on(None), &[Precision::Fp32, Precision::Bf16]).await?;
    let sheet = ceilings.ceilings.as_sheet(usable_memory_bytes().unwrap_or(u64::MAX));
    // Design note: a device refers to a table that lives as long as the program, and a program has one host.
    Ok(Box::leak(Box::new(sheet)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_known_by_its_data_sheet_or_by_its_memory_alone() {
        let gpu = |name: &str| {
            TrialDevice::gpu(&DeviceFacts {
                name: name.to_owned(),
                memory_bytes: 80 << 30,
            })
        };
        let known = gpu("NVIDIA H100 80GB HBM3");
        assert!(matches!(known.machine, Machine::DataSheet(sheet) if sheet.name == "H100 SXM"));
        assert_eq!(known.name, "NVIDIA H100 80GB HBM3 (from its data sheet)");
        let unknown = gpu("NVIDIA H20");
        assert!(matches!(unknown.machine, Machine::Unmeasured(host) if host == Host::gpu(80 << 30)));
        assert_eq!(unknown.device_bytes, Some(80 << 30));
    }
}
