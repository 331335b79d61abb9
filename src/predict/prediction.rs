//! The face: what a recipe costs on a model and a machine.

use serde::Serialize;

use super::ceilings::Ceilings;
use super::correction::Correction;
use super::data_sheet::DataSheet;
use super::flops::Flops;
use super::host::Host;
use super::network::Network;
use super::part::Bytes;
use super::scratch::Heads;
use super::seconds::{self, Context, Seconds};
use super::step::StepWalk;
use super::{PredictError, Workload};
use crate::architecture::Architecture;
use crate::recipe::Recipe;

/// The machine that a prediction is for.
#[derive(Clone, Debug)]
pub enum Machine {
    /// Its ceilings were measured.
    Measured(Box<Ceilings>),
    /// It is known from its data sheet only.
    DataSheet(&'static DataSheet),
    /// Only its memory is asked about.
    Unmeasured(Host),
}

impl Machine {
    /// What memory depends on.
    pub fn host(&self) -> Host {
        match self {
            Self::Measured(ceilings) => ceilings.host,
            Self::DataSheet(_) => Host::GPU,
            Self::Unmeasured(host) => *host,
        }
    }

    /// What is believed of predictions before any trial.
    pub fn correction(&self) -> Correction {
        match self {
            Self::Measured(_) | Self::Unmeasured(_) => Correction::new(0.12, 0.01),
            // The ops of a GPU take scratch of their own, and data sheets say little of what is reached.
            Self::DataSheet(_) => Correction::new(0.4, 0.1),
        }
    }
}

/// Predicts settings of one model on one machine.
#[derive(Clone, Debug)]
pub struct Predictor {
    pub architecture: Architecture,
    pub machine: Machine,
}

/// One setting: a recipe, and what it trains on.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    pub recipe: &'a Recipe,
    pub workload: &'a Workload,
}

/// What a setting costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Bytes by part at the highest moment of a step.
    pub bytes: Bytes,
    /// Seconds of a step; zero where the machine's speed is not known.
    pub seconds: Seconds,
    /// Tokens of a step.
    pub tokens: f64,
}

impl Prediction {
    /// Highest bytes in use.
    pub fn peak_bytes(&self) -> u64 {
        self.bytes.total()
    }

    /// Trained tokens a second; zero where the machine's speed is not known.
    pub fn tokens_per_s(&self) -> f64 {
        match self.seconds.total() {
            total if total > 0.0 => self.tokens / total,
            _ => 0.0,
        }
    }
}

impl Predictor {
    /// What a setting costs.
    ///
    /// # Errors
    /// A recipe that does not fit the model.
    pub fn predict(&self, setting: &Setting<'_>) -> Result<Prediction, PredictError> {
        check(&self.architecture, setting)?;
        let network = Network::new(&self.architecture, setting.recipe)?;
        let walk = self.walk(&network, setting.recipe);
        let batch = &setting.recipe.batch;
        Ok(Prediction {
            bytes: walk.bytes(&setting.workload.longest),
            seconds: self.seconds(&walk, setting),
            tokens: setting.workload.mean.tokens() * batch.gradient_accumulation as f64,
        })
    }

    /// FLOPs of a step.
    ///
    /// # Errors
    /// A recipe that does not fit the model.
    pub fn flops(&self, setting: &Setting<'_>) -> Result<Flops, PredictError> {
        check(&self.architecture, setting)?;
        let network = Network::new(&self.architecture, setting.recipe)?;
        let walk = self.walk(&network, setting.recipe);
        let stream = &setting.workload.mean;
        let (micro_batch, update) = walk.ops(stream);
        let mut flops = Flops::default();
        let times = setting.recipe.batch.gradient_accumulation as f64;
        flops.count(&micro_batch, times, self.heads(), stream);
        flops.count(&update, 1.0, self.heads(), stream);
        Ok(flops)
    }

    /// Bytes that the forward pass of the longest micro-batch keeps for the backward pass.
    ///
    /// # Errors
    /// A recipe that does not fit the model.
    pub fn saved_bytes(&self, setting: &Setting<'_>) -> Result<u64, PredictError> {
        let network = Network::new(&self.architecture, setting.recipe)?;
        Ok(self
            .walk(&network, setting.recipe)
            .saved_bytes(&setting.workload.longest))
    }

    fn walk<'a>(&self, network: &'a Network<'a>, recipe: &'a Recipe) -> StepWalk<'a> {
        StepWalk {
            network,
            recipe,
            host: self.machine.host(),
        }
    }

    fn heads(&self) -> Heads {
        Heads {
            query: self.architecture.heads,
            key: self.architecture.kv_heads,
            width: self.architecture.head_dim,
        }
    }

    fn seconds(&self, walk: &StepWalk<'_>, setting: &Setting<'_>) -> Seconds {
        if let Machine::Unmeasured(_) = self.machine {
            return Seconds::default();
        }
        let context = Context {
            precision: setting.recipe.precision,
            heads: self.heads(),
            stream: &setting.workload.mean,
        };
        let (mut ops, update) = walk.ops(&setting.workload.mean);
        let micro_batches = setting.recipe.batch.gradient_accumulation as f64;
        ops.iter_mut().for_each(|op| op.times *= micro_batches);
        ops.extend(update);
        match &self.machine {
            Machine::Measured(ceilings) => seconds::measured(ceilings, context, &ops).unwrap_or_default(),
            Machine::DataSheet(sheet) => seconds::roofline(sheet, context, &ops),
            Machine::Unmeasured(_) => Seconds::default(),
        }
    }
}

/// Refuses what no trainer would begin.
fn check(architecture: &Architecture, setting: &Setting<'_>) -> Result<(), PredictError> {
    let batch = &setting.recipe.batch;
    let sizes = [
        ("micro_batch", batch.micro_batch),
        ("gradient_accumulation", batch.gradient_accumulation),
        ("sequence_length", batch.sequence_length),
    ];
    if let Some((key, _)) = sizes.iter().find(|(_, size)| *size == 0) {
        return Err(PredictError::Zero { key });
    }
    let longest = setting.workload.longest.longest();
    if longest > architecture.max_positions {
        return Err(PredictError::TooLong {
            tokens: longest,
            most: architecture.max_positions,
        });
    }
    Ok(())
}
