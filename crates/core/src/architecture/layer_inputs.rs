//! Inputs that each decoder layer has beside the stream (Gemma 4 E2B and E4B).
//!
//! | letter | field |
//! |---|---|
//! | P | `width` |
//! | L | decoder layers |
//!
//! x_l = (p_l + e_l) / sqrt(2), with e = sqrt(P) table[token] and p = norm(W h_0) / sqrt(H) of the embedded tokens h_0, both L·P wide
//! and cut into L parts; the norm is over each part. Behind its MLP a layer adds norm(projection(act(gate(h)) x_l)) to the stream.

use super::config::Config;
use super::{ArchitectureError, LinearModule, LinearRole, TensorShape};

/// The inputs of layers beside the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerInputs {
    /// P, width of a layer's input.
    pub width: usize,
    /// Rows of their table.
    pub vocabulary: usize,
}

/// Name of the table of all layers' inputs.
pub const LAYER_INPUT_TABLE: &str = "model.embed_tokens_per_layer.weight";
/// Name of the linear layer that makes inputs of embedded tokens.
pub const LAYER_INPUT_PROJECTION: &str = "model.per_layer_model_projection";
/// Name of the norm behind it.
pub const LAYER_INPUT_NORM: &str = "model.per_layer_projection_norm.weight";
/// Name of the norm at the end of a layer, without the layer's name.
pub const LAYER_INPUT_END: &str = "post_per_layer_input_norm";

const WIDTH: &str = "hidden_size_per_layer_input";
const VOCABULARY: &str = "vocab_size_per_layer_input";

impl LayerInputs {
    /// Reads them; `None` where the model has none. `default` is their width where the file says nothing.
    ///
    /// # Errors
    /// A table with fewer rows than the model's vocabulary.
    pub(super) fn read(config: &Config, default: usize) -> Result<Option<Self>, ArchitectureError> {
        let width = config.optional_count(WIDTH)?.unwrap_or(default);
        if width == 0 {
            return Ok(None);
        }
        let vocabulary = config.optional_dimension(VOCABULARY)?.unwrap_or(262_144);
        let tokens = config.dimension("vocab_size")?;
        if vocabulary < tokens {
            return Err(config.impossible(VOCABULARY, vocabulary, format!("at least vocab_size {tokens}")));
        }
        Ok(Some(Self { width, vocabulary }))
    }

    /// The linear layers of each decoder layer, in the order of the forward pass.
    pub(super) fn modules(&self, hidden: usize) -> [LinearModule; 2] {
        let module = LinearModule::without_bias;
        [
            module(LinearRole::InputGate, "per_layer_input_gate", hidden, self.width),
            module(LinearRole::InputProjection, "per_layer_projection", self.width, hidden),
        ]
    }

    /// The linear layer that stands beside the decoder layers, by its whole name.
    pub(super) fn outer_module(&self, hidden: usize, layers: usize) -> LinearModule {
        let outputs = layers * self.width;
        LinearModule::without_bias(LinearRole::LayerInputs, LAYER_INPUT_PROJECTION, hidden, outputs)
    }

    /// The tensors that are no linear layers.
    pub(super) fn tensors(&self, layers: usize) -> [TensorShape; 2] {
        [
            TensorShape {
                name: LAYER_INPUT_TABLE.to_owned(),
                shape: vec![self.vocabulary, layers * self.width],
            },
            TensorShape {
                name: LAYER_INPUT_NORM.to_owned(),
                shape: vec![self.width],
            },
        ]
    }
}
