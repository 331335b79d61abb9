//! Engine of this program as one more stack: the prediction of its step in the words of the others.

use super::super::{Bytes, Machine, MemoryCategory, PredictError, Prediction, Predictor, Setting, Workload};
use super::device::StackDevice;
use super::heap::{KINDS, Kind};
use super::limits::{LENGTHS, MOST_ROWS, largest, named, parts, saving};
use super::memory::{PhasePeak, StackMemory};
use super::predictor::{StackPrediction, outside_bytes, verdict_of};
use super::scaled::scaling_of;
use super::{Lever, Limits};
use crate::predict::{Host, Scaling};
use crate::recipe::{
    Checkpointing, OptimizerKind, OptimizerOffload, Precision, PrecisionSchedule, Recipe, Sharding, WeightSparsity,
};

/// Reason why the engine's predictions for a GPU are not proven.
const NOT_COMPARED: &str = "the engine's memory was compared with a GPU in software, and with no real one";

/// The engine on a model, on a device or without one.
#[derive(Clone, Debug)]
pub struct OwnEngine {
    predictor: Predictor,
    device: Option<StackDevice>,
}

impl OwnEngine {
    /// Name of the engine among the stacks.
    pub const NAME: &'static str = "peft-tune";

    /// The machine that predictions are for: a GPU of which nothing is known, where there is no device.
    pub fn machine(device: Option<StackDevice>) -> Machine {
        device.map_or(Machine::Unmeasured(Host::GPU), |device| {
            Machine::DataSheet(device.sheet)
        })
    }

    /// The engine for the model of `predictor`, which is for the [`machine`](Self::machine) of the same device.
    pub fn new(predictor: Predictor, device: Option<StackDevice>) -> Self {
        Self { predictor, device }
    }

    /// Needs of a recipe, and how fast it is. Rows are taken as long as it allows.
    ///
    /// # Errors
    /// A recipe that does not fit the model.
    pub fn predict(&self, recipe: &Recipe) -> Result<StackPrediction, PredictError> {
        let batch = &recipe.batch;
        let predicted = self.predicted(recipe)?;
        let peak = predicted.peak_bytes();
        let outside = outside_bytes(batch.devices as u64, self.device);
        let seconds = Some(predicted.seconds).filter(|seconds| seconds.total() > 0.0);
        let reserve = (peak as f64 * self.predictor.machine().memory_margin()) as u64;
        Ok(StackPrediction {
            process_bytes: peak + outside,
            outside_bytes: outside,
            seconds,
            link_s: predicted.link_s,
            tokens_per_s: seconds.map(|seconds| predicted.tokens / seconds.total()),
            verdict: self.device.map(|device| {
                let unproven = (!device.is_host()).then_some(NOT_COMPARED);
                verdict_of(peak + outside, reserve, device.usable_bytes(), unproven)
            }),
            memory: memory(&predicted.bytes),
        })
    }

    /// The speed of a recipe on its devices against that on one; `None` for one device, and without a device that is known.
    ///
    /// # Errors
    /// A recipe that does not fit the model.
    pub fn scaling(&self, recipe: &Recipe) -> Result<Option<Scaling>, PredictError> {
        let (devices, Some(device)) = (recipe.batch.devices as u64, self.device) else {
            return Ok(None);
        };
        if devices <= 1 {
            return Ok(None);
        }
        let (one, all) = (self.predict(&recipe.on_one_device())?, self.predict(recipe)?);
        Ok(scaling_of(devices, device, &one, &all))
    }

    /// Bytes of the host's memory that updates take beside a GPU.
    ///
    /// # Errors
    /// A recipe that does not fit the model.
    pub fn host_bytes(&self, recipe: &Recipe) -> Result<u64, PredictError> {
        Ok(self.predicted(recipe)?.host_bytes)
    }

    fn predicted(&self, recipe: &Recipe) -> Result<Prediction, PredictError> {
        let workload = Workload::full(recipe.batch.micro_batch, recipe.batch.sequence_length);
        self.predictor.predict(&Setting {
            recipe,
            workload: &workload,
        })
    }

    fn fits(&self, recipe: &Recipe) -> bool {
        let verdict = self.predict(recipe).ok().and_then(|prediction| prediction.verdict);
        verdict.is_some_and(|verdict| verdict.fit.is_fit())
    }

    /// The largest micro-batch that fits, all else being as it is; 0 where not even one row does, or no device is given.
    pub fn largest_micro_batch(&self, recipe: &Recipe) -> u64 {
        let with = |rows| changed(recipe, |to| to.batch.micro_batch = rows as usize);
        largest(MOST_ROWS, |rows| self.fits(&with(rows)))
    }

    /// The largest micro-batch and the longest rows that fit.
    pub fn limits(&self, recipe: &Recipe) -> Limits {
        let most = self.predictor.architecture().max_positions as u64 / LENGTHS;
        let with = |length: u64| changed(recipe, |to| to.batch.sequence_length = (length * LENGTHS) as usize);
        Limits {
            largest_micro_batch: self.largest_micro_batch(recipe),
            longest_sequence: largest(most.max(1), |length| self.fits(&with(length))) * LENGTHS,
        }
    }

    /// Savings by each change of one thing, most first; those that save nothing are left out.
    ///
    /// # Errors
    /// A recipe that does not fit the model.
    pub fn levers(&self, recipe: &Recipe) -> Result<Vec<Lever>, PredictError> {
        let now = self.predict(recipe)?;
        let pulled = Self::changes(recipe).into_iter();
        let pulled = pulled.filter_map(|(name, changed)| Some((name, self.predict(&changed).ok()?)));
        Ok(saving(&now, pulled))
    }

    /// The recipe with each lever pulled that changes it, by the lever's name.
    pub fn changes(recipe: &Recipe) -> Vec<(&'static str, Recipe)> {
        let all: [(&'static str, Change); 8] = [
            (named::HALF_THE_ROWS, |to| {
                let parts = parts(to.batch.micro_batch as u64) as usize;
                to.batch.micro_batch /= parts;
                to.batch.gradient_accumulation *= parts;
            }),
            (named::CHECKPOINTING, |to| {
                if to.gradient_checkpointing != Checkpointing::Offload {
                    to.gradient_checkpointing = Checkpointing::Full;
                }
            }),
            (named::OFFLOADED, |to| {
                to.gradient_checkpointing = Checkpointing::Offload
            }),
            (named::NF4, |to| {
                if to.adapter.is_some() && !to.precision.is_quantized() {
                    (to.precision, to.precision_schedule) = (Precision::Nf4Double, PrecisionSchedule::None);
                    to.weight_sparsity = WeightSparsity::None;
                }
            }),
            (named::OPTIMIZER_8BIT, |to| {
                if to.optimizer.kind == OptimizerKind::AdamW {
                    to.optimizer.kind = OptimizerKind::AdamW8bit;
                }
            }),
            (named::UPDATED_ON_HOST, |to| {
                if !to.optimizer.kind.is_paged() {
                    to.optimizer.offload = OptimizerOffload::Host;
                }
            }),
            (named::SHARED_OUT, |to| {
                if to.batch.devices > 1 {
                    to.batch.sharding = Sharding::Full;
                }
            }),
            (named::HALF_THE_LENGTH, |to| {
                to.batch.sequence_length = to.batch.sequence_length.div_ceil(2);
            }),
        ];
        let made = all.into_iter().map(|(name, change)| (name, changed(recipe, change)));
        made.filter(|(_, changed)| changed != recipe).collect()
    }
}

fn changed(recipe: &Recipe, change: impl FnOnce(&mut Recipe)) -> Recipe {
    let mut recipe = recipe.clone();
    change(&mut recipe);
    recipe
}

/// A lever, pulled.
type Change = fn(&mut Recipe);

/// The highest moment of a step in the words of the other stacks. The engine takes memory as it needs it, and holds no cache.
fn memory(bytes: &Bytes) -> StackMemory {
    let total = bytes.total();
    let of = |kind: Kind| {
        let parts = bytes.iter().filter(|(category, _)| kind_of(*category) == kind);
        (kind.name(), parts.map(|(_, bytes)| bytes).sum())
    };
    StackMemory {
        phases: vec![PhasePeak {
            phase: "step",
            tensors_bytes: total,
            reserved_bytes: total,
        }],
        components: KINDS.into_iter().map(of).collect(),
        tensors_bytes: total,
        reserved_bytes: total,
        overflows: false,
    }
}

fn kind_of(category: MemoryCategory) -> Kind {
    match category {
        MemoryCategory::BaseWeights => Kind::Weights,
        MemoryCategory::QuantizationConstants => Kind::QuantisationConstants,
        MemoryCategory::Adapters => Kind::Adapters,
        MemoryCategory::Gradients => Kind::Gradients,
        MemoryCategory::OptimizerState => Kind::OptimizerState,
        MemoryCategory::SavedActivations => Kind::SavedActivations,
        MemoryCategory::Logits => Kind::Logits,
        MemoryCategory::AttentionWorkspace | MemoryCategory::Scratch | MemoryCategory::Framework => Kind::Working,
    }
}
