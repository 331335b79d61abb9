//! A model on paper: its layers without weights, whose passes say what they allocate.
//!
//! Of layers that are alike there is one. The passes are those of a training; what they run on has shapes and no values
//! ([`crate::tensor`]).

use std::collections::HashMap;

use candle_core::{DType, Device, Error, Result};

use super::build::Trainables;
use super::cross_layer::CrossLayer;
use super::decoder::{Decoder, KeptLayer};
use super::layer::Layer;
use super::saved::LayerSaved;
use super::{DropoutKey, RopeTables, Stream};
use crate::base::{BaseModel, compute_dtype};
use crate::data::MicroBatch;
use crate::span;
use crate::span::{Placing, StepPhase};
use crate::tensor::{Ledger, Tensor};
use crate::{Parameters, TrainError};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::plan::{LayerKeep, Memory, ModelPlan};
use peft_tune_core::predict::{ExpertLoad, Host, Segment, Stage, StepModel, StreamShape, Trace};
use peft_tune_core::recipe::Recipe;

/// A recipe's model, a micro-batch and a machine, of which only the sizes matter.
#[derive(Debug)]
pub struct PaperModel {
    plan: ModelPlan,
    host: Host,
    /// How tokens lie on the experts of a mixture.
    load: ExpertLoad,
    /// Of the first layer of each kind.
    decoder: Decoder,
    ropes: RopeTables,
    batch: MicroBatch,
    dropout: Option<DropoutKey>,
    /// The same in F32, where some steps compute in it.
    fp32: Option<Box<Self>>,
}

/// One run of a segment.
struct PaperPass<'a> {
    stream: Stream<'a>,
    ledger: Ledger,
    _placing: Placing,
}

impl PaperPass<'_> {
    /// Keeps all of `saved`.
    fn keep(&self, saved: &LayerSaved) {
        self.ledger.keep(saved.tensors().into_iter().map(|(_, tensor)| tensor));
    }
}

impl PaperModel {
    /// The model that `recipe` trains, on a micro-batch like `stream`.
    ///
    /// # Errors
    /// A recipe that does not fit the model.
    pub fn new(
        architecture: &Architecture,
        recipe: &Recipe,
        host: Host,
        stream: &StreamShape,
    ) -> std::result::Result<Self, TrainError> {
        let own = Self::in_dtype(architecture, recipe, (host, stream), compute_dtype(recipe.precision))?;
        let fp32 = match recipe.precision_schedule.is_none() {
            true => None,
            false => Some(Self::in_dtype(architecture, recipe, (host, stream), DType::F32)?),
        };
        Ok(Self {
            fp32: fp32.map(Box::new),
            ..own
        })
    }

    /// The model with activations in `dtype`.
    fn in_dtype(
        architecture: &Architecture,
        recipe: &Recipe,
        (host, stream): (Host, &StreamShape),
        dtype: DType,
    ) -> std::result::Result<Self, TrainError> {
        let plan = ModelPlan::of_recipe(architecture, recipe)?;
        let decoder = decoder_of(architecture, recipe, &plan, (host.memory(), dtype))?;
        let mut ropes = RopeTables::new(&architecture.ropes, &Device::Cpu);
        ropes.prepare(1)?;
        let dropout = recipe.adapter.as_ref().map_or(0.0, |adapter| adapter.dropout);
        Ok(Self {
            host,
            load: ExpertLoad::default(),
            decoder,
            ropes,
            batch: batch_like(stream),
            dropout: (dropout > 0.0).then(|| DropoutKey::new(dropout, 0, 0, 0)),
            plan,
            fp32: None,
        })
    }

    /// The same model, whose tokens lie on experts as `load` says; evenly where nobody says anything.
    #[must_use]
    pub fn with_load(self, load: ExpertLoad) -> Self {
        Self { load, ..self }
    }

    fn run(&self, segment: Segment) -> Result<Trace> {
        let ledger = Ledger::new(self.host).with_load(self.load);
        let pass = PaperPass {
            stream: Stream::on_paper(&self.batch, self.dropout.clone(), &ledger),
            ledger,
            _placing: Placing::start(),
        };
        let forward = span::phase(StepPhase::Forward);
        let begin = || {
            let x = self.of_stream(&pass.ledger);
            pass.ledger.begin();
            x
        };
        match segment {
            Segment::Embed => {
                let _x = self.decoder.begin(&pass.stream.ids)?;
                Ok(pass.ledger.segment(Stage::Forward))
            }
            Segment::Forward { layer, keep } => {
                let _left = self.forward(layer, keep, begin(), &pass)?;
                Ok(pass.ledger.segment(Stage::Forward))
            }
            Segment::Head => {
                let x = begin();
                let (rstd, d_normed) = self.head(&x, &pass)?;
                drop(forward);
                let _backward = span::phase(StepPhase::Backward);
                let _dx = self.decoder.end_backward(&x, &rstd, d_normed)?;
                drop((x, rstd));
                Ok(pass.ledger.segment(Stage::Forward))
            }
            Segment::Backward { layer, keep, wants_dx } => {
                let (dy, kept) = self.forward(layer, keep, begin(), &pass)?;
                pass.ledger.begin();
                drop(forward);
                let _backward = span::phase(StepPhase::Backward);
                let _dx = self.backward(layer, kept, dy, (&pass, wants_dx))?;
                Ok(pass.ledger.segment(Stage::Backward))
            }
        }
    }

    /// The output of a layer, and what is kept of it.
    fn forward(&self, layer: usize, keep: LayerKeep, x: Tensor, pass: &PaperPass<'_>) -> Result<(Tensor, KeptLayer)> {
        let mut cross = CrossLayer::default();
        let (y, saved) = self.layer(layer)?.forward(&x, &pass.stream, &self.ropes, &mut cross)?;
        let kept = match keep {
            LayerKeep::Nothing => KeptLayer::Nothing,
            LayerKeep::Input | LayerKeep::HostInput => {
                drop(saved);
                pass.ledger.keep([&x]);
                KeptLayer::Input(x)
            }
            LayerKeep::Saved => {
                pass.keep(&saved);
                KeptLayer::Saved(Box::new(saved.held()))
            }
        };
        Ok((y, kept))
    }

    /// The gradient of a layer's input, where it is wanted.
    fn backward(
        &self,
        layer: usize,
        kept: KeptLayer,
        dy: Tensor,
        (pass, wants_dx): (&PaperPass<'_>, bool),
    ) -> Result<Option<Tensor>> {
        let (layer, mut cross) = (self.layer(layer)?, CrossLayer::default());
        cross.is_backward = true;
        let is_recomputed = matches!(kept, KeptLayer::Input(_));
        let Some(saved) = kept.saved(layer, &pass.stream, &self.ropes, &mut cross)? else {
            return Ok(None);
        };
        if is_recomputed {
            pass.keep(&saved);
        }
        layer.backward(saved, dy, &pass.stream, (&self.ropes, &mut cross), wants_dx)
    }

    /// What the last norm keeps of the stream behind the last layer, and the gradient of its result.
    fn head(&self, x: &Tensor, pass: &PaperPass<'_>) -> Result<(Tensor, Tensor)> {
        let (normed, rstd) = self.decoder.end(x)?;
        pass.ledger.keep([x, &rstd]);
        let output = self.decoder.loss(&pass.stream, &normed)?;
        drop(normed);
        let Some(d_normed) = output.d_hidden else {
            candle_core::bail!("a loss without a gradient");
        };
        Ok((rstd, d_normed))
    }

    /// The stream between two layers.
    fn of_stream(&self, ledger: &Ledger) -> Tensor {
        let shape = (self.batch.tokens(), self.plan.architecture.hidden_size);
        ledger.tensor(shape, self.decoder.compute_dtype).into()
    }

    /// The layer that stands for `layer`.
    fn layer(&self, layer: usize) -> Result<&Layer> {
        let kind = self.plan.layers.get(layer);
        let found = kind.and_then(|kind| self.decoder.layers.get(*kind));
        found.ok_or_else(|| Error::Msg(format!("the model has no layer {layer}")))
    }
}

impl StepModel for PaperModel {
    fn trace(&self, segment: Segment) -> std::result::Result<Trace, String> {
        self.run(segment).map_err(|error| error.to_string())
    }

    fn in_fp32(&self) -> &dyn StepModel {
        match &self.fp32 {
            Some(model) => model.as_ref(),
            None => self,
        }
    }
}

/// A decoder of the first layer of each kind, with activations in `dtype`.
fn decoder_of(
    architecture: &Architecture,
    recipe: &Recipe,
    plan: &ModelPlan,
    (memory, dtype): (Memory, DType),
) -> std::result::Result<Decoder, TrainError> {
    let first = |kind: usize| plan.layers.iter().position(|other| *other == kind);
    let layers: Vec<usize> = (0..plan.kinds.len()).filter_map(first).collect();
    let names: Vec<String> = layers
        .iter()
        .map(|layer| format!("{}.", Architecture::layer_name(*layer)))
        .collect();
    let any_layer = Architecture::layer_name(0);
    let of_all_layers = any_layer.trim_end_matches('0');
    let wants = |name: &str| !name.starts_with(of_all_layers) || names.iter().any(|layer| name.starts_with(layer));
    let base = BaseModel::on_paper(architecture, recipe, memory, wants)?;
    let (parameters, replaced) = (Parameters::on_paper(plan.layout.clone())?, HashMap::new());
    let trainables = Trainables {
        plan,
        parameters: &parameters,
        adapters: plan.adapters(),
        whole: plan.whole_slots(),
        replaced: &replaced,
    };
    Decoder::of_layers(&base, &trainables, dtype, layers)
}

/// A micro-batch of documents of these lengths, with as many targets.
fn batch_like(stream: &StreamShape) -> MicroBatch {
    let mut batch = MicroBatch::new();
    for documents in &stream.documents {
        let ids = vec![0; documents.tokens];
        for _ in 0..documents.count.round() as usize {
            batch.push(&ids, std::iter::empty());
        }
    }
    let targets = (stream.targets.round() as usize).min(batch.tokens());
    batch.targets[..targets].fill(0);
    batch
}

#[cfg(test)]
mod tests;
