//! The forward and backward passes of micro-batches: launched op by op, or replayed from CUDA graphs.
//!
//! A graph is made of one micro-batch's passes. All that differs between micro-batches of as many tokens and targets lies in memory that
//! is written before it is launched ([`StreamBuffer`]), so that it serves them all, in any step. Shapes that come again go this way:
//!
//! | time | what happens |
//! |---|---|
//! | first | launched |
//! | second | launched, with what candle uploads kept for the third ([`gpu::warm_up`]) |
//! | third | captured, and the graph launched |
//! | later | the graph is launched |
//!
//! Where a capture or a launch of a graph fails, everything is launched op by op from then on: nothing has been done by then.

use candle_core::{Device, Result};

use super::stopwatch::{Laps, Stopwatch};
use crate::data::MicroBatch;
use crate::model::{Decoder, DropoutKey, Keep, RopeTables, Stream, StreamBuffer};
use crate::span;
use crate::span::StepPhase;
use peft_tune_core::plan::GradientsReady;
use peft_tune_core::recipe::Checkpointing;
use peft_tune_kernels::Kernels;
use peft_tune_kernels::gpu;
use peft_tune_kernels::gpu::Graph;
use peft_tune_kernels::ops::loss_head::Sums;

/// Shapes that are remembered: data whose rows differ in length bring new ones all the time.
const MOST_SHAPES: usize = 64;
/// Graphs that are kept. Shapes that come again after so many others have one are launched op by op.
const MOST_GRAPHS: usize = 8;

/// Parts of a step that are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lap {
    Forward,
    Backward,
    /// Forward and backward pass, from a graph.
    Replay,
    /// Sum of the gradients of all ranks.
    Link,
    Optimizer,
}

/// Model that the passes run on.
pub(crate) struct PassModel<'a> {
    pub decoder: &'a Decoder,
    /// Rope tables, prepared for the micro-batch.
    pub ropes: &'a RopeTables,
    pub checkpointing: Checkpointing,
}

/// Micro-batch and factors that passes run with.
#[derive(Clone, Debug)]
pub(crate) struct PassInput<'a> {
    pub batch: &'a MicroBatch,
    pub dropout: Option<DropoutKey>,
    pub gradient_scale: f32,
}

/// How passes run on one device.
#[derive(Debug)]
pub(crate) struct Passes {
    device: Device,
    /// Graphs of passes; absent where all is launched op by op.
    graphs: Option<Graphs>,
    replayed: u64,
    /// Forward's part of both passes when they were last launched op by op.
    forward_share: f64,
}

#[derive(Debug, Default)]
struct Graphs {
    /// The one that was met last comes last.
    known: Vec<Known>,
}

#[derive(Debug)]
struct Known {
    shape: Shape,
    state: State,
}

/// Numbers that decide which launches a pass consists of, for one model and one recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    tokens: usize,
    targets: usize,
    /// Version of the rope tables that the launches read.
    ropes: u64,
}

#[derive(Debug)]
enum State {
    Seen,
    WarmedUp,
    Captured(Box<Captured>),
}

#[derive(Debug)]
struct Captured {
    graph: Graph,
    place: StreamBuffer,
    /// Micro-batch that the capture held in the host's memory, for the tests' emulation.
    batch: MicroBatch,
    dropout: Option<DropoutKey>,
    gradient_scale: f32,
}

/// Follower that is told how far a backward pass has come.
pub(crate) type Follower<'a> = dyn FnMut(GradientsReady) -> Result<()> + 'a;

/// Treatment of a micro-batch.
enum Way {
    Launch,
    WarmUp,
    Replay,
}

impl PassModel<'_> {
    /// Runs forward and backward pass: adds the gradients, and returns what the loss head found.
    fn run(
        &self,
        stream: &Stream<'_>,
        lap: &mut dyn FnMut(Lap) -> Result<()>,
        follower: &mut Follower<'_>,
    ) -> Result<Sums> {
        let span = span::phase(StepPhase::Forward);
        let keep = Keep::ForBackward(self.checkpointing);
        let (normed, tape) = self.decoder.forward(stream, self.ropes, keep)?;
        let output = self.decoder.loss(stream, &normed)?;
        drop(normed);
        lap(Lap::Forward)?;
        drop(span);
        let _span = span::phase(StepPhase::Backward);
        if let Some(d_normed) = output.d_hidden {
            self.decoder.backward(stream, self.ropes, (tape, d_normed), follower)?;
        } else {
            // Other ranks go down.
            self.decoder.gather_backward()?;
        }
        lap(Lap::Backward)?;
        Ok(output.sums)
    }
}

impl<'a> PassInput<'a> {
    /// Makes the stream in memory of the device that nobody else uses.
    fn stream(&self, device: &Device) -> Result<Stream<'a>> {
        let _span = span::phase(StepPhase::HostToDevice);
        Stream::new(self.batch, self.dropout.clone(), Some(self.gradient_scale), device)
    }
}

impl Passes {
    /// Passes on `device`, replayed where `form` asks for it and it can be.
    pub(crate) fn new(device: &Device, checkpointing: Checkpointing, form: Kernels) -> Self {
        let wanted = form == Kernels::Graphs && gpu::has_graphs(device);
        let has_host_copies = checkpointing == Checkpointing::Offload;
        if wanted && has_host_copies {
            tracing::warn!("`gradient_checkpointing: offload` copies to the host in each pass: no CUDA graphs");
        }
        Self {
            device: device.clone(),
            graphs: (wanted && !has_host_copies).then(Graphs::default),
            replayed: 0,
            forward_share: 0.0,
        }
    }

    /// Micro-batches whose passes were replayed from a graph.
    pub(crate) fn replayed(&self) -> u64 {
        self.replayed
    }

    /// Runs as [`run`](Self::run) does, launched op by op, and tells `follower` how far the backward pass has come.
    ///
    /// # Errors
    /// Those of the ops and of `follower`, memory.
    pub(crate) fn run_followed(
        &self,
        model: &PassModel<'_>,
        input: &PassInput<'_>,
        clock: &mut Stopwatch<Lap>,
        follower: &mut Follower<'_>,
    ) -> Result<Sums> {
        let stream = input.stream(&self.device)?;
        model.run(&stream, &mut |lap| clock.lap(lap), follower)
    }

    /// Adds the gradients of a micro-batch, and returns what the loss head found.
    ///
    /// # Errors
    /// Those of the ops, memory. A graph that cannot be made or launched is not an error.
    pub(crate) fn run(
        &mut self,
        model: &PassModel<'_>,
        input: &PassInput<'_>,
        clock: &mut Stopwatch<Lap>,
    ) -> Result<Sums> {
        let shape = Shape {
            tokens: input.batch.tokens(),
            targets: input.batch.target_tokens(),
            ropes: model.ropes.version(),
        };
        let way = self.graphs.as_mut().map_or(Way::Launch, |graphs| graphs.meet(shape));
        match way {
            Way::Launch => self.launch(model, input, clock),
            Way::WarmUp => gpu::warm_up(&self.device, || self.launch(model, input, clock)),
            Way::Replay => match self.replay(model, input) {
                Ok(sums) => {
                    self.replayed += 1;
                    clock.lap(Lap::Replay)?;
                    Ok(sums)
                }
                Err(error) => {
                    tracing::warn!(%error, "no CUDA graph: steps are launched op by op from here on");
                    self.graphs = None;
                    self.launch(model, input, clock)
                }
            },
        }
    }

    fn launch(&self, model: &PassModel<'_>, input: &PassInput<'_>, clock: &mut Stopwatch<Lap>) -> Result<Sums> {
        self.run_followed(model, input, clock, &mut |_| Ok(()))
    }

    /// Launches the graph of the shape that was met last, which is captured where there is none yet.
    fn replay(&mut self, model: &PassModel<'_>, input: &PassInput<'_>) -> Result<Sums> {
        let Some(known) = self.graphs.as_mut().and_then(|graphs| graphs.known.last_mut()) else {
            candle_core::bail!("no shape has been met");
        };
        if !matches!(known.state, State::Captured(_)) {
            known.state = State::Captured(Box::new(Captured::new(model, input, &self.device)?));
            tracing::info!(shape = ?known.shape, "captured a CUDA graph");
        }
        match &known.state {
            State::Captured(captured) => captured.replay(model, input),
            _ => candle_core::bail!("nothing was captured"),
        }
    }

    /// Seconds of forward and backward passes. Those that were replayed are counted by what forward took of both when they were last
    /// launched op by op.
    pub(crate) fn seconds(&mut self, laps: &Laps<Lap>) -> (f64, f64) {
        let of = |lap| laps.seconds(lap);
        let (forward, backward, replayed) = (of(Lap::Forward), of(Lap::Backward), of(Lap::Replay));
        if forward > 0.0 {
            self.forward_share = forward / (forward + backward);
        }
        let share = self.forward_share;
        (forward + share * replayed, backward + (1.0 - share) * replayed)
    }
}

impl Graphs {
    /// Takes note of a micro-batch's shape, which is then the last of `known`.
    fn meet(&mut self, shape: Shape) -> Way {
        // Tables that were made again are read by nobody any more.
        self.known.retain(|known| known.shape.ropes == shape.ropes);
        let captured = |known: &Known| matches!(known.state, State::Captured(_));
        let graphs = self.known.iter().filter(|known| captured(known)).count();
        let Some(index) = self.known.iter().position(|known| known.shape == shape) else {
            if self.known.len() >= MOST_SHAPES
                && let Some(oldest) = self.known.iter().position(|known| !captured(known))
            {
                self.known.remove(oldest);
            }
            self.known.push(Known {
                shape,
                state: State::Seen,
            });
            return Way::Launch;
        };
        let mut known = self.known.remove(index);
        let way = match known.state {
            State::Seen => {
                known.state = State::WarmedUp;
                Way::WarmUp
            }
            // Ops that are recorded have events around them, which tell nothing in a graph.
            _ if span::handle().is_some() => Way::Launch,
            State::WarmedUp if graphs >= MOST_GRAPHS => Way::Launch,
            _ => Way::Replay,
        };
        self.known.push(known);
        way
    }
}

impl Captured {
    fn new(model: &PassModel<'_>, input: &PassInput<'_>, device: &Device) -> Result<Self> {
        let place = StreamBuffer::new(input.batch, device)?;
        let stream = Stream::at(&place, input.batch, input.dropout.clone(), Some(input.gradient_scale));
        let graph = Graph::capture(device, || {
            model.run(&stream, &mut |_| Ok(()), &mut |_| Ok(())).map(drop)
        })?;
        Ok(Self {
            graph,
            place,
            batch: input.batch.clone(),
            dropout: input.dropout.clone(),
            gradient_scale: input.gradient_scale,
        })
    }

    fn replay(&self, model: &PassModel<'_>, input: &PassInput<'_>) -> Result<Sums> {
        let (dropout, scale) = (input.dropout.clone(), Some(input.gradient_scale));
        Stream::onto(&self.place, input.batch, dropout, scale)?;
        self.graph.launch(|| {
            let stream = Stream::at(
                &self.place,
                &self.batch,
                self.dropout.clone(),
                Some(self.gradient_scale),
            );
            model.run(&stream, &mut |_| Ok(()), &mut |_| Ok(())).map(drop)
        })?;
        self.place.found()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::data::Document;
    use crate::optimizer::Optimizer;
    use crate::training::update_pass::UpdatePass;
    use crate::{BaseModel, Trainer};
    use peft_tune_core::architecture::Architecture;
    use peft_tune_core::recipe::{AdapterSettings, DataSettings, OptimizerKind, Precision, Recipe};
    use peft_tune_kernels::gpu::{emulated, has_compiler};

    fn recipe(precision: Precision) -> Recipe {
        let mut recipe = Recipe::new("random", DataSettings::default());
        recipe.precision = precision;
        recipe.adapter = Some(AdapterSettings {
            rank: 2,
            dropout: 0.3,
            ..AdapterSettings::default()
        });
        recipe.optimizer.kind = OptimizerKind::AdamW;
        recipe.optimizer.learning_rate = 1e-2;
        recipe
    }

    fn trainer(recipe: &Recipe) -> Trainer {
        let text = r#"{"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 23, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 64, "head_dim": 8, "rope_theta": 10000.0}"#;
        let architecture = Architecture::from_json(Path::new("test"), text).unwrap();
        let base = BaseModel::random(architecture, 1, recipe.precision, &Device::Cpu).unwrap();
        Trainer::new(Arc::new(base), recipe, 100).unwrap()
    }

    /// Documents of these lengths, with other tokens for each seed.
    fn batch(seed: u32, lengths: &[usize]) -> MicroBatch {
        let mut state = seed;
        let mut token = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % 23
        };
        let document = |length: &usize| {
            let input_ids: Vec<u32> = (0..*length).map(|_| token()).collect();
            let labels = input_ids.iter().map(|id| i64::from(*id)).collect();
            Document { input_ids, labels }
        };
        let documents: Vec<Document> = lengths.iter().map(document).collect();
        MicroBatch::from_documents(&documents)
    }

    /// Global batches of one or two micro-batches of 8 tokens and 6 targets, and one that is longer than the rest.
    fn global_batches() -> Vec<Vec<MicroBatch>> {
        let mut all: Vec<Vec<MicroBatch>> = (0..5)
            .map(|step| vec![batch(10 + step, &[5, 3]), batch(20 + step, &[4, 4])])
            .collect();
        all.insert(3, vec![batch(1, &[3, 5])]);
        all.insert(4, vec![batch(2, &[9, 2]), batch(3, &[2, 6])]);
        all
    }

    /// Loss and norm of each step, and how many passes and updates were replayed.
    fn trained(recipe: &Recipe, replaying: bool) -> (Vec<(f64, f64)>, [u64; 2]) {
        let mut trainer = trainer(recipe);
        if replaying {
            trainer.own.passes = Passes::new(&Device::Cpu, recipe.gradient_checkpointing, Kernels::Graphs);
            let layout = &trainer.parameters().layout;
            let optimizer = Optimizer::new(&recipe.optimizer, layout, &Device::Cpu).unwrap();
            trainer.updates = UpdatePass::new(optimizer, &recipe.optimizer, &Device::Cpu, Kernels::Graphs);
        }
        let step = |batches: &Vec<MicroBatch>| {
            let event = trainer.step(batches).unwrap();
            assert!(event.seconds.forward > 0.0 && event.seconds.backward > 0.0);
            (event.loss, event.grad_norm)
        };
        let steps = global_batches().iter().map(step).collect();
        (steps, [trainer.replayed_passes(), trainer.replayed_updates()])
    }

    #[test]
    fn replayed_passes_give_what_launched_ones_do_to_the_last_bit() {
        if !has_compiler() {
            return;
        }
        // fp16 also changes the loss by its own scale.
        for precision in [Precision::Fp32, Precision::Fp16] {
            let mut recipe = recipe(precision);
            for checkpointing in [Checkpointing::None, Checkpointing::Full] {
                recipe.gradient_checkpointing = checkpointing;
                let (launched, none) = emulated(|| trained(&recipe, false));
                let (replayed, some) = emulated(|| trained(&recipe, true));
                assert_eq!(launched, replayed, "{precision:?} {checkpointing:?}");
                // All but the first two of a shape, and the one that has no other like it; the rope's tables grow with the longest document,
                // which makes all shapes new.
                let updates = global_batches().len() as u64 - 1;
                assert_eq!((none, some), ([0, 0], [8, updates]), "{precision:?} {checkpointing:?}");
            }
        }
    }

    #[test]
    fn shapes_beyond_those_that_have_graphs_are_launched() {
        let mut graphs = Graphs::default();
        let shape = |tokens, ropes| Shape {
            tokens,
            targets: 1,
            ropes,
        };
        let replays = |graphs: &mut Graphs, shape| matches!(graphs.meet(shape), Way::Replay);
        for tokens in 0..2 * MOST_SHAPES {
            assert!(!replays(&mut graphs, shape(tokens, 0)));
        }
        assert_eq!(graphs.known.len(), MOST_SHAPES);
        for ropes in [0, 1] {
            for tokens in 0..MOST_GRAPHS + 1 {
                (0..2).for_each(|_| assert!(!replays(&mut graphs, shape(tokens, ropes))));
                assert_eq!(replays(&mut graphs, shape(tokens, ropes)), tokens < MOST_GRAPHS);
                if tokens < MOST_GRAPHS {
                    let input = batch(1, &[2]);
                    let captured = Captured {
                        graph: Graph::capture(&Device::Cpu, || Ok(())).unwrap(),
                        place: StreamBuffer::new(&input, &Device::Cpu).unwrap(),
                        batch: input,
                        dropout: None,
                        gradient_scale: 1.0,
                    };
                    graphs.known.last_mut().unwrap().state = State::Captured(Box::new(captured));
                }
            }
        }
        assert!(graphs.known.iter().all(|known| known.shape.ropes == 1));
    }

    #[test]
    fn graphs_are_made_where_they_are_asked_for_and_can_be() {
        let has = |checkpointing, form| Passes::new(&Device::Cpu, checkpointing, form).graphs.is_some();
        emulated(|| {
            assert!(has(Checkpointing::Full, Kernels::Graphs));
            assert!(!has(Checkpointing::Full, Kernels::Fused));
            assert!(!has(Checkpointing::Offload, Kernels::Graphs));
        });
        assert!(!has(Checkpointing::Full, Kernels::Graphs), "the CPU has no graphs");
    }
}
