//! What `profile` knows of the machine: its ceilings, and what they say of other settings.

use std::collections::BTreeMap;

use super::CliError;
use super::database::{DatabaseArgs, block_on};
use super::machine_ceilings;
use crate::store::Store;
use peft_tune_core::architecture::Architecture;
use peft_tune_core::predict::{Ceilings, Machine, Predictor, RowLengths};
use peft_tune_core::recipe::{BatchSettings, Precision, Recipe};
use peft_tune_engine::data::{BatchSource, PreparedData, RowOrder};
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::profile::Ceiling;
use peft_tune_engine::profile::diagnosis::ModelOracle;

/// A product that is large enough to show what a device can do: rows, columns, depth.
const LARGE: [f64; 3] = [512.0, 1024.0, 1024.0];

/// The machine's ceilings for one recipe.
pub struct MachineCeilings {
    ceilings: Ceilings,
    pub oracle: ModelOracle,
}

impl MachineCeilings {
    /// Those of the database where it has them; measured now, and kept unless nothing is to be stored, where not.
    pub fn of(
        recipe: &Recipe,
        files: &ModelFiles,
        data: &PreparedData,
        database: Option<&DatabaseArgs>,
    ) -> Result<Self, CliError> {
        // What a diagnosis may propose instead.
        let precisions = [recipe.precision, Precision::Bf16];
        let ceilings = block_on(async {
            let Some(database) = database else {
                return machine_ceilings::stored_or_measured(None, None, &precisions).await;
            };
            let store = Store::open(&database.path()).await?;
            let ceilings = machine_ceilings::stored_or_measured(Some(&store), None, &precisions).await?;
            store.close().await?;
            Ok(ceilings)
        })?;
        let predictor = Predictor::new(
            Architecture::from_config(&files.config).map_err(CliError::bad_input)?,
            Machine::Measured(Box::new(ceilings.clone())),
        );
        Ok(Self {
            oracle: ModelOracle::new(predictor, rows(recipe, data)?),
            ceilings,
        })
    }

    /// The roofline for products in the compute dtype of `precision`.
    pub fn ceiling(&self, precision: Precision) -> Option<Ceiling> {
        Some(Ceiling {
            flops_per_s: self.rate(precision.compute())?,
            bytes_per_s: self.ceilings.memory_bytes_per_s,
        })
    }

    /// The number type that is multiplied faster than that of `precision`, and how many times as fast.
    pub fn faster_type(&self, precision: Precision) -> Option<(&'static str, f64)> {
        let own = self.rate(precision.compute())?;
        let times = self.rate(Precision::Bf16)? / own;
        (times > 1.0).then_some((Precision::Bf16.name(), times))
    }

    /// FLOP/s of a large product with dense weights of this precision.
    fn rate(&self, precision: Precision) -> Option<f64> {
        let seconds = self.ceilings.products.get(&precision)?.nt.at(&LARGE)?;
        Some(2.0 * LARGE.iter().product::<f64>() / seconds)
    }
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
