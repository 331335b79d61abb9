//! How ranks share out the frozen weights of the decoder's linear layers (`sharding: full`).
//!
//! Notation: n ranks, L layers. Of each layer the elements of one width (values or codes, then constants) lie behind each other, every
//! tensor from a multiple of [`ALIGNMENT`] elements on. Rank k has elements k s to (k + 1) s of them, s a n-th, rounded up; what
//! lies behind the last tensor is zero. Before a layer is computed, the parts of all ranks are gathered into a window of n s
//! elements. There are [`WINDOWS`] of them, and layer i lies in window i modulo that: while it is computed the next one is on its way.
//!
//! Embedding, LM head, norms, biases and routers are on every rank.

use super::storage::{WeightBytes, base_bytes, linear_bytes};
use crate::architecture::{Architecture, ExpertPart, LinearRole};
use crate::recipe::{Precision, Recipe, WeightSparsity};

/// Elements at whose multiples tensors begin: a GPU reads 16 bytes at once.
pub const ALIGNMENT: usize = 64;
/// Layers that are there at a time.
pub const WINDOWS: usize = 2;

/// End of a tensor of `elements` in a layer's elements, rounded up to where the next begins.
pub fn aligned(elements: usize) -> usize {
    elements.next_multiple_of(ALIGNMENT)
}

/// Elements that each of `ranks` ranks has of so many.
pub fn share_of(elements: usize, ranks: usize) -> usize {
    elements.div_ceil(ranks)
}

/// The window of a layer.
pub fn window_of(layer: usize) -> usize {
    layer % WINDOWS
}

/// The layers that are gathered in a micro-batch behind others, in their order: forward through `layers` layers, then back to
/// `first`, the lowest one that a gradient reaches. What still lies in its window is not gathered again.
pub fn gathers(layers: usize, first: usize) -> Vec<usize> {
    let order = || (0..layers).chain((first..layers).rev());
    let mut there = [None; WINDOWS];
    let mut pass = || {
        let mut gathered = Vec::new();
        for layer in order() {
            if there[window_of(layer)].replace(layer) != Some(layer) {
                gathered.push(layer);
            }
        }
        gathered
    };
    pass();
    pass()
}

/// Bytes that a rank holds of a model's weights, and that it receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardedBytes {
    /// Bytes of its part of the layers' weights, and of all that is on every rank.
    pub own: WeightBytes,
    /// Bytes of the windows.
    pub windows: WeightBytes,
    /// Bytes that come from other ranks when a layer is gathered, by layer.
    pub received: Vec<u64>,
    /// Bytes of a layer's window, by layer.
    pub whole: Vec<u64>,
}

impl ShardedBytes {
    /// Bytes of the weights of `architecture`, among `ranks` ranks.
    pub fn new(architecture: &Architecture, precision: Precision, ranks: usize) -> Self {
        let mut own = base_bytes(architecture, precision, WeightSparsity::None);
        let (mut received, mut whole) = (Vec::new(), Vec::new());
        let mut windows = [[SameWidth::default(); WIDTHS.len()]; WINDOWS];
        for index in 0..architecture.layers.len() {
            let layer = Layer::new(architecture, index, precision);
            own.values -= layer.bytes.values;
            own.constants -= layer.bytes.constants;
            let mut of_layer = 0;
            for (part, window) in layer.parts.iter().zip(&mut windows[window_of(index)]) {
                let share = part.times(1, ranks);
                own.values += share.values;
                own.constants += share.constants;
                let all = share_of(part.elements, ranks) * part.width;
                of_layer += (all * ranks) as u64;
                if part.elements > window.elements {
                    *window = *part;
                }
            }
            whole.push(of_layer);
            received.push(of_layer / ranks as u64 * (ranks as u64 - 1));
        }
        let all = windows.iter().flatten().map(|part| part.times(ranks, ranks));
        Self {
            own,
            windows: all.fold(WeightBytes::default(), |sum, part| WeightBytes {
                values: sum.values + part.values,
                constants: sum.constants + part.constants,
            }),
            received,
            whole,
        }
    }

    /// Bytes as the recipe shares the weights out; `None` where each device has all.
    pub fn of_recipe(architecture: &Architecture, recipe: &Recipe) -> Option<Self> {
        let ranks = recipe.batch.ranks_of_weights();
        (ranks > 1).then(|| Self::new(architecture, recipe.precision, ranks))
    }
}

/// Bytes of an element, of each kind of tensor that there is.
const WIDTHS: [usize; 3] = [1, 2, 4];

/// The elements of one width of a layer.
#[derive(Clone, Copy, Default)]
struct SameWidth {
    width: usize,
    elements: usize,
    /// Elements of the width that are constants.
    constants: usize,
}

impl SameWidth {
    /// Bytes of `shares` of the shares of `ranks` ranks.
    fn times(&self, shares: usize, ranks: usize) -> WeightBytes {
        let bytes = (self.width * shares * share_of(self.elements, ranks)) as u64;
        let constants = match self.elements {
            0 => 0,
            elements => bytes * self.constants as u64 / elements as u64,
        };
        WeightBytes {
            values: bytes - constants,
            constants,
        }
    }
}

/// The linear layers and experts of a layer.
struct Layer {
    parts: [SameWidth; WIDTHS.len()],
    /// Bytes of the parts, without what lies between tensors.
    bytes: WeightBytes,
}

impl Layer {
    fn new(architecture: &Architecture, index: usize, precision: Precision) -> Self {
        let mut layer = Self {
            parts: WIDTHS.map(|width| SameWidth {
                width,
                ..SameWidth::default()
            }),
            bytes: WeightBytes::default(),
        };
        let modules = architecture.layer_modules(index).into_iter();
        for module in modules.filter(|module| module.role != LinearRole::Router) {
            layer.add(module.in_features * module.out_features, precision, 1);
        }
        if let Some(experts) = architecture.experts_of(index) {
            let [outputs, inputs] = experts.part_shape(ExpertPart::Down, architecture.hidden_size);
            layer.add(outputs * inputs, precision, 3 * experts.count);
        }
        layer
    }

    /// Adds `count` weights of so many elements.
    fn add(&mut self, elements: usize, precision: Precision, count: usize) {
        let one = linear_bytes(elements as u64, precision);
        let (row, blocks) = (precision.row(), elements.div_ceil(super::BLOCK));
        let width = row.bits.div_ceil(8) as usize;
        self.push(width, one.values as usize / width, false, count);
        match row.constants {
            None => {}
            Some(crate::recipe::BlockConstants::Plain) => self.push(4, blocks, true, count),
            Some(crate::recipe::BlockConstants::Quantized) => {
                self.push(1, blocks, true, count);
                self.push(4, blocks.div_ceil(super::NESTED_BLOCK), true, count);
            }
        }
        self.bytes.values += one.values * count as u64;
        self.bytes.constants += one.constants * count as u64;
    }

    fn push(&mut self, width: usize, elements: usize, is_constant: bool, count: usize) {
        let elements = aligned(elements) * count;
        for part in self.parts.iter_mut().filter(|part| part.width == width) {
            part.elements += elements;
            part.constants += if is_constant { elements } else { 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Three layers of 4 heads of 16, hidden 64, intermediate 128: 4 * 64 * 64 + 3 * 64 * 128 = 40,960 elements each.
    fn architecture() -> Architecture {
        let config = r#"{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
            "num_key_value_heads": 4, "intermediate_size": 128, "vocab_size": 100, "tie_word_embeddings": true,
            "max_position_embeddings": 128, "rms_norm_eps": 1e-5}"#;
        Architecture::from_json(Path::new("config.json"), config).unwrap()
    }

    #[test]
    fn a_rank_has_its_part_of_the_layers_and_all_of_the_rest() {
        let architecture = architecture();
        let rest = 4 * (100 * 64 + 3 * 2 * 64 + 64);
        let bytes = ShardedBytes::new(&architecture, Precision::Fp32, 2);
        assert_eq!(bytes.own.values, rest + 3 * 4 * 40_960 / 2);
        assert_eq!(bytes.windows.values, 2 * 4 * 40_960);
        assert_eq!(bytes.received, [2 * 40_960; 3]);
        // A third of 40,960 is rounded up.
        let bytes = ShardedBytes::new(&architecture, Precision::Fp32, 3);
        assert_eq!(bytes.own.values, rest + 3 * 4 * 13_654);
        assert_eq!(bytes.windows.values, 2 * 3 * 4 * 13_654);
        assert_eq!(bytes.received, [2 * 4 * 13_654; 3]);
    }

    #[test]
    fn codes_and_constants_are_shared_out_apart() {
        let bytes = ShardedBytes::new(&architecture(), Precision::Nf4, 2);
        let rest = 2 * (100 * 64 + 3 * 2 * 64 + 64);
        assert_eq!(bytes.own.values, rest + 3 * 20_480 / 2);
        // 64 blocks of each weight (64, 64), 128 of each (128, 64).
        assert_eq!(bytes.own.constants, 3 * 4 * (4 * 64 + 3 * 128) / 2);
        assert_eq!(bytes.windows.constants, 2 * 4 * 640);
        let nested = ShardedBytes::new(&architecture(), Precision::Nf4Double, 2);
        // A byte each, and 64 places for the one nested constant of each weight.
        assert_eq!(nested.own.constants, 3 * (640 / 2 + 4 * 7 * 64 / 2));
        assert_eq!(nested.own.values, bytes.own.values);
    }

    #[test]
    fn what_lies_in_a_window_is_not_gathered_again() {
        assert_eq!(gathers(1, 0), [0; 0]);
        assert_eq!(gathers(2, 0), [0; 0]);
        assert_eq!(gathers(4, 0), [2, 3, 1, 0]);
        // Nothing below layer 2 trains: what is there at the end is 2 and 3.
        assert_eq!(gathers(4, 2), [0, 1, 2, 3]);
        assert_eq!(gathers(4, 4), [0, 1, 2, 3]);
    }
}
