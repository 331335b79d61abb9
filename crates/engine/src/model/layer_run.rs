//! Rows on their way through a frozen model, one layer at a time, with the norms of what its linear layers read.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | x | (T, in) | what the linear layers of a group read of one row |
//! | n | (in,) | the root of the sum of x² over all tokens of all rows, added up in F64 |

use std::collections::{BTreeMap, HashMap};

use candle_core::Result;

use super::column_sums::ColumnSums;
use super::cross_layer::CrossLayer;
use super::decoder::Decoder;
use super::trainables::Trainables;
use super::{RopeTables, Stream};
use crate::base::BaseModel;
use crate::data::MicroBatch;
use crate::tensor::Tensor;
use crate::{BatchError, Parameters, TrainError};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::plan::ModelPlan;

/// Rows between two layers of a model that attends in every layer, in layers that read nothing of each other but the stream.
pub(crate) struct LayerRun<'a> {
    rows: &'a [MicroBatch],
    /// (T, H) of each row.
    streams: Vec<Tensor>,
    ropes: RopeTables,
}

impl<'a> LayerRun<'a> {
    /// Rows in front of the first layer; of `base` only what lies outside its layers is read.
    ///
    /// # Errors
    /// A token outside the vocabulary; those of candle.
    pub(crate) fn begin(base: &BaseModel, rows: &'a [MicroBatch]) -> std::result::Result<Self, TrainError> {
        let (architecture, device) = (base.architecture(), base.device());
        let vocabulary = architecture.vocabulary;
        let unknown = |row: &MicroBatch| row.input_ids.iter().find(|id| **id as usize >= vocabulary).copied();
        if let Some(token) = rows.iter().find_map(unknown) {
            let token = i64::from(token);
            return Err(BatchError::UnknownToken { token, vocabulary }.into());
        }
        let mut ropes = RopeTables::new(&architecture.ropes, device);
        ropes.prepare(rows.iter().map(MicroBatch::longest).max().unwrap_or(0))?;
        let streams = with_layers(base, 0..0, |decoder| {
            let begin = |row: &MicroBatch| {
                let stream = Stream::new(row, None, None, device)?;
                decoder.begin(&stream.ids)
            };
            rows.iter().map(begin).collect::<Result<Vec<_>>>()
        })?;
        Ok(Self { rows, streams, ropes })
    }

    /// Norms of the columns of what each linear layer of layer `index` reads, by the name of its weight.
    ///
    /// # Errors
    /// Those of candle; a tensor that `base` lacks.
    pub(crate) fn input_norms(
        &self,
        base: &BaseModel,
        index: usize,
    ) -> std::result::Result<BTreeMap<String, Vec<f32>>, TrainError> {
        let sums = ColumnSums::default();
        self.forward(base, index, Some(&sums))?;
        let layer = Architecture::layer_name(index);
        let sums = sums.take().into_iter();
        let norms = sums.map(|(module, sums)| {
            let norms = sums.into_iter().map(|sum| sum.sqrt() as f32).collect();
            (format!("{layer}.{module}.weight"), norms)
        });
        Ok(norms.collect())
    }

    /// Takes the rows through layer `index`.
    ///
    /// # Errors
    /// Errors of [`LayerRun::input_norms`].
    pub(crate) fn advance(&mut self, base: &BaseModel, index: usize) -> std::result::Result<(), TrainError> {
        self.streams = self.forward(base, index, None)?;
        Ok(())
    }

    fn forward(
        &self,
        base: &BaseModel,
        index: usize,
        sums: Option<&ColumnSums>,
    ) -> std::result::Result<Vec<Tensor>, TrainError> {
        with_layers(base, index..index + 1, |decoder| {
            let mut all = Vec::with_capacity(self.rows.len());
            for (row, x) in self.rows.iter().zip(&self.streams) {
                let mut stream = Stream::new(row, None, None, base.device())?;
                stream.pass.sums = sums.cloned();
                let mut x = x.clone();
                for layer in &decoder.layers {
                    x = layer.forward(&x, &stream, &self.ropes, &mut CrossLayer::default())?.0;
                }
                all.push(x);
            }
            Ok(all)
        })
    }
}

/// Calls `run` with a decoder of some of the model's layers.
fn with_layers<R>(
    base: &BaseModel,
    layers: std::ops::Range<usize>,
    run: impl FnOnce(&Decoder) -> Result<R>,
) -> std::result::Result<R, TrainError> {
    let plan = ModelPlan::frozen(base.architecture());
    let parameters = Parameters::zeros(plan.layout.clone(), base.device())?;
    let trainables = Trainables {
        plan: &plan,
        parameters: &parameters,
        adapters: HashMap::new(),
        whole: HashMap::new(),
        replaced: &HashMap::new(),
    };
    Ok(run(&Decoder::of_layers(
        base,
        &trainables,
        base.compute_dtype(),
        layers,
    )?)?)
}
