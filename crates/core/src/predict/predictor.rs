//! The face: what a recipe costs on a model and a machine.

use std::sync::Arc;

use super::PredictError;
use super::expert_load::ExpertLoad;
use super::flops::Flops;
use super::host_update::{HostRates, host_bytes};
use super::machine::Machine;
use super::memory_category::Bytes;
use super::network::{Network, Networks};
use super::prediction::{Imbalance, Prediction, Setting};
use super::seconds::Seconds;
use super::segment::{Models, StepModel, TrainedModel};
use super::step::{SegmentTraces, StepTrace};
use super::stream::StreamShape;
use crate::architecture::Architecture;
use crate::plan::{Memory, ModelPlan, PlanError};
use crate::recipe::{EpochSteps, Precision, Recipe, TrainingLength};
use crate::study::ServePlan;

/// Predicts settings of one model on one machine.
#[derive(Clone, Debug)]
pub struct Predictor {
    architecture: Architecture,
    pub(super) machine: Machine,
    models: Arc<dyn Models>,
    /// Rates of the host beside a GPU.
    pub(super) host: HostRates,
    networks: Networks,
    /// Load under which models are served, where that is predicted too.
    serve: Option<ServePlan>,
}

impl Predictor {
    /// A predictor of a model's settings on a machine, whose steps are those of `models`.
    pub fn new(architecture: Architecture, machine: Machine, models: Arc<dyn Models>) -> Self {
        Self {
            architecture,
            machine,
            models,
            host: HostRates::USUAL,
            networks: Networks::default(),
            serve: None,
        }
    }

    /// A predictor like this one, beside a host that reaches these rates.
    pub fn with_host(self, host: HostRates) -> Self {
        Self { host, ..self }
    }

    /// A predictor like this one, which says too what a token costs that is served under this load.
    #[must_use]
    pub fn with_serving(self, serve: Option<ServePlan>) -> Self {
        Self { serve, ..self }
    }

    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Costs of a setting.
    ///
    /// # Errors
    /// A recipe that does not fit the model, or needs what the machine's device has no kernels for.
    pub fn predict(&self, setting: &Setting<'_>) -> Result<Prediction, PredictError> {
        self.check(setting)?;
        let network = self.network(setting.recipe)?;
        let (longest, mean) = (&setting.workload.longest, &setting.workload.mean);
        let model = self.model(&network, setting.recipe)?;
        let on_longest = step(model.as_ref(), &[longest], ExpertLoad::Even)?;
        // Rows that are all as long as may be have one micro-batch.
        let on_mean = match longest == mean {
            true => None,
            false => Some(step(model.as_ref(), &[mean], ExpertLoad::Even)?),
        };
        let costs = |compute, on_longest, on_mean: Option<&dyn StepModel>| {
            let of = |stream| StepTrace {
                compute,
                ..self.trace(&network, setting.recipe, stream)
            };
            let mut traces = SegmentTraces::of(on_longest);
            let bytes = StepTrace::bytes(&[of(longest)], &mut traces)?;
            if let Some(on_mean) = on_mean {
                traces = SegmentTraces::of(on_mean);
            }
            let seconds = self.seconds(&of(mean), &mut traces)?;
            Ok::<(Bytes, Seconds), PredictError>((bytes, seconds))
        };
        let (bytes, seconds) = costs(setting.recipe.precision, on_longest.as_ref(), on_mean.as_deref())?;
        let serve_s = match &self.serve {
            Some(plan) => self.serve_s(setting.recipe, plan)?,
            None => None,
        };
        let own = Prediction {
            bytes,
            seconds,
            tokens: mean.tokens() * setting.recipe.batch.micro_batches() as f64,
            link_s: match seconds.total() > 0.0 {
                true => {
                    let micro_batches = self.machine.micro_batches_in_turn(setting.recipe);
                    self.trace(&network, setting.recipe, mean).link_s(micro_batches)
                }
                false => 0.0,
            },
            host_bytes: match self.machine.host().memory() {
                Memory::Device => host_bytes(&network, setting.recipe),
                Memory::Host => 0,
            },
            serve_s,
        };
        if setting.recipe.precision_schedule.is_none() {
            return Ok(own);
        }
        let on_mean = on_mean.as_deref().map(StepModel::in_fp32);
        let (bytes, seconds) = costs(Precision::Fp32, on_longest.in_fp32(), on_mean)?;
        // Where F32 was not measured here, nothing is known of those steps.
        let share = match seconds.total() > 0.0 {
            true => fp32_share(setting, own.tokens),
            false => 0.0,
        };
        Ok(Prediction {
            bytes: own.bytes.higher(bytes),
            seconds: own.seconds.mixed(&seconds, share),
            link_s: own.link_s,
            tokens: own.tokens,
            host_bytes: own.host_bytes,
            serve_s,
        })
    }

    /// Bytes by category at the highest moment of a step of all `settings`, which train together.
    ///
    /// # Errors
    /// Settings that do not fit the model, or cannot train together.
    pub fn predict_group(&self, settings: &[Setting<'_>]) -> Result<Bytes, PredictError> {
        if let [only] = settings {
            return Ok(self.predict(only)?.bytes);
        }
        if settings.is_empty() {
            return Ok(Bytes::default());
        }
        let networks = self.networks_of(settings)?;
        let model = self.model_of(settings, &networks)?;
        let streams: Vec<&StreamShape> = settings.iter().map(|one| &one.workload.longest).collect();
        let traces = settings.iter().zip(&networks).map(|(setting, network)| StepTrace {
            trainings: settings.len(),
            ..self.trace(network, setting.recipe, &setting.workload.longest)
        });
        let traces: Vec<StepTrace<'_>> = traces.collect();
        let on_all = step(model.as_ref(), &streams, ExpertLoad::Even)?;
        StepTrace::bytes(&traces, &mut SegmentTraces::of(on_all.as_ref()))
    }

    /// Whether so many bytes hold `settings` at once, with room for the prediction's error.
    ///
    /// # Errors
    /// Errors of [`Predictor::predict_group`].
    pub fn holds_group(&self, settings: &[Setting<'_>], memory_bytes: f64) -> Result<bool, PredictError> {
        let most = memory_bytes / (1.0 + self.machine().memory_margin());
        Ok(self.predict_group(settings)?.total() as f64 <= most)
    }

    /// Cost of crowding at experts; `None` where there are none, or where the machine's speed is not known.
    ///
    /// # Errors
    /// A recipe that does not fit the model.
    pub fn imbalance(&self, setting: &Setting<'_>) -> Result<Option<Imbalance>, PredictError> {
        self.check(setting)?;
        if self.architecture.experts.is_none() {
            return Ok(None);
        }
        let network = self.network(setting.recipe)?;
        let mean = &setting.workload.mean;
        let trace = self.trace(&network, setting.recipe, mean);
        let model = self.model(&network, setting.recipe)?;
        let seconds = |load| {
            let on_mean = step(model.as_ref(), &[mean], load)?;
            let seconds = self.seconds(&trace, &mut SegmentTraces::of(on_mean.as_ref()))?;
            Ok::<f64, PredictError>(seconds.total())
        };
        let even = seconds(ExpertLoad::Even)?;
        if even <= 0.0 {
            return Ok(None);
        }
        Ok(Some(Imbalance {
            zipf: seconds(ExpertLoad::Zipf)? / even,
            crowded: seconds(ExpertLoad::Crowded)? / even,
        }))
    }

    /// FLOPs of a step.
    ///
    /// # Errors
    /// A recipe that does not fit the model.
    pub fn flops(&self, setting: &Setting<'_>) -> Result<Flops, PredictError> {
        self.check(setting)?;
        let network = self.network(setting.recipe)?;
        let mean = &setting.workload.mean;
        let model = self.model(&network, setting.recipe)?;
        let on_mean = step(model.as_ref(), &[mean], ExpertLoad::Even)?;
        let trace = self.trace(&network, setting.recipe, mean);
        let (micro_batch, update) = trace.ops(&mut SegmentTraces::of(on_mean.as_ref()))?;
        Ok(Flops::of_step(&micro_batch, &update, setting))
    }

    /// Bytes that the forward pass of the longest micro-batch keeps for the backward pass.
    ///
    /// # Errors
    /// A recipe that does not fit the model.
    pub fn saved_bytes(&self, setting: &Setting<'_>) -> Result<u64, PredictError> {
        let network = self.network(setting.recipe)?;
        let longest = &setting.workload.longest;
        let model = self.model(&network, setting.recipe)?;
        let on_longest = step(model.as_ref(), &[longest], ExpertLoad::Even)?;
        let trace = self.trace(&network, setting.recipe, longest);
        trace.saved_bytes(&mut SegmentTraces::of(on_longest.as_ref()))
    }

    /// Refuses what no trainer would begin, and what the machine's device has no kernels for.
    fn check(&self, setting: &Setting<'_>) -> Result<(), PredictError> {
        setting.recipe.check_trained_here().map_err(PlanError::from)?;
        let batch = &setting.recipe.batch;
        let sizes = [
            ("micro_batch", batch.micro_batch),
            ("gradient_accumulation", batch.gradient_accumulation),
            ("devices", batch.devices),
            ("sequence_length", batch.sequence_length),
        ];
        if let Some((key, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(PredictError::Zero { key });
        }
        let longest = setting.workload.longest.longest();
        if longest > self.architecture.max_positions {
            return Err(PredictError::TooLong {
                tokens: longest,
                most: self.architecture.max_positions,
            });
        }
        let activations = setting.recipe.activation_quantization;
        let has_experts = self.architecture.experts.is_some();
        if !activations.is_none() && has_experts && self.machine.host().memory() == Memory::Device {
            return Err(PredictError::ActivationsOfExperts { activations });
        }
        let sparsity = setting.recipe.weight_sparsity;
        if !sparsity.is_none() && self.machine.host().memory() == Memory::Device {
            return Err(PredictError::SparsityOnGpu { sparsity });
        }
        let aware = setting.recipe.quantization_aware;
        if !aware.is_none() && self.machine.host().memory() == Memory::Device {
            return Err(PredictError::AwareOnGpu { aware });
        }
        setting.recipe.precision_schedule.check(setting.recipe.precision)?;
        setting.recipe.check_sharding()?;
        setting.recipe.check_optimizer_offload()?;
        setting.recipe.check_built_in()?;
        Ok(())
    }

    fn network(&self, recipe: &Recipe) -> Result<Arc<Network>, PlanError> {
        self.networks.of(&self.architecture, recipe)
    }

    /// The networks of `settings`, which train together where there are several.
    pub(super) fn networks_of(&self, settings: &[Setting<'_>]) -> Result<Vec<Arc<Network>>, PredictError> {
        let mut networks = Vec::with_capacity(settings.len());
        for setting in settings {
            if settings.len() > 1 {
                setting.recipe.check_in_group()?;
                setting.recipe.check_shares_base(settings[0].recipe)?;
            }
            self.check(setting)?;
            networks.push(self.network(setting.recipe)?);
        }
        Ok(networks)
    }

    /// The model that `settings` train, whose networks these are.
    pub(super) fn model_of(
        &self,
        settings: &[Setting<'_>],
        networks: &[Arc<Network>],
    ) -> Result<Arc<dyn TrainedModel>, PredictError> {
        if let ([only], [network]) = (settings, networks) {
            return self.model(network, only.recipe);
        }
        let plans = networks.iter().map(|network| &network.plan);
        let recipes = settings.iter().map(|one| one.recipe);
        let trainings: Vec<(&ModelPlan, &Recipe)> = plans.zip(recipes).collect();
        let model = self.models.of(&trainings, self.machine.host());
        model.map_err(|reason| PredictError::Model { reason })
    }

    fn model(&self, network: &Network, recipe: &Recipe) -> Result<Arc<dyn TrainedModel>, PredictError> {
        let model = network.model(recipe, self.models.as_ref(), self.machine.host());
        model.map_err(|reason| PredictError::Model { reason })
    }

    pub(super) fn trace<'a>(&self, network: &'a Network, recipe: &'a Recipe, stream: &'a StreamShape) -> StepTrace<'a> {
        StepTrace {
            network,
            recipe,
            host: self.machine.host(),
            link: self.machine.link(),
            stream,
            compute: recipe.precision,
            trainings: 1,
        }
    }
}

/// The step of a model on such micro-batches.
pub(super) fn step<'a>(
    model: &'a dyn TrainedModel,
    streams: &[&StreamShape],
    load: ExpertLoad,
) -> Result<Box<dyn StepModel + 'a>, PredictError> {
    let step = model.on(streams, load);
    step.map_err(|reason| PredictError::Model { reason })
}

/// Part of the recipe's training whose steps, of so many tokens, compute in F32 at least.
fn fp32_share(setting: &Setting<'_>, step_tokens: f64) -> f64 {
    let Setting { recipe, workload } = setting;
    let steps = match recipe.training.length {
        TrainingLength::Steps(steps) => steps as f64,
        TrainingLength::Tokens(tokens) => tokens as f64 / step_tokens,
        TrainingLength::Epochs(epochs) => match workload.rows {
            Some(rows) => EpochSteps::new(rows as u64, &recipe.batch).of_epochs(epochs) as f64,
            // Data of any length: the first steps are few of them.
            None => return 0.0,
        },
    };
    recipe.precision_schedule.fp32_share(steps)
}
