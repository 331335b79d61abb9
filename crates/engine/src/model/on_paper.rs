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
use super::{AdapterPass, DropoutKey, RopeTables, RowPart, Stream};
use crate::base::{BaseModel, compute_dtype};
use crate::data::MicroBatch;
use crate::optimizer::{Optimizer, unscale};
use crate::span;
use crate::span::{Placing, StepPhase};
use crate::tensor::{Ledger, PaperTensor, Tensor};
use crate::{Parameters, TrainError};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::plan::{KeySharing, LayerKeep, Memory, ModelPlan, alike_layers};
use peft_tune_core::predict::{ExpertLoad, Host, Segment, Stage, StepModel, StreamShape, Trace};
use peft_tune_core::recipe::{Precision, Recipe};

/// The model of one recipe, or of several that train together, a micro-batch and a machine, of which only the sizes matter.
#[derive(Debug)]
pub struct PaperModel {
    /// Of the training whose gradients reach furthest down.
    plan: ModelPlan,
    host: Host,
    /// How tokens lie on the experts of a mixture.
    load: ExpertLoad,
    /// Numbers of [`alike_layers`].
    layers: Vec<usize>,
    /// Of the first layer of each number.
    decoder: Decoder,
    ropes: RopeTables,
    batch: MicroBatch,
    /// Of a training that shares with nobody.
    dropout: Option<DropoutKey>,
    /// The same in F32, where some steps compute in it.
    fp32: Option<Box<Self>>,
    /// The rows of each of several trainings.
    parts: Vec<RowPart>,
    updates: Vec<PaperUpdate>,
}

/// The update of one training.
#[derive(Debug)]
struct PaperUpdate {
    optimizer: Optimizer,
    elements: usize,
    is_unscaled: bool,
    is_on_host: bool,
}

impl PaperUpdate {
    fn of(plan: &ModelPlan, recipe: &Recipe) -> Result<Self> {
        Ok(Self {
            optimizer: Optimizer::on_paper(&recipe.optimizer, &plan.layout)?,
            elements: plan.layout.elements(),
            is_unscaled: recipe.precision == Precision::Fp16,
            is_on_host: !recipe.optimizer.offload.is_none(),
        })
    }

    /// Where a GPU's host updates, the GPU takes nothing; its kernels unscale as they clip.
    fn run(&self, ledger: &Ledger) -> Result<()> {
        let on_gpu = ledger.host().memory() == Memory::Device;
        if self.is_unscaled && !on_gpu {
            unscale(&ledger.uncounted(self.elements, DType::F32).into(), 1.0)?;
        }
        match on_gpu && self.is_on_host {
            true => Ok(()),
            false => self.optimizer.update_on_paper(ledger),
        }
    }
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
        let layers = alike_layers(&[&plan]);
        let base = base_of(architecture, recipe, host.memory(), &layers)?;
        Ok(Self {
            host,
            load: ExpertLoad::default(),
            decoder: decoder_of(&base, &plan, (&layers, dtype))?,
            layers,
            ropes: ropes_of(architecture)?,
            batch: batch_like(stream),
            dropout: dropout_of(recipe),
            parts: Vec::new(),
            updates: vec![PaperUpdate::of(&plan, recipe)?],
            plan,
            fp32: None,
        })
    }

    /// The model that several `recipes` train together, each on a micro-batch of its own.
    ///
    /// # Errors
    /// No recipes; those that cannot train together or do not fit the model; one that cannot be run on paper yet.
    pub fn of_group(
        architecture: &Architecture,
        recipes: &[(&Recipe, &StreamShape)],
        host: Host,
    ) -> std::result::Result<Self, TrainError> {
        let Some((first, _)) = recipes.first() else {
            return Err(Error::Msg("there is no training to share passes".to_owned()).into());
        };
        let (mut plans, mut updates) = (Vec::new(), Vec::new());
        let (mut parts, mut batch) = (Vec::new(), MicroBatch::new());
        for (recipe, stream) in recipes {
            recipe.check_in_group()?;
            recipe.check_shares_base(first)?;
            let plan = ModelPlan::of_recipe(architecture, recipe)?;
            updates.push(PaperUpdate::of(&plan, recipe)?);
            plans.push(plan);
            let start = batch.tokens();
            batch.append(&batch_like(stream));
            parts.push(RowPart {
                rows: start..batch.tokens(),
                pass: AdapterPass {
                    dropout: dropout_of(recipe),
                    ..AdapterPass::default()
                },
            });
        }
        let layers = alike_layers(&plans.iter().collect::<Vec<_>>());
        let (base, dtype) = (
            base_of(architecture, first, host.memory(), &layers)?,
            compute_dtype(first.precision),
        );
        let members = plans.iter().map(|plan| decoder_of(&base, plan, (&layers, dtype)));
        let members = members.collect::<std::result::Result<Vec<_>, _>>()?;
        let frozen = decoder_of(&base, &ModelPlan::frozen(architecture), (&layers, dtype))?;
        let lowest = plans.into_iter().min_by_key(ModelPlan::first_on_tape);
        Ok(Self {
            host,
            decoder: frozen.joined(&members.iter().collect::<Vec<_>>())?,
            layers,
            ropes: ropes_of(architecture)?,
            batch,
            dropout: None,
            parts,
            updates,
            load: ExpertLoad::default(),
            fp32: None,
            plan: lowest.unwrap_or_else(|| ModelPlan::frozen(architecture)),
        })
    }

    /// The same model, whose tokens lie on experts as `load` says; evenly where nobody says anything.
    #[must_use]
    pub fn with_load(self, load: ExpertLoad) -> Self {
        Self { load, ..self }
    }

    fn run(&self, segment: Segment) -> Result<Trace> {
        let ledger = Ledger::new(self.host).with_load(self.load);
        let stream = Stream::on_paper(&self.batch, self.dropout.clone(), &ledger);
        let pass = PaperPass {
            stream: stream.in_parts(self.parts.clone()),
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
                let x = self.decoder.begin(&pass.stream.ids)?;
                let cross = self.decoder.cross_layer(&x, &pass.stream)?;
                pass.ledger.keep(cross.kept());
                Ok(pass.ledger.segment(Stage::Forward))
            }
            Segment::Forward { layer, keep } => {
                let mut cross = self.cross_layer(layer, &pass.ledger)?;
                let _left = self.forward(layer, keep, begin(), (&pass, &mut cross))?;
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
                let mut cross = self.cross_layer(layer, &pass.ledger)?;
                let (dy, kept) = self.forward(layer, keep, begin(), (&pass, &mut cross))?;
                self.add_gradients_of_readers(layer, &mut cross, &pass.ledger)?;
                pass.ledger.begin();
                drop(forward);
                let _backward = span::phase(StepPhase::Backward);
                let _dx = self.backward(layer, kept, dy, (&pass, &mut cross), wants_dx)?;
                Ok(pass.ledger.segment(Stage::Backward))
            }
            Segment::EmbedBackward => {
                let inputs = self.of_inputs(|shape| pass.ledger.tensor(shape, self.decoder.compute_dtype));
                pass.ledger.keep(&inputs);
                let trains = self.decoder.inputs.as_ref().is_some_and(|inputs| inputs.trains);
                let gradients = trains.then(|| inputs.as_ref().map(Tensor::zeros_like)).flatten();
                let dx = self
                    .decoder
                    .embedding
                    .is_trained()
                    .then(|| self.of_stream(&pass.ledger));
                pass.ledger.begin();
                drop(forward);
                let _backward = span::phase(StepPhase::Backward);
                let mut cross = CrossLayer::new(inputs);
                cross.input_gradients = gradients.transpose()?;
                self.decoder.backward_embed(&pass.stream, cross, dx)?;
                Ok(pass.ledger.segment(Stage::Backward))
            }
            Segment::Update => {
                drop(forward);
                let _optimizer = span::phase(StepPhase::Optimizer);
                self.updates.iter().try_for_each(|update| update.run(&pass.ledger))?;
                Ok(pass.ledger.segment(Stage::Optimizer))
            }
        }
    }

    /// The output of a layer, and what is kept of it.
    fn forward(
        &self,
        layer: usize,
        keep: LayerKeep,
        x: Tensor,
        (pass, cross): (&PaperPass<'_>, &mut CrossLayer),
    ) -> Result<(Tensor, KeptLayer)> {
        let (y, saved) = self.layer(layer)?.forward(&x, &pass.stream, &self.ropes, cross)?;
        pass.ledger.keep(cross.kept());
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
        (pass, cross): (&PaperPass<'_>, &mut CrossLayer),
        wants_dx: bool,
    ) -> Result<Option<Tensor>> {
        cross.is_backward = true;
        cross.retire(self.first_like(layer));
        let layer = self.layer(layer)?;
        let is_recomputed = matches!(kept, KeptLayer::Input(_));
        let Some(saved) = kept.saved(layer, &pass.stream, &self.ropes, cross)? else {
            return Ok(None);
        };
        if is_recomputed {
            pass.keep(&saved);
        }
        layer.backward(saved, dy, &pass.stream, (&self.ropes, cross), wants_dx)
    }

    /// What a layer reads of others beside the stream. Its bytes were counted where it was made.
    fn cross_layer(&self, layer: usize, ledger: &Ledger) -> Result<CrossLayer> {
        let uncounted = |shape: &[usize]| ledger.uncounted(shape, self.decoder.compute_dtype);
        let mut cross = CrossLayer::new(self.of_inputs(uncounted));
        if let Some(source) = self.layer(layer)?.mixer.source() {
            let [k, v] = self.keys_and_values(layer, uncounted);
            cross.share(source, &k, &v);
        }
        Ok(cross)
    }

    /// Gives a layer the gradients of keys and values that the readers behind it have left.
    fn add_gradients_of_readers(&self, layer: usize, cross: &mut CrossLayer, ledger: &Ledger) -> Result<()> {
        let source = match self.plan.layer(layer).sharing {
            KeySharing::Source { gradients: true } => Some(self.first_like(layer)),
            KeySharing::Reader {
                gradients: true,
                last: false,
            } => self.layer(layer)?.mixer.source(),
            KeySharing::None | KeySharing::Source { .. } | KeySharing::Reader { .. } => None,
        };
        let Some(source) = source else { return Ok(()) };
        let gradients = self.keys_and_values(layer, |shape| ledger.tensor(shape, self.decoder.compute_dtype));
        cross.add_gradients(source, gradients)
    }

    /// Keys and values as a layer attends to them.
    fn keys_and_values(&self, layer: usize, tensor: impl Fn(&[usize]) -> PaperTensor) -> [Tensor; 2] {
        let (tokens, heads) = (self.batch.tokens(), self.plan.layer(layer).heads);
        [heads.width, heads.value].map(|width| tensor(&[tokens, heads.key, width]).into())
    }

    /// The inputs of all layers beside the stream, where there are some.
    fn of_inputs(&self, tensor: impl Fn(&[usize]) -> PaperTensor) -> Option<Tensor> {
        let inputs = self.plan.architecture.layer_inputs?;
        let width = inputs.width * self.layers.len();
        Some(tensor(&[self.batch.tokens(), width]).into())
    }

    /// What the last norm keeps of the stream behind the last layer, and the gradient of its result.
    fn head(&self, x: &Tensor, pass: &PaperPass<'_>) -> Result<(Tensor, Tensor)> {
        let (normed, rstd) = self.decoder.end(x)?;
        pass.ledger.keep([x, &rstd]);
        let d_normed = match self.parts.as_slice() {
            [] => self.decoder.loss(&pass.stream, &normed)?.d_hidden,
            parts => {
                let scales = vec![pass.stream.gradient_scale; parts.len()];
                self.decoder.losses_of_parts(&pass.stream, &normed, &scales)?.1
            }
        };
        drop(normed);
        let Some(d_normed) = d_normed else {
            candle_core::bail!("a loss without a gradient");
        };
        Ok((rstd, d_normed))
    }

    /// The stream between two layers.
    fn of_stream(&self, ledger: &Ledger) -> Tensor {
        let shape = (self.batch.tokens(), self.plan.architecture.hidden_size);
        ledger.tensor(shape, self.decoder.compute_dtype).into()
    }

    /// The first layer that is like `layer`.
    fn first_like(&self, layer: usize) -> usize {
        let number = self.layers.get(layer);
        let found = self.layers.iter().position(|other| Some(other) == number);
        found.unwrap_or(layer)
    }

    /// The layer that stands for `layer`.
    fn layer(&self, layer: usize) -> Result<&Layer> {
        let number = self.layers.get(layer);
        let found = number.and_then(|number| self.decoder.layers.get(*number));
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

fn dropout_of(recipe: &Recipe) -> Option<DropoutKey> {
    let dropout = recipe.adapter.as_ref().map_or(0.0, |adapter| adapter.dropout);
    (dropout > 0.0).then(|| DropoutKey::new(dropout, 0, 0, 0))
}

fn ropes_of(architecture: &Architecture) -> Result<RopeTables> {
    let mut ropes = RopeTables::new(&architecture.ropes, &Device::Cpu);
    ropes.prepare(1)?;
    Ok(ropes)
}

/// The first layer of each number.
fn firsts(layers: &[usize]) -> impl Iterator<Item = usize> {
    let numbered = layers.iter().enumerate();
    let is_first = |(index, number): &(usize, &usize)| !layers[..*index].contains(number);
    numbered.filter(is_first).map(|(index, _)| index)
}

/// The weights of these layers, and all that stand beside layers.
fn base_of(
    architecture: &Architecture,
    recipe: &Recipe,
    memory: Memory,
    layers: &[usize],
) -> std::result::Result<BaseModel, TrainError> {
    let names: Vec<String> = firsts(layers)
        .map(|layer| format!("{}.", Architecture::layer_name(layer)))
        .collect();
    let any_layer = Architecture::layer_name(0);
    let of_all_layers = any_layer.trim_end_matches('0');
    let wants = |name: &str| !name.starts_with(of_all_layers) || names.iter().any(|layer| name.starts_with(layer));
    BaseModel::on_paper(architecture, recipe, memory, wants)
}

/// A decoder of the first layer of each number, with activations in `dtype`.
fn decoder_of(
    base: &BaseModel,
    plan: &ModelPlan,
    (layers, dtype): (&[usize], DType),
) -> std::result::Result<Decoder, TrainError> {
    let (parameters, replaced) = (Parameters::on_paper(plan.layout.clone())?, HashMap::new());
    let trainables = Trainables {
        plan,
        parameters: &parameters,
        adapters: plan.adapters(),
        whole: plan.whole_slots(),
        replaced: &replaced,
    };
    Decoder::of_layers(base, &trainables, dtype, firsts(layers))
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
