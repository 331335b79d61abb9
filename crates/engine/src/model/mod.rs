//! The decoder: one for all families, with a hand-written forward and backward pass over the flat token stream.
//!
//! Autograd keeps what it might need and computes gradients that nobody needs; here each block says what it saves
//! ([`saved::LayerSaved`] is the whole list) and computes the gradients of what trains, and no others.

mod activation;
mod adapted_group;
mod adapter_pass;
mod attended;
mod attention_block;
mod block_end;
mod block_gradients;
mod branches;
mod build;
mod build_experts;
mod build_mixed;
mod cache;
mod chunks;
mod column_sums;
mod cross_layer;
mod decoder;
mod dora;
mod dropout;
mod expert_block;
mod experts;
mod feed_forward;
mod group_input;
mod head_norms;
mod infer;
mod joined_decoder;
mod key_reader;
mod latent;
mod layer;
mod layer_gather;
mod layer_input;
mod layer_run;
mod linear;
mod matrix;
mod merged_weight;
mod mixed_block;
mod mixer;
mod mlp_block;
mod norm;
mod norm_before;
mod offload;
mod on_paper;
mod paper_batch;
mod parameter;
mod projection;
mod rope_tables;
mod rounded;
mod routed_experts;
mod saved;
mod shared_expert;
mod stream;
mod together;
mod traced;

pub(crate) use adapter_pass::{AdapterPass, RowOwners, RowPart};
pub(crate) use build::Trainables;
pub(crate) use cache::KeyValueCache;
pub(crate) use decoder::{Decoder, Keep, Tape};
pub(crate) use dora::update_norm;
pub(crate) use dropout::DropoutKey;
pub(crate) use layer_gather::LayerGather;
pub(crate) use layer_run::LayerRun;
pub(crate) use on_paper::PaperModel;
pub(crate) use rope_tables::RopeTables;
pub(crate) use stream::{Stream, StreamBuffer};
