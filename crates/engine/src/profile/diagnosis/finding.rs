//! Findings of the rules.

use serde::{Deserialize, Serialize};

use super::Change;
use crate::profile::Profile;

/// The rules by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Rule {
    /// The step waits for data.
    DataBound,
    /// Rows are far shorter than the sequence length.
    ShortRows,
    /// The host takes long between ops: they are too small.
    SmallMicroBatch,
    /// The GPU waits for launches: its kernels are too small.
    LaunchBound,
    /// The GPU waits for something that the host does beside launching.
    HostBound,
    /// Copies to and from the host go while the GPU computes nothing.
    CopiesNotOverlapped,
    /// Updates on the host wait for the norm of all gradients, and follow no backward pass.
    HostUpdatesWait,
    /// The kernels of a product stay far below what the GPU reaches.
    LowTensorCoreUse,
    /// Layers are run forward twice although the memory would hold what that saves.
    RecomputesWithRoomLeft,
    /// The memory would hold a larger micro-batch.
    RoomForALargerMicroBatch,
    /// The optimizer's state is a large part of the memory.
    OptimizerState,
    /// 8-bit or paged state that saves next to nothing.
    #[strum(serialize = "needless_8bit")]
    #[serde(rename = "needless_8bit")]
    Needless8bit,
    /// An op stays far below what the machine reaches.
    SlowOp,
    /// Widening quantized weights takes longer than multiplying them.
    DequantizationBound,
    /// The adapters take much of the step.
    RankTooHigh,
    /// The device multiplies another number type faster.
    SlowNumberType,
    /// Evaluating takes a large part of the training.
    EvaluatesTooOften,
    /// Writing steps down takes time that they could run in.
    LogsTooOften,
    /// PyTorch's attention keeps all scores in memory.
    EagerAttention,
    /// PyTorch's update of few parameters takes a large part of the step.
    SlowUpdates,
    /// A GPU has nothing to do for much of the time.
    LowUtilisation,
    /// The device lowered its clock.
    Throttled,
    /// Processes of others keep the device busy.
    NoisyNeighbour,
}

impl Rule {
    /// All rules.
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Name of the rule in tables and the database.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// One thing that is worth changing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    pub rule: Rule,
    /// The numbers that say so.
    pub evidence: String,
    pub change: Change,
    /// Gain that is predicted; absent where nothing can be said about it.
    pub gain: Option<Gain>,
    /// Result of the change, once it has been run.
    pub verified: Option<Verified>,
}

/// Gain that a change is predicted to bring.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gain {
    pub metric: Metric,
    /// Relative gain of throughput (0.1 for 10%), or bytes of peak memory saved.
    pub value: f64,
    pub by: PredictedBy,
}

/// Quantity that a change is to improve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Metric {
    /// Relative gain of trained tokens per second.
    Throughput,
    /// Bytes saved at the peak.
    PeakMemory,
}

/// Source of a predicted gain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[derive(strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum PredictedBy {
    /// Bytes and FLOPs of both settings, and the machine's measured ceilings.
    Model,
    /// Parts of the measured step.
    Shares,
}

/// Result of running the change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verified {
    /// The measured gain, in the unit of the predicted one, and the half width of its interval.
    Gain { value: f64, uncertainty: f64 },
    /// Reason why the change could not be run.
    NotRun { reason: String },
}

impl Metric {
    /// Name of the metric in the database.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl PredictedBy {
    /// Name of the source in the database.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl Gain {
    /// The gain relative to what was measured, so that gains of different metrics can be ranked.
    pub fn relative(&self, profile: &Profile) -> f64 {
        match self.metric {
            Metric::Throughput => self.value,
            Metric::PeakMemory => self.value / profile.memory.peak_bytes.max(1) as f64,
        }
    }

    /// Gain of throughput from the part of a step's time that goes away.
    pub(super) fn without(share: f64) -> Self {
        let share = share.clamp(0.0, 0.99);
        Self {
            metric: Metric::Throughput,
            value: share / (1.0 - share),
            by: PredictedBy::Shares,
        }
    }
}
