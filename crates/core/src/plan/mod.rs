//! The plan of an adapted model: what trains, in which slots, what a step keeps, and how large its buffers are.
//!
//! The engine allocates by it and the prediction adds it up, so that neither can forget the other. Nothing here knows a
//! tensor: an [`Architecture`](crate::architecture::Architecture) and a recipe's settings are all that it takes.

mod adapted_linear;
mod adapter;
pub mod attention;
pub mod delta_rule;
mod error;
mod expression;
mod logits;
mod model;
mod parameters;
pub mod passes;
mod pattern;
pub mod products;
mod quantization_aware;
mod saved;
mod scratch;
mod shape;
mod sharding;
mod side_by_side;
mod sparse;
mod storage;
mod target;
mod update_parts;
mod update_room;
mod whole;

pub use adapted_linear::AdaptedLinear;
pub use adapter::{AdapterPlan, AdapterSlots, LinearSlots, TiedEnds};
pub use error::PlanError;
pub use expression::{ExpressionError, MatchedModules, matched_modules};
pub use logits::{HeadCall, Logits, STREAMED_ROWS, chunk_tokens, chunk_tokens_on_gpu, even_chunks, streamed_columns};
pub use model::{AdapterOnInput, ExpertsPlan, GroupPlan, LatentPlan, LayerPlan, ModelPlan, ProjectionPlan};
pub use model::{KeySharing, LayerInputPlan, alike_layers, first_like};
pub use parameters::{ParameterKind, ParameterLayout, ParameterSlot};
pub use pattern::from_file;
pub use products::{Form, Vectors};
pub use quantization_aware::{MERGED_ROWS, merged_bytes};
pub use saved::{LayerKeep, Memory, layer_keep};
pub use scratch::{Buffer, ThreadScratch};
pub use shape::{BaseShape, LinearKind, LinearShape, ParameterShape, last_component};
pub use sharding::{ALIGNMENT, ShardedBytes, WINDOWS, aligned, gathers, share_of, window_of};
pub use storage::{BLOCK, NESTED_BLOCK, WeightBytes, base_bytes, linear_bytes};
pub use target::{ends_in, expression_within, names_within, passed_over};
pub use update_parts::{GradientsReady, UpdatePart, update_parts};
pub use update_room::{BAND_ELEMENTS, CODED_ELEMENTS, LONGEST_SHORT_SIDE, PAGE_BLOCKS, PAGE_ELEMENTS, PAGES_AT_ONCE};
pub use whole::{PREFIX, WholeParameter};
