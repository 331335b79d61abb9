//! The ground that trials of the built-in engine would run on, where a search chooses its engine.

use std::collections::BTreeSet;

use super::worker_args::WorkerArgs;
use crate::cli::CliError;
use crate::cli::machine::engine_check::{Beside, EngineGpu, Standing, may_have_gpu};
use crate::space::Study;

/// Place where the built-in engine's trials would run.
pub(super) enum Ground {
    /// Machines that a launcher reaches.
    Elsewhere,
    /// The processor, which the options name.
    Cpu,
    /// GPUs of this machine, each product once; its processor where there are none.
    Here(Vec<EngineGpu>),
}

impl Ground {
    /// The ground of a study's trials.
    ///
    /// # Errors
    /// Errors of [`WorkerArgs::slots`].
    pub(super) fn of(study: &Study, workers: &WorkerArgs) -> Result<Self, CliError> {
        if study.launcher.is_elsewhere() {
            return Ok(Self::Elsewhere);
        }
        let slots = workers.slots(study)?;
        let gpus = slots.iter().filter_map(|slot| match slot.device.as_deref() {
            Some(device) => EngineGpu::named(device),
            None => EngineGpu::first(),
        });
        let mut gpus: Vec<EngineGpu> = gpus.collect();
        let mut names = BTreeSet::new();
        gpus.retain(|gpu| names.insert(gpu.name.clone()));
        Ok(match gpus.is_empty() && !workers.devices.is_empty() {
            true => Self::Cpu,
            false => Self::Here(gpus),
        })
    }

    /// Whether trials may run on a GPU of this machine in one of the engines.
    pub(super) fn may_have_gpu(&self) -> bool {
        match self {
            Self::Elsewhere | Self::Cpu => false,
            Self::Here(gpus) => !gpus.is_empty() || may_have_gpu(),
        }
    }

    /// The standing of the engine there.
    pub(super) fn standing(&self, beside: Beside<'_>) -> Standing {
        match self {
            Self::Elsewhere => Standing::Elsewhere,
            Self::Cpu => Standing::Cpu,
            Self::Here(gpus) => Standing::on(gpus, beside),
        }
    }
}
