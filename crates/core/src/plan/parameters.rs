//! The places of all trainable parameters in flat buffers.

/// What a parameter is, for optimizers that treat kinds differently.
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
