//! What `profile` knows of the device: its ceilings, and, of a CPU, what they say of other settings.

use std::collections::BTreeMap;

use crate::cli::CliError;
use crate::cli::machine::gpu_ceilings::KnownCeilings;
use crate::cli::machine::{cpu_ceilings, gpu_ceilings};
use crate::cli::options::database::{DatabaseArgs, block_on};
use crate::store::Store;
use peft_tune_core::architecture::Architecture;
use peft_tune_core::predict::{Ceilings, Machine, RowLengths};
use peft_tune_core::recipe::{BatchSettings, Precision, Recipe};
use peft_tune_engine::data::{BatchSource, PreparedData, RowOrder};
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::profile::diagnosis::{FasterType, ModelOracle, Oracle};
use peft_tune_engine::profile::{Ceiling, CeilingSource};
use peft_tune_kernels::device::Device;

/// A product that is large enough to show what a device can do: rows, columns, depth.
const LARGE: [f64; 3] = [512.0, 1024.0, 1024.0];

/// The ceilings of the device that is profiled, for one recipe.
pub(super) enum MachineCeilings {
    Host {
        ceilings: Box<Ceilings>,
        oracle: Box<ModelOracle>,
    },
    Gpu(KnownCeilings),
}

impl MachineCeilings {
    /// Reads the ceilings from the database where it has them; else measures them now, and keeps them unless nothing is
    /// to be stored. `None` for a GPU that cannot be measured and has no data sheet.
    pub(super) fn of(
        device: &Device,
        recipe: &Recipe,
        files: &ModelFiles,
        data: &PreparedData,
        database: Option<&DatabaseArgs>,
    ) -> Result<Option<Self>, CliError> {
        // With what a diagnosis may propose instead.
        let precisions: Vec<_> = recipe.precisions().chain([Precision::Bf16]).collect();
        if !device.is_cpu() {
            let known = with_store(database, async |store| {
                gpu_ceilings::stored_or_measured(store, device, &precisions).await
            })?;
            return Ok(known.map(Self::Gpu));
        }
        let ceilings = with_store(database, async |store| {
            cpu_ceilings::stored_or_measured(store, cpu_ceilings::Measuring::on(None), &precisions).await
        })?;
        let ceilings = ceilings.ceilings;
        let predictor = peft_tune_engine::predictor(
            Architecture::from_config(&files.config).map_err(CliError::bad_input)?,
            Machine::Measured(Box::new(ceilings.clone())),
        );
        Ok(Some(Self::Host {
            oracle: Box::new(ModelOracle::new(predictor, rows(recipe, data)?)),
            ceilings: Box::new(ceilings),
        }))
    }

    /// What knows the cost of other settings.
    pub(super) fn oracle(&self) -> &dyn Oracle {
        match self {
            Self::Host { oracle, .. } => oracle.as_ref(),
            Self::Gpu(_) => &(),
        }
    }

    /// The roofline for products in the compute dtype of `precision`.
    pub(super) fn ceiling(&self, precision: Precision) -> Option<Ceiling> {
        let (bytes_per_s, from) = match self {
            Self::Host { ceilings, .. } => (ceilings.memory_bytes_per_s, CeilingSource::Measured),
            Self::Gpu(known) => (known.ceilings.memory_bytes_per_s, known.from),
        };
        Some(Ceiling {
            flops_per_s: self.rate(precision)?,
            bytes_per_s,
            from,
        })
    }

    /// The number type that is multiplied faster than that of `precision`.
    pub(super) fn faster_type(&self, precision: Precision) -> Option<FasterType> {
        let faster = FasterType {
            precision: Precision::Bf16,
            times: self.rate(Precision::Bf16)? / self.rate(precision)?,
        };
        (faster.times > 1.0).then_some(faster)
    }

    /// FLOP/s of a large product in the compute dtype of `precision`.
    fn rate(&self, precision: Precision) -> Option<f64> {
        match self {
            Self::Host { ceilings, .. } => {
                let seconds = ceilings.products.get(&precision.compute())?.nt.at(&LARGE)?;
                Some(2.0 * LARGE.iter().product::<f64>() / seconds)
            }
            Self::Gpu(known) => known.ceilings.flops_per_s(precision),
        }
    }
}

/// Does something with the database, or without one where nothing is to be stored.
fn with_store<T>(
    database: Option<&DatabaseArgs>,
    work: impl AsyncFnOnce(Option<&Store>) -> Result<T, CliError>,
) -> Result<T, CliError> {
    block_on(async {
        let Some(database) = database else {
            return work(None).await;
        };
        let store = Store::open(&database.path()).await?;
        let found = work(Some(&store)).await?;
        store.close().await?;
        Ok(found)
    })
}

/// Rows without and with packing.
fn rows(recipe: &Recipe, data: &PreparedData) -> Result<BTreeMap<bool, RowLengths>, CliError> {
    let of = |packing: bool| {
        let batch = BatchSettings {
            packing,
            ..recipe.batch.clone()
        };
        let source = BatchSource::new(data.train().clone(), &batch, RowOrder::File).map_err(CliError::bad_input)?;
        Ok((packing, RowLengths::new(source.row_documents())))
    };
    [false, true].into_iter().map(of).collect()
}
