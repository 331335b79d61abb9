//! Updates on threads of the host (`optimizer_offload: host`), as ZeRO-Offload has them (arXiv:2101.06840).
//!
//! The host has the optimizer's states and a copy of the parameters. Gradients come to it part by part, it updates the part, and the
//! values go back, all beside the device's computing ([`RoundTrips`]). Parts are those of
//! [`update_parts`](peft_tune_core::plan::update_parts). Where nothing needs all gradients first, a part begins as soon as the backward
//! pass of the last micro-batch is through with it; else all begin when the norm is known.

use std::sync::Arc;

use candle_core::Result;

use crate::Parameters;
use crate::optimizer::Optimizer;
use peft_tune_core::plan::{GradientsReady, UpdatePart};
use peft_tune_kernels::gpu::RoundTrips;

/// The host's side of the updates of one training.
#[derive(Debug)]
pub(super) struct HostUpdate {
    trips: RoundTrips,
    /// Values and gradients in the host's memory.
    parameters: Arc<Parameters>,
    parts: Vec<UpdatePart>,
    /// Parts of the step under way that have begun: so many, in their order.
    begun: usize,
    /// Whether the device's values may be others than the host's.
    is_stale: bool,
}

impl HostUpdate {
    /// Updates of `parameters`, which lie on a device, in `parts`.
    ///
    /// # Errors
    /// Memory of the host.
    pub(super) fn new(parameters: &Parameters, parts: Vec<UpdatePart>) -> Result<Self> {
        let trips = RoundTrips::new(&parameters.gradients, &parameters.values)?;
        let [gradients, values] = trips.on_host().map(Clone::clone);
        let layout = parameters.layout.clone();
        Ok(Self {
            trips,
            parameters: Arc::new(Parameters {
                layout,
                values,
                gradients,
            }),
            parts,
            begun: 0,
            is_stale: true,
        })
    }

    /// Takes note that somebody else has changed the device's values.
    pub(super) fn values_changed(&mut self) {
        self.is_stale = true;
    }

    /// Shifts the values, of host and device, by `shift`.
    ///
    /// # Errors
    /// Those of candle.
    pub(super) fn shift(&mut self, shift: impl FnOnce(&Parameters) -> Result<()>) -> Result<()> {
        self.refresh()?;
        shift(&self.parameters)?;
        self.trips.give_returned()
    }

    /// Begins with the parts whose gradients are whole when a backward pass has come to `ready`, and with those before them.
    ///
    /// # Errors
    /// Those of the driver.
    pub(super) fn begin(&mut self, ready: GradientsReady, optimizer: &Optimizer, learning_rate: f64) -> Result<()> {
        let end = self.parts.iter().position(|part| part.ready == ready);
        end.map_or(Ok(()), |end| self.begin_to(end + 1, optimizer, learning_rate))
    }

    /// Begins with all parts that have not begun, and waits until all are done: the device continues with the new values.
    ///
    /// # Errors
    /// Those of the update and of the driver.
    pub(super) fn finish(&mut self, optimizer: &Optimizer, learning_rate: f64) -> Result<()> {
        self.begin_to(self.parts.len(), optimizer, learning_rate)?;
        self.begun = 0;
        self.trips.finish()
    }

    fn begin_to(&mut self, end: usize, optimizer: &Optimizer, learning_rate: f64) -> Result<()> {
        self.refresh()?;
        while self.begun < end {
            let ranges = &self.parts[self.begun].ranges;
            let work = optimizer.update_of(&self.parameters, ranges, learning_rate);
            self.trips.begin(ranges, Box::new(work))?;
            self.begun += 1;
        }
        Ok(())
    }

    fn refresh(&mut self) -> Result<()> {
        if std::mem::take(&mut self.is_stale) {
            self.trips.bring_returned()?;
        }
        Ok(())
    }
}

#[cfg(test)]
impl HostUpdate {
    /// Does all of a part when it begins, as early as can be; without it the emulation is as late as can be.
    pub(super) fn hurry(&mut self) {
        self.trips.hurry();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use candle_core::{Device, Tensor};

    use super::*;
    use crate::data::{Document, MicroBatch};
    use crate::{BaseModel, Trainer};
    use peft_tune_core::architecture::Architecture;
    use peft_tune_core::recipe::{
        AdapterSettings, Checkpointing, DataSettings, OptimizerKind, OptimizerOffload, OptimizerSettings, Precision,
        PrecisionSchedule, Recipe,
    };
    use peft_tune_kernels::gpu::{emulated, has_compiler, not_emulated};

    const STEPS: u64 = 4;

    /// Time at which the emulation does what is asked of it.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum When {
        Early,
        Late,
    }

    fn llama(tied: bool) -> Architecture {
        let text = format!(
            r#"{{"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2,
            "num_key_value_heads": 1, "intermediate_size": 24, "vocab_size": 23, "rms_norm_eps": 1e-5, "head_dim": 8,
            "max_position_embeddings": 64, "rope_theta": 10000.0, "tie_word_embeddings": {tied}}}"#
        );
        Architecture::from_json(Path::new("test"), &text).unwrap()
    }

    fn recipe(kind: OptimizerKind) -> Recipe {
        let mut recipe = Recipe::new("random", DataSettings::default());
        recipe.precision = Precision::Fp32;
        recipe.adapter = Some(AdapterSettings {
            rank: 2,
            dropout: 0.2,
            ..AdapterSettings::default()
        });
        recipe.optimizer = OptimizerSettings {
            kind,
            learning_rate: 1e-2,
            weight_decay: 0.1,
            max_grad_norm: None,
            offload: OptimizerOffload::Host,
            ..OptimizerSettings::default()
        };
        recipe
    }

    fn trainer(architecture: &Architecture, recipe: &Recipe, when: When) -> Trainer {
        let base = BaseModel::random(architecture.clone(), 1, recipe.precision, &Device::Cpu).unwrap();
        let mut trainer = Trainer::new(Arc::new(base), recipe, 100).unwrap();
        if when == When::Early {
            trainer.updates.hurry();
        }
        trainer
    }

    /// Two micro-batches of 8 tokens, of which the second has no target in some steps.
    fn batches(step: u64, vocabulary: usize) -> Vec<MicroBatch> {
        let batch = |seed: u64, has_targets: bool| {
            let ids: Vec<u32> = (0..8)
                .map(|place| ((seed * 7 + place * place * 3) % vocabulary as u64) as u32)
                .collect();
            let label = |id: &u32| if has_targets { i64::from(*id) } else { -100 };
            let labels = ids.iter().map(label).collect();
            MicroBatch::from_documents(&[Document { input_ids: ids, labels }])
        };
        vec![batch(10 + step, true), batch(20 + step, step % 3 != 1)]
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.to_vec1().unwrap()
    }

    /// The CPU's update of all parameters at once, beside a training: what each step must come to.
    struct Reference {
        parameters: Parameters,
        optimizer: Optimizer,
    }

    impl Reference {
        fn of(trainer: &Trainer, recipe: &Recipe) -> Self {
            let live = trainer.parameters();
            let settings = OptimizerSettings {
                offload: OptimizerOffload::None,
                ..recipe.optimizer.clone()
            };
            let mut optimizer = Optimizer::new(&settings, &live.layout, &Device::Cpu).unwrap();
            optimizer.load_state(&trainer.optimizer().state().unwrap()).unwrap();
            Self {
                parameters: Parameters {
                    layout: live.layout.clone(),
                    values: live.values.copy().unwrap(),
                    gradients: live.gradients.copy().unwrap(),
                },
                optimizer,
            }
        }

        /// Steps with `trainer`, and holds its values and states against this.
        fn step_with(&mut self, trainer: &mut Trainer, batches: &[MicroBatch]) -> (f64, f64) {
            let event = trainer.step(batches).unwrap();
            if event.grad_norm.is_finite() {
                not_emulated(|| {
                    let gradients = &trainer.parameters().gradients;
                    self.parameters.gradients.slice_set(gradients, 0, 0).unwrap();
                    self.optimizer.step(&self.parameters, event.learning_rate).unwrap();
                });
            }
            let live = &trainer.parameters().values;
            assert_eq!(values(live), values(&self.parameters.values), "step {}", event.step);
            let wide = |state: &[(String, Tensor)]| {
                let wide = |(name, tensor): &(String, Tensor)| {
                    (name.clone(), values(&tensor.to_dtype(candle_core::DType::F32).unwrap()))
                };
                state.iter().map(wide).collect::<Vec<_>>()
            };
            let (host, expected) = (trainer.optimizer().state().unwrap(), self.optimizer.state().unwrap());
            assert_eq!(wide(&host), wide(&expected), "step {}", event.step);
            (event.loss, event.grad_norm)
        }
    }

    /// Losses, norms and values of some steps, each held against the reference.
    fn trained(architecture: &Architecture, recipe: &Recipe, when: When) -> (Vec<(f64, f64)>, Vec<f32>) {
        emulated(|| {
            let mut trainer = trainer(architecture, recipe, when);
            let mut reference = Reference::of(&trainer, recipe);
            let vocabulary = architecture.vocabulary;
            let step = |step| reference.step_with(&mut trainer, &batches(step, vocabulary));
            let steps = (0..STEPS).map(step).collect();
            (steps, values(&trainer.parameters().values))
        })
    }

    #[test]
    fn every_rule_updates_as_the_cpu_does_to_the_last_bit_however_early_or_late() {
        if !has_compiler() {
            return;
        }
        for kind in OptimizerKind::ALL.into_iter().filter(|kind| !kind.is_paged()) {
            let follows = recipe(kind);
            let mut waits = follows.clone();
            // A norm that no gradient has: it is waited for all the same.
            waits.optimizer.max_grad_norm = Some(1e30);
            assert!(!follows.updates_wait() && waits.updates_wait());
            let expected = trained(&llama(true), &waits, When::Late);
            for when in [When::Early, When::Late] {
                assert_eq!(trained(&llama(true), &follows, when), expected, "{kind:?} {when:?}");
            }
        }
    }

    #[test]
    fn whatever_trains_and_is_kept_it_is_updated_in_its_turn() {
        if !has_compiler() {
            return;
        }
        let plain = recipe(OptimizerKind::AdamW);
        let changed = |change: fn(&mut Recipe)| {
            let mut recipe = plain.clone();
            change(&mut recipe);
            recipe
        };
        let all = [
            changed(|recipe| recipe.adapter = None),
            changed(|recipe| recipe.adapter.as_mut().unwrap().dora = true),
            changed(|recipe| recipe.adapter.as_mut().unwrap().modules_to_save = vec!["embed_tokens".into()]),
            changed(|recipe| recipe.adapter.as_mut().unwrap().layers_to_transform = Some(vec![1])),
            changed(|recipe| recipe.gradient_checkpointing = Checkpointing::Offload),
            changed(|recipe| recipe.optimizer.max_grad_norm = Some(1e-3)),
            changed(|recipe| recipe.precision = Precision::Bf16),
            changed(|recipe| recipe.precision = Precision::Fp16),
            changed(|recipe| recipe.precision = Precision::Nf4),
            changed(|recipe| recipe.batch.devices = 2),
            changed(|recipe| {
                recipe.precision = Precision::Bf16;
                recipe.precision_schedule = PrecisionSchedule::from_name("fp32_2").unwrap();
            }),
        ];
        for recipe in &all {
            for tied in [true, false] {
                let late = trained(&llama(tied), recipe, When::Late);
                assert_eq!(
                    trained(&llama(tied), recipe, When::Early),
                    late,
                    "tied: {tied}, {recipe:?}"
                );
            }
        }
    }

    #[test]
    fn a_gradient_that_overflows_updates_nothing_on_the_host() {
        if !has_compiler() {
            return;
        }
        for kind in [OptimizerKind::AdamW, OptimizerKind::AdamWScheduleFree] {
            let mut recipe = recipe(kind);
            recipe.precision = Precision::Fp16;
            emulated(|| {
                let mut trainer = trainer(&llama(true), &recipe, When::Late);
                let mut reference = Reference::of(&trainer, &recipe);
                let mut norms = Vec::new();
                for step in 0..3 {
                    let before = values(&trainer.parameters().values);
                    if step == 1 {
                        // A weight that makes everything overflow, for one step.
                        trainer
                            .parameters()
                            .values
                            .slice_set(&Tensor::full(6e4f32, 8, &Device::Cpu).unwrap(), 0, 0)
                            .unwrap();
                        trainer.updates.values_changed();
                        let event = trainer.step(&batches(step, 23)).unwrap();
                        norms.push(event.grad_norm.is_finite());
                        let old = Tensor::new(before.as_slice(), &Device::Cpu).unwrap();
                        trainer.parameters().values.slice_set(&old, 0, 0).unwrap();
                        trainer.updates.values_changed();
                        continue;
                    }
                    norms.push(reference.step_with(&mut trainer, &batches(step, 23)).1.is_finite());
                }
                assert_eq!(norms, [true, false, true], "{kind:?}");
            });
        }
    }

    #[test]
    fn the_layers_of_every_family_are_through_when_the_backward_pass_says_so() {
        if !has_compiler() {
            return;
        }
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
        for family in [
            "qwen2",
            "gemma2",
            "gemma4_e2b",
            "qwen3_moe",
            "deepseek_v3",
            "qwen3_5",
            "granite4",
        ] {
            let config = golden.join(format!("ref_{family}/model/config.json"));
            let architecture = Architecture::from_config(&config).unwrap();
            let mut recipe = recipe(OptimizerKind::AdamW);
            recipe.adapter.as_mut().unwrap().dropout = 0.0;
            let step = |recipe: &Recipe, when| {
                emulated(|| {
                    let mut trainer = trainer(&architecture, recipe, when);
                    let mut reference = Reference::of(&trainer, recipe);
                    let losses = [0, 2].map(|step| reference.step_with(&mut trainer, &batches(step, 23)).0);
                    (losses, values(&trainer.parameters().values))
                })
            };
            assert_eq!(step(&recipe, When::Early), step(&recipe, When::Late), "{family}");
            recipe.adapter = None;
            if peft_tune_core::plan::ModelPlan::of_recipe(&architecture, &recipe).is_ok() {
                assert_eq!(
                    step(&recipe, When::Early),
                    step(&recipe, When::Late),
                    "{family}, all parameters"
                );
            }
        }
    }

    #[test]
    fn a_training_goes_on_on_the_host_from_what_a_device_left_and_back() {
        if !has_compiler() {
            return;
        }
        for kind in [
            OptimizerKind::AdamW,
            OptimizerKind::AdamW8bit,
            OptimizerKind::AdamWScheduleFree,
        ] {
            let host = recipe(kind);
            let mut device = host.clone();
            device.optimizer.offload = OptimizerOffload::None;
            emulated(|| {
                let mut before = trainer(&llama(true), &device, When::Late);
                for step in 0..2 {
                    before.step(&batches(step, 23)).unwrap();
                }
                let resumed = |from: &Trainer, recipe: &Recipe| {
                    let mut to = trainer(&llama(true), recipe, When::Late);
                    to.parameters()
                        .values
                        .slice_set(&from.parameters().values, 0, 0)
                        .unwrap();
                    to.restore(from.position(), &from.state().unwrap()).unwrap();
                    to
                };
                // From the device's states on, steps are those of the CPU.
                let mut on_host = resumed(&before, &host);
                let mut reference = Reference::of(&on_host, &host);
                reference.step_with(&mut on_host, &batches(2, 23));
                // Stopped and resumed, and not.
                let mut again = resumed(&on_host, &host);
                let mut reference = Reference::of(&again, &host);
                let next = reference.step_with(&mut again, &batches(3, 23));
                let event = on_host.step(&batches(3, 23)).unwrap();
                assert_eq!((event.loss, event.grad_norm), next, "{kind:?}");
                assert_eq!(values(&on_host.parameters().values), values(&again.parameters().values));
                // The device takes the host's states as they are.
                let back = resumed(&on_host, &device);
                let state = |trainer: &Trainer| {
                    let all = trainer.state().unwrap().into_iter();
                    all.map(|(name, tensor)| (name, tensor.dims().to_vec(), tensor.dtype()))
                        .collect::<Vec<_>>()
                };
                assert_eq!(state(&back), state(&on_host));
            });
        }
    }
}
