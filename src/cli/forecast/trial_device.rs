//! [`TrialDevice`]: what is known of the device that trials run on.

use super::predicted_model::PredictedModel;
use crate::cli::CliError;
use crate::cli::machine::cpu_ceilings::{Measuring, stored, stored_or_measured};
use crate::cli::machine::record::usable_memory_bytes;
use crate::cli::options::database::{DatabaseArgs, block_on};
use crate::space::{Backend, Study};
use crate::store::Store;
use crate::tools::Tool;
use crate::tune::{CostModel, Forecast, StackCosts, TrainingRows};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::plan::Memory;
use peft_tune_core::predict;
use peft_tune_core::predict::stack::{ModelShape, StackDevice};
use peft_tune_core::predict::{Ceilings, DataSheet, Host, HostRates, Machine, Predictor};
use peft_tune_core::recipe::{Precision, Recipe};
use peft_tune_engine::profile::ceilings;
use peft_tune_kernels::device;
use peft_tune_kernels::device::DeviceFacts;

/// Precisions whose products a processor is described by for other stacks.
const OF_SHEET: [Precision; 2] = [Precision::Fp32, Precision::Bf16];

/// What is known of the device that trials of this machine run on.
#[derive(Clone)]
pub(in crate::cli) struct TrialDevice {
    /// Name of the device, for people.
    pub name: String,
    machine: Machine,
    /// Whether speeds are predicted by what is known of it.
    is_timed: bool,
    /// Memory that trials may take: a GPU's, or this machine's.
    device_bytes: Option<u64>,
    /// Share of the speed that other programs may have taken while it was measured.
    pub disturbed: f64,
}

impl TrialDevice {
    /// A GPU, or the CPU with its ceilings.
    ///
    /// # Errors
    /// Ceilings that cannot be measured; a database that cannot be read.
    pub(super) async fn on(
        gpu: Option<DeviceFacts>,
        store: Option<&Store>,
        how: Measuring,
        precisions: &[Precision],
    ) -> Result<Self, CliError> {
        match gpu {
            Some(gpu) => Ok(Self::gpu(&gpu)),
            None => {
                let found = stored_or_measured(store, how, precisions).await?;
                Ok(Self {
                    device_bytes: usable_memory_bytes(),
                    disturbed: found.disturbed,
                    ..Self::cpu(found.ceilings)
                })
            }
        }
    }

    /// The CPU with the ceilings that the database has of it; `None` where it has none.
    pub(super) async fn stored_cpu(store: &Store) -> Option<Self> {
        let found = stored(store, rayon::current_num_threads()).await.ok()??;
        Some(Self::cpu(found.ceilings))
    }

    fn cpu(ceilings: Ceilings) -> Self {
        Self {
            name: "this machine".to_owned(),
            machine: Machine::Measured(Box::new(ceilings)),
            is_timed: true,
            device_bytes: None,
            disturbed: 0.0,
        }
    }

    /// The device of this machine for a plan, whose ceilings the results database keeps where it can be written.
    ///
    /// # Errors
    /// Ceilings that cannot be measured; a database that cannot be read.
    pub(in crate::cli) fn of_plan(
        database: &DatabaseArgs,
        threads: Option<usize>,
        precisions: &[Precision],
    ) -> Result<Self, CliError> {
        block_on(async {
            let store = database.open_for_ceilings().await?;
            let here = Self::on(device::first_gpu(), store.as_ref(), Measuring::on(threads), precisions).await;
            if let Some(store) = store {
                store.close().await?;
            }
            here
        })
    }

    /// A GPU: its speed from the data sheet, where the table has it, its memory from the driver.
    pub(super) fn gpu(gpu: &DeviceFacts) -> Self {
        let sheet = predict::device_of_driver(&gpu.name);
        let speed = if sheet.is_some() {
            "from its data sheet"
        } else {
            "its speed is not known"
        };
        Self {
            name: format!("{} ({speed})", gpu.name),
            machine: sheet.map_or(Machine::Unmeasured(Host::gpu(gpu.memory_bytes)), Machine::DataSheet),
            is_timed: sheet.is_some(),
            device_bytes: Some(gpu.memory_bytes),
            disturbed: 0.0,
        }
    }

    /// Copies this device as one of whose speed nothing is known.
    pub(in crate::cli) fn without_speed(&self) -> Self {
        Self {
            is_timed: false,
            ..self.clone()
        }
    }

    /// Predictor of a model's settings here, some of which have their updates on the host where `offloads` says so.
    pub(in crate::cli) fn predictor(self, architecture: Architecture, offloads: bool) -> Predictor {
        let is_gpu = self.machine.host().memory() == Memory::Device;
        let machine = match self.is_timed {
            true => self.machine,
            false => Machine::Unmeasured(self.machine.host()),
        };
        let predictor = peft_tune_engine::predictor(architecture, machine);
        match is_gpu && offloads {
            true => predictor.with_host(HostRates {
                memory_bytes_per_s: ceilings::host_memory_bytes_per_s(),
                ..HostRates::USUAL
            }),
            false => predictor,
        }
    }

    /// Costs of a model's settings in a stack here.
    fn stack_costs(self, stack: Tool, shape: ModelShape) -> StackCosts {
        let (sheet, is_timed) = match self.machine {
            Machine::Measured(ceilings) => {
                let sheet = kept(ceilings.as_sheet(self.device_bytes.unwrap_or(u64::MAX)));
                // What the database has may be of other precisions.
                (Some(sheet), self.is_timed && ceilings.covers(Precision::Fp32))
            }
            Machine::DataSheet(sheet) => (Some(sheet), self.is_timed),
            Machine::Unmeasured(_) => (None, false),
        };
        let costs = StackCosts::new(stack, shape, sheet.map(|sheet| StackDevice { sheet }));
        match is_timed {
            true => costs,
            false => costs.without_speed(),
        }
    }

    /// The forecast of `study` here.
    pub(in crate::cli) fn forecast(self, study: &Study, model: PredictedModel, rows: TrainingRows) -> Forecast {
        let device_bytes = self.device_bytes;
        let costs: CostModel = match model {
            PredictedModel::Native(architecture) => self.predictor(*architecture, study.offloads_updates()).into(),
            PredictedModel::Stack(stack, shape) => self.stack_costs(stack, *shape).into(),
        };
        let forecast = Forecast::new(study, costs, rows);
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
pub(in crate::cli) async fn host_sheet(store: &Store) -> Result<&'static DataSheet, CliError> {
    let ceilings = stored_or_measured(Some(store), Measuring::on(None), &OF_SHEET).await?;
    Ok(kept(
        ceilings.ceilings.as_sheet(usable_memory_bytes().unwrap_or(u64::MAX)),
    ))
}

/// Keeps a data sheet to the program's end.
fn kept(sheet: DataSheet) -> &'static DataSheet {
    // Design note: a device refers to a table that lives as long as the program. The host's sheet is made once a forecast, of a few
    // dozen bytes.
    Box::leak(Box::new(sheet))
}

/// Precisions whose ops have to be known of a processor for a study's settings to be predicted.
pub(in crate::cli) fn precisions_of(study: &Study, base: &Recipe) -> Vec<Precision> {
    let own = study.precisions(base);
    match study.backend {
        Backend::Native | Backend::Command(_) => own,
        Backend::Trl(_) if own.iter().all(|precision| *precision == Precision::Fp32) => vec![Precision::Fp32],
        Backend::Trl(_) => OF_SHEET.to_vec(),
    }
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
