//! The dimensions of a decoder-only language model, read from its `config.json`.
//!
//! Every supported family is one [`Architecture`]: the engine, the memory prediction and the exports read this and
//! never a family's name.

mod config;
mod dimensions;
mod dropout;
mod error;
mod expert_switches;
mod experts;
mod family;
mod family_rows;
mod family_table;
mod latent;
mod layer_form;
mod layer_heads;
mod layer_inputs;
mod layers;
mod linear_module;
mod mixer;
mod module_names;
mod multimodal;
mod read;
mod rope;
mod rope_config;
mod shared_keys;
mod tensor_shape;
mod tensors;
mod unknown;

pub use dimensions::{Architecture, Dtype, KeyValueSource, LayerAttention, LayerHeads};
pub use error::ArchitectureError;
pub use expert_switches::{ExpertSwitches, Grouping, SharedSwitch, SparseLayers};
pub use experts::{
    BRANCH_NORMS, CORRECTION, EXPERT_SCALE, ExpertGroups, ExpertNames, ExpertPart, ExpertWeight, Experts, ROUTER_SCALE,
    Router, Scores, SharedExpert,
};
pub use family::{
    Bias, ChatMarks, Factor, Family, FamilyRow, MlpWidth, QueryScale, RopeLayers, SlidingRope, SoftCap, Switches,
    Windows,
};
pub use latent::{LATENT_NORM_EPSILON, Latent};
pub use layer_form::{Activation, LayerNames, NormPlacement, QueryKeyNorm};
pub use layer_inputs::{LAYER_INPUT_END, LAYER_INPUT_NORM, LAYER_INPUT_PROJECTION, LAYER_INPUT_TABLE, LayerInputs};
pub use linear_module::{LinearModule, LinearRole};
pub(crate) use mixer::is_frozen;
pub use mixer::{DeltaRule, GATED_NORM, Mixer, Mixers, ShortConvolution};
pub use module_names::module_name;
pub use rope::{QueryGrowth, Rope, RopeOrder, RopeScaling};
pub use tensor_shape::TensorShape;
pub use tensors::{
    EMBEDDING, FINAL_NORM, LAYER_SCALAR, LM_HEAD, SINKS, is_token_table, name_alone, name_within,
    names_in_whole_models, names_of_language_model,
};
pub use tensors::{ParameterCount, Projection};
