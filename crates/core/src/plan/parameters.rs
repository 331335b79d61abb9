//! The places of all trainable parameters in flat buffers.

use crate::architecture::is_token_table;

/// Elements from which on an optimizer in 8 bits keeps codes of a parameter: `min_8bit_size` of bitsandbytes, whose parameters are
/// tensors of the model as these slots are.
const SMALLEST_CODED: usize = 4096;

/// Kind of a parameter, for optimizers that treat kinds differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParameterKind {
    LoraA,
    LoraB,
    /// DoRA's magnitude vector.
    Magnitude,
    Bias,
    /// A parameter of the base model itself (full fine-tuning, `modules_to_save`).
    Base,
}

/// One parameter's place in the flat buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterSlot {
    /// Name as PEFT's checkpoint has it for adapters (`base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight`),
    /// as the base checkpoint has it for base parameters.
    pub name: String,
    pub shape: Vec<usize>,
    pub kind: ParameterKind,
    /// First element in the flat buffers.
    pub offset: usize,
}

impl ParameterSlot {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the states are codes where an optimizer has them in 8 bits. They stay F32 for small parameters, as in bitsandbytes, and
    /// for tables of token ids, as transformers' Trainer and PEFT register each `nn.Embedding` with it: most rows have a gradient of 0
    /// in most steps. The optimizer and the prediction of its memory both ask here.
    pub fn is_coded(&self) -> bool {
        self.elements() >= SMALLEST_CODED && !is_token_table(&self.name)
    }
}

/// The order and places of all trainable parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParameterLayout {
    slots: Vec<ParameterSlot>,
    elements: usize,
}

impl ParameterLayout {
    /// Appends a parameter and returns its index.
    pub fn push(&mut self, name: impl Into<String>, shape: &[usize], kind: ParameterKind) -> usize {
        let slot = ParameterSlot {
            name: name.into(),
            shape: shape.to_vec(),
            kind,
            offset: self.elements,
        };
        self.elements += slot.elements();
        self.slots.push(slot);
        self.slots.len() - 1
    }

    pub fn slots(&self) -> &[ParameterSlot] {
        &self.slots
    }

    /// Elements of all parameters together.
    pub fn elements(&self) -> usize {
        self.elements
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_parameters_and_token_tables_have_no_codes() {
        let is_coded = |name: &str, shape: &[usize]| {
            let mut layout = ParameterLayout::default();
            layout.push(name, shape, ParameterKind::Base);
            layout.slots()[0].is_coded()
        };
        let adapter = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
        assert!(is_coded(adapter, &[16, 256]) && !is_coded(adapter, &[16, 255]));
        assert!(is_coded("lm_head.weight", &[512, 64]));
        for table in [
            "model.embed_tokens.weight",
            "base_model.model.model.embed_tokens.weight",
            "base_model.model.model.language_model.embed_tokens.weight",
            "model.embed_tokens_per_layer.weight",
        ] {
            assert!(!is_coded(table, &[512, 64]), "{table}");
        }
    }
}
