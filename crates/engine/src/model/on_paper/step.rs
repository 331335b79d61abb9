//! A step of a model on paper, on one micro-batch.

use candle_core::{Error, Result};

use super::{LayerKeys, PaperModel};
use crate::model::cross_layer::CrossLayer;
use crate::model::decoder::{Decoder, KeptLayer};
use crate::model::layer::Layer;
use crate::model::paper_batch::PaperBatch;
use crate::model::saved::LayerSaved;
use crate::model::{AdapterPass, RowPart, Stream};
use crate::span;
use crate::span::{Placing, StepPhase};
use crate::tensor::{Ledger, PaperTensor, Tensor};
use peft_tune_core::plan::{KeySharing, LayerKeep, first_like};
use peft_tune_core::predict::{ExpertLoad, Segment, Stage, StepModel, Trace};

/// A step of a model on paper: runs one segment at a time on a micro-batch, and says what it allocates and computes.
#[derive(Debug)]
pub(crate) struct PaperStep<'a> {
    model: &'a PaperModel,
    decoder: &'a Decoder,
    batch: PaperBatch,
    /// How tokens lie on the experts of a mixture.
    load: ExpertLoad,
    /// A step like it in F32, where some compute in it.
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
        self.ledger.keep(saved.tensors());
    }
}

impl<'a> PaperStep<'a> {
    pub(super) fn new(model: &'a PaperModel, batch: PaperBatch, load: ExpertLoad) -> Self {
        let fp32 = model.fp32.as_ref().map(|decoder| Self {
            model,
            decoder,
            batch: batch.clone(),
            load,
            fp32: None,
        });
        Self {
            model,
            decoder: &model.decoder,
            batch,
            load,
            fp32: fp32.map(Box::new),
        }
    }

    /// The stream of a run, whose bytes `ledger` has.
    fn stream(&self, ledger: &Ledger) -> Stream<'_> {
        let trainings = &self.model.trainings;
        if !self.model.is_group {
            let dropout = trainings.first().and_then(|one| one.dropout.clone());
            return Stream::on_paper(&self.batch, dropout, ledger);
        }
        let parts = trainings.iter().zip(&self.batch.parts).map(|(one, part)| RowPart {
            rows: part.rows.clone(),
            pass: AdapterPass {
                dropout: one.dropout.clone(),
                ..AdapterPass::default()
            },
        });
        Stream::on_paper(&self.batch, None, ledger).in_parts(parts.collect())
    }

    fn run(&self, segment: Segment) -> Result<Trace> {
        let ledger = Ledger::new(self.model.host).with_load(self.load);
        let pass = PaperPass {
            stream: self.stream(&ledger),
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
            Segment::Refresh { layer } => {
                self.layer(layer)?.refresh(&pass.stream.ids)?;
                Ok(pass.ledger.segment(Stage::Forward))
            }
            Segment::Embed => {
                let x = self.decoder.begin_embed(&pass.stream.ids)?;
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
                let mut trainings = self.model.trainings.iter();
                trainings.try_for_each(|training| training.update.run(&pass.ledger))?;
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
        let (y, saved) = self.layer(layer)?.forward(&x, &pass.stream, &self.model.ropes, cross)?;
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
        cross.retire(first_like(&self.model.layers, layer));
        let layer = self.layer(layer)?;
        let is_recomputed = matches!(kept, KeptLayer::Input(_));
        let Some(saved) = kept.saved(layer, &pass.stream, &self.model.ropes, cross)? else {
            return Ok(None);
        };
        if is_recomputed {
            pass.keep(&saved);
        }
        layer.backward(saved, dy, &pass.stream, (&self.model.ropes, cross), wants_dx)
    }

    /// Tensors of others that a layer reads beside the stream. Their bytes were counted where it was made.
    fn cross_layer(&self, layer: usize, ledger: &Ledger) -> Result<CrossLayer> {
        let uncounted = |shape: &[usize]| ledger.uncounted(shape, self.decoder.compute_dtype);
        let mut cross = CrossLayer::new(self.of_inputs(uncounted));
        if let Some(source) = self.layer(layer)?.mixer.source() {
            let [k, v] = self.keys_and_values(self.keys(layer)?, uncounted);
            cross.share(source, &k, &v);
        }
        Ok(cross)
    }

    /// Gives a layer the gradients of keys and values that the readers behind it have left.
    fn add_gradients_of_readers(&self, layer: usize, cross: &mut CrossLayer, ledger: &Ledger) -> Result<()> {
        let keys = self.keys(layer)?;
        let source = match keys.sharing {
            KeySharing::Source { gradients: true } => Some(first_like(&self.model.layers, layer)),
            KeySharing::Reader {
                gradients: true,
                last: false,
            } => self.layer(layer)?.mixer.source(),
            KeySharing::None | KeySharing::Source { .. } | KeySharing::Reader { .. } => None,
        };
        let Some(source) = source else { return Ok(()) };
        let gradients = self.keys_and_values(keys, |shape| ledger.tensor(shape, self.decoder.compute_dtype));
        cross.add_gradients(source, gradients)
    }

    fn keys(&self, layer: usize) -> Result<LayerKeys> {
        let keys = self.model.sizes.layers.get(layer).copied();
        keys.ok_or_else(|| no_layer(layer))
    }

    /// Keys and values as a layer attends to them.
    fn keys_and_values(&self, keys: LayerKeys, tensor: impl Fn(&[usize]) -> PaperTensor) -> [Tensor; 2] {
        let (tokens, heads) = (self.batch.tokens(), keys.heads);
        [heads.width, heads.value].map(|width| tensor(&[tokens, heads.key, width]).into())
    }

    /// The inputs of all layers beside the stream, where there are some.
    fn of_inputs(&self, tensor: impl Fn(&[usize]) -> PaperTensor) -> Option<Tensor> {
        let width = self.model.sizes.inputs?;
        Some(tensor(&[self.batch.tokens(), width]).into())
    }

    /// Tensors that the last norm keeps of the stream behind the last layer, and the gradient of its result.
    fn head(&self, x: &Tensor, pass: &PaperPass<'_>) -> Result<(Tensor, Tensor)> {
        let (normed, rstd) = self.decoder.end(x)?;
        pass.ledger.keep([x, &rstd]);
        let d_normed = match self.model.is_group {
            false => self.decoder.loss(&pass.stream, &normed)?.d_hidden,
            true => {
                let scales = vec![pass.stream.gradient_scale; self.batch.parts.len()];
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
        let shape = (self.batch.tokens(), self.model.sizes.hidden);
        ledger.tensor(shape, self.decoder.compute_dtype).into()
    }

    /// The layer that stands for `layer`.
    fn layer(&self, layer: usize) -> Result<&Layer> {
        let number = self.model.layers.get(layer);
        let found = number.and_then(|number| self.decoder.layers.get(*number));
        found.ok_or_else(|| no_layer(layer))
    }
}

fn no_layer(layer: usize) -> Error {
    Error::Msg(format!("the model has no layer {layer}"))
}

impl StepModel for PaperStep<'_> {
    fn trace(&self, segment: Segment) -> std::result::Result<Trace, String> {
        self.run(segment).map_err(|error| error.to_string())
    }

    fn in_fp32(&self) -> &dyn StepModel {
        self.fp32.as_deref().unwrap_or(self)
    }
}
