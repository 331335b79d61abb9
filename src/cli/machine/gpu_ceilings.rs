//! A GPU's ceilings: measured once, kept in the results database by GPU, driver, libraries and build; the maker's where that fails.

use std::time::{Duration, Instant};

use super::cpu_ceilings::build;
use super::record::{driver, machine};
use crate::cli::CliError;
use crate::cli::terminal::output::tell;
use crate::store::{CeilingRecord, MachineRecord, Store};
use peft_tune_core::predict::{DeviceCeilings, device_of_driver};
use peft_tune_core::recipe::Precision;
use peft_tune_engine::TrainError;
use peft_tune_engine::profile::CeilingSource;
use peft_tune_engine::profile::ceilings::{add_device, measure_device};
use peft_tune_engine::profile::disturbance::{Disturbance, lost_on_gpu};
use peft_tune_engine::profile::sample::{Sampling, sampler_of};
use peft_tune_kernels::device;
use peft_tune_kernels::device::Device;

/// Time from one look at the GPU to the next while it is measured.
const SAMPLE_EVERY: Duration = Duration::from_millis(50);
/// Threads in the row of a GPU's ceilings: the processor's had no part in them.
const NO_THREADS: u64 = 0;

/// A GPU's ceilings, and what the moment of their measurement took from them.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::cli) struct KnownCeilings {
    pub ceilings: DeviceCeilings,
    pub from: CeilingSource,
    /// Share of the speed that may have been lost to other programs; 0 where it was quiet.
    pub disturbed: f64,
}

/// The ceilings of a GPU from the database where they cover `precisions` and were measured in peace, else measured now and, with a
/// database, kept. The maker's where it cannot be measured; `None` where they are not known either.
pub(in crate::cli) async fn stored_or_measured(
    store: Option<&Store>,
    gpu: &Device,
    precisions: &[Precision],
) -> Result<Option<KnownCeilings>, CliError> {
    let stored = match store {
        Some(store) => stored(store, gpu).await?,
        None => None,
    };
    if let Some(known) = stored
        .clone()
        .filter(|known| known.disturbed == 0.0 && known.ceilings.cover(precisions))
    {
        return Ok(Some(known));
    }
    let quiet = stored.filter(|known| known.disturbed == 0.0);
    measured_and_kept(store, quiet.map(|known| known.ceilings), gpu, precisions).await
}

/// Measures a GPU's ceilings like [`stored_or_measured`], whatever the database has.
pub(super) async fn measured_again(
    store: Option<&Store>,
    gpu: &Device,
    precisions: &[Precision],
) -> Result<Option<KnownCeilings>, CliError> {
    measured_and_kept(store, None, gpu, precisions).await
}

async fn measured_and_kept(
    store: Option<&Store>,
    known: Option<DeviceCeilings>,
    gpu: &Device,
    precisions: &[Precision],
) -> Result<Option<KnownCeilings>, CliError> {
    tell(format_args!("measuring this GPU once, a few seconds"));
    match measured(known, gpu, precisions) {
        Ok(found) => {
            if let Some(store) = store {
                keep(store, gpu, &found).await?;
            }
            Ok(Some(found))
        }
        Err(error) if error.lost_device() => Err(CliError::failed(error)),
        Err(error) => {
            let sheet = of_sheet(gpu);
            let instead = match sheet {
                Some(_) => "those of its data sheet count",
                None => "there are none",
            };
            tell(format_args!(
                "warning: the GPU's ceilings cannot be measured ({error}): {instead}"
            ));
            Ok(sheet)
        }
    }
}

/// What the database has of this GPU; something that this version cannot read counts as nothing.
async fn stored(store: &Store, gpu: &Device) -> Result<Option<KnownCeilings>, CliError> {
    let found = store
        .ceilings()
        .of(&machine_of(gpu), &build_for(gpu), NO_THREADS)
        .await?;
    Ok(found.and_then(|(text, disturbed)| {
        Some(KnownCeilings {
            ceilings: serde_json::from_str(&text).ok()?,
            from: CeilingSource::Measured,
            disturbed,
        })
    }))
}

/// Measures on top of what is known.
fn measured(
    known: Option<DeviceCeilings>,
    gpu: &Device,
    precisions: &[Precision],
) -> Result<KnownCeilings, TrainError> {
    let sampling = sampler_of(gpu).and_then(|sampler| Sampling::start(sampler, Instant::now(), SAMPLE_EVERY).ok());
    let ceilings = match known {
        Some(mut known) => add_device(&mut known, gpu, precisions).map(|()| known),
        None => measure_device(gpu, precisions),
    };
    let samples = sampling.map(Sampling::finish).unwrap_or_default();
    let disturbance = Disturbance {
        lost: lost_on_gpu(&samples),
        threads: 1,
        ..Disturbance::default()
    };
    Ok(KnownCeilings {
        ceilings: ceilings?,
        from: CeilingSource::Measured,
        disturbed: disturbance.share(),
    })
}

/// Ceilings that the GPU's maker publishes.
fn of_sheet(gpu: &Device) -> Option<KnownCeilings> {
    let sheet = device_of_driver(&device::facts(gpu)?.name)?;
    Some(KnownCeilings {
        ceilings: DeviceCeilings::of_sheet(sheet),
        from: CeilingSource::DataSheet,
        disturbed: 0.0,
    })
}

async fn keep(store: &Store, gpu: &Device, found: &KnownCeilings) -> Result<(), CliError> {
    let record = CeilingRecord {
        build: build_for(gpu),
        threads: NO_THREADS,
        memory_bytes_per_s: found.ceilings.memory_bytes_per_s,
        wake_s: 0.0,
        grids: serde_json::to_string(&found.ceilings).map_err(CliError::failed)?,
        disturbed: found.disturbed,
    };
    Ok(store.ceilings().record(&machine_of(gpu), &record).await?)
}

/// Record of this machine with `gpu`, which need not be its first one.
fn machine_of(gpu: &Device) -> MachineRecord {
    let facts = device::facts(gpu);
    MachineRecord {
        device: facts.as_ref().map_or_else(String::new, |facts| facts.name.clone()),
        device_memory_bytes: facts.map_or(0, |facts| facts.memory_bytes),
        driver: driver().unwrap_or_default(),
        ..machine()
    }
}

/// The program and the libraries that multiply for it.
fn build_for(gpu: &Device) -> String {
    let libraries = device::libraries(gpu).unwrap_or_default();
    format!("{}, {libraries}", build())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The CPU stands for a device here: what is measured is kept under its own key, and read again.
    #[tokio::test]
    async fn a_measured_device_is_measured_once() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("a.db")).await.unwrap();
        let gpu = Device::Cpu;
        let mut found = KnownCeilings {
            ceilings: DeviceCeilings {
                products: [(Precision::Bf16, 7.0)].into(),
                memory_bytes_per_s: 3.0,
            },
            from: CeilingSource::Measured,
            disturbed: 0.0,
        };
        assert_eq!(stored(&store, &gpu).await.unwrap(), None);
        keep(&store, &gpu, &found).await.unwrap();
        let again = stored_or_measured(Some(&store), &gpu, &[Precision::Nf4]).await.unwrap();
        assert_eq!(again, Some(found.clone()));
        // What is missing is added to what is known, and what was disturbed counts for nothing.
        let more = stored_or_measured(Some(&store), &gpu, &[Precision::Fp32])
            .await
            .unwrap();
        let more = more.unwrap().ceilings;
        assert_eq!(
            (more.flops_per_s(Precision::Bf16), more.memory_bytes_per_s),
            (Some(7.0), 3.0)
        );
        assert!(more.flops_per_s(Precision::Fp32).is_some_and(|rate| rate > 7.0));
        found.disturbed = 0.4;
        keep(&store, &gpu, &found).await.unwrap();
        let anew = stored_or_measured(Some(&store), &gpu, &[Precision::Fp32])
            .await
            .unwrap();
        assert!(anew.unwrap().ceilings.memory_bytes_per_s > 3.0);
    }
}
