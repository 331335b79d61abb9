//! The oracle that counts: bytes and FLOPs of a setting, and seconds by the machine's measured ceilings.

use std::collections::BTreeMap;

use super::{Cost, Oracle};
use peft_tune_core::predict::{Machine, Predictor, RowLengths, Setting};
use peft_tune_core::recipe::{PrecisionSchedule, Recipe, Sharding};

/// Predicts settings of one model, one data set and one machine.
#[derive(Clone, Debug)]
pub struct ModelOracle {
    predictor: Predictor,
    /// Rows without and with packing.
    rows: BTreeMap<bool, RowLengths>,
}

impl ModelOracle {
    /// An oracle for settings whose rows are among `rows`, by whether they are packed.
    pub fn new(predictor: Predictor, rows: BTreeMap<bool, RowLengths>) -> Self {
        Self { predictor, rows }
    }
}

impl Oracle for ModelOracle {
    fn cost(&self, recipe: &Recipe) -> Option<Cost> {
        let Machine::Measured(ceilings) = self.predictor.machine() else {
            return None;
        };
        if !ceilings.covers(recipe.precision) {
            return None;
        }
        let workload = self.rows.get(&recipe.batch.packing)?.workload(recipe.batch.micro_batch);
        // As profiles are: of the steps that most of a training consists of, in one process that has all weights.
        let mut recipe = recipe.clone();
        recipe.precision_schedule = PrecisionSchedule::None;
        recipe.batch.sharding = Sharding::None;
        let setting = Setting {
            recipe: &recipe,
            workload: &workload,
        };
        let prediction = self.predictor.predict(&setting).ok()?;
        let cost = Cost {
            tokens_per_s: prediction.tokens_per_s(),
            peak_bytes: prediction.peak_bytes() as f64,
        };
        (cost.tokens_per_s > 0.0).then_some(cost)
    }
}
