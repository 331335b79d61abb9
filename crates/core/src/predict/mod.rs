//! Costs of a setting before it runs: bytes, FLOPs and seconds by pure arithmetic.
//!
//! The engine runs one layer of each kind on paper ([`Models`]): what its step allocates, frees and computes, in order. Memory,
//! FLOPs and seconds are three readings of that. Nothing allocates a tensor or reads a weight: an
//! [`Architecture`](crate::architecture::Architecture), a recipe, the lengths of the data's rows and the ceilings of a
//! machine are all it takes.

mod ceilings;
mod clock;
mod correction;
mod data_sheet;
mod device_ceilings;
mod device_price;
mod error;
mod expert_load;
mod flops;
mod grid;
mod host;
mod host_update;
mod link;
mod list_price;
mod machine;
mod measured_times;
mod memory_category;
mod network;
mod op;
mod op_context;
mod optimizer_state;
mod padding;
mod prediction;
mod predictor;
mod published_rate;
mod roofline;
mod scaling;
mod seconds;
mod segment;
mod serving;
pub mod stack;
mod step;
mod step_costs;
mod step_link;
mod step_ops;
mod stream;
mod trace;

pub use ceilings::{Ceilings, Headline, OpTimes, WeightProducts};
pub use correction::{Correction, Uncertain};
pub use data_sheet::{DEVICES, DataSheet, NvLink, device, device_of_driver};
pub use device_ceilings::DeviceCeilings;
pub use device_price::{DevicePrice, WorkerPrice};
pub use error::PredictError;
pub use expert_load::{ExpertGroup, ExpertLoad, ExpertRows};
pub use flops::Flops;
pub use grid::Grid;
pub use host::Host;
pub use host_update::HostRates;
pub use link::{Link, LinkKind};
pub use machine::Machine;
pub use memory_category::{Bytes, MEMORY_CATEGORIES, MemoryCategory};
pub use op::{Module, Op, OpKind, Pass, Product, Right, Stage, Work, delta_rule_flops};
pub use padding::{mean_longest, padding_share};
pub use prediction::{Imbalance, Prediction, Setting};
pub use predictor::Predictor;
pub use published_rate::{
    AskedRate, NEAR, NearRate, NoPublishedRate, PUBLISHED_RATES, PublishedRate, TuningMethod, is_near, nearest_rate,
};
pub use scaling::{LINK_BOUND, LINK_BOUND_HELP, Scaling, StepSpeed};
pub use seconds::Seconds;
pub use segment::{Models, Segment, StepModel, TrainedModel};
pub use step_costs::{KindCosts, PartCosts, StepCosts};
pub use step_ops::StepPart;
pub use stream::{Documents, RowLengths, StreamShape, Workload};
pub use trace::Trace;
