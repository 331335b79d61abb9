//! The stacks, one row each: what one keeps, and how fast it is.
//!
//! Read from transformers 5.23, PEFT 0.21, TRL 1.16, axolotl 0.19, LLaMA-Factory 0.9.5, unsloth 2026.10, torchtune 0.6 and
//! bitsandbytes 0.50. What a setting's own file says goes before the row.

use serde::Serialize;

use super::StackError;

/// A program that trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stack {
    Peft,
    Trl,
    Axolotl,
    LlamaFactory,
    Unsloth,
    Torchtune,
}

/// Bytes of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Number {
    F32,
    /// BF16 or FP16.
    Half,
}

impl Number {
    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Half => 2,
        }
    }
}

/// What is raised to F32 where weights are quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Raised {
    Nothing,
    Norms,
    /// Norms, embedding and head (`prepare_model_for_kbit_training`).
    All,
}

/// How attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionForm {
    /// All scores of a layer exist at once, in the compute dtype and in F32.
    Eager,
    /// PyTorch's own: flash attention where the device has it, its memory-efficient kernel elsewhere.
    Sdpa,
    Flash,
}

/// How the loss is made of the last hidden states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LossForm {
    /// Logits as a whole; beside them F32 logits, their log-softmax and gradients of both.
    Full,
    /// Logits as a whole, and F32 logits that become their own gradient.
    FusedCrossEntropy,
    /// The hidden states go through the head in so many chunks; log-probabilities of all of them are kept.
    Chunked(u64),
    /// Head and loss in one: logits of a few MiB at a time, and the hidden states' gradient is made at once.
    FusedLinear,
    /// TRL's head and loss in one: tiles of 4096 tokens and 32,768 words, which the backward pass computes again.
    Tiled,
}

/// What the backward pass gets back by computing it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    Nothing,
    /// Each decoder layer from its input.
    Layers,
    /// The same, with the inputs in the host's memory.
    LayersOffloaded,
}

/// What is to be known of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StackRow {
    #[serde(skip)]
    pub kind: Stack,
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    pub about: &'static str,
    /// Weights that are not quantized, where the file does not say: as published (16 bits), or in F32.
    pub loads: Number,
    /// Products run under autocast; else in the dtype of their operands.
    pub autocast: bool,
    /// What is raised to F32 beside quantized weights.
    pub raises: Raised,
    /// Adapters beside weights of 16 bits, and beside quantized ones.
    pub adapters: [Number; 2],
    pub attention: AttentionForm,
    pub loss: LossForm,
    pub recompute: Recompute,
    /// Norms, rotation and MLP activation are one kernel each.
    pub fused: bool,
    /// LoRA's products are written by hand: no tensor of the output's size but the output.
    pub fused_lora: bool,
    /// The model's output, with its logits, lives until the step ends.
    pub holds_logits: bool,
    /// AdamW works on all parameters at once, with temporaries as large as they are.
    pub foreach: bool,
    /// Rows of a micro-batch are padded to the longest of them, rounded up to a multiple of this.
    pub pads_to: u64,
    /// Share of the matrix units' peak that large products reach, beside a device's own factor.
    pub product_share: f64,
    /// Share of the bandwidth that passes over memory reach.
    pub bandwidth_share: f64,
    /// Seconds from one launch to the next, as Python makes them.
    pub launch_s: f64,
}

const PEFT: StackRow = StackRow {
    kind: Stack::Peft,
    name: "peft",
    aliases: &["transformers", "transformers+peft", "hf"],
    about: "transformers' Trainer with PEFT's adapters",
    loads: Number::Half,
    autocast: false,
    raises: Raised::All,
    adapters: [Number::F32, Number::F32],
    attention: AttentionForm::Sdpa,
    loss: LossForm::Full,
    recompute: Recompute::Nothing,
    fused: false,
    fused_lora: false,
    holds_logits: true,
    foreach: true,
    pads_to: 1,
    product_share: 0.72,
    bandwidth_share: 0.8,
    launch_s: 17e-6,
};

/// The table.
pub const STACKS: [StackRow; 6] = [
    PEFT,
    StackRow {
        kind: Stack::Trl,
        name: "trl",
        aliases: &["sft"],
        about: "TRL's SFTTrainer and `trl sft`",
        loads: Number::F32,
        autocast: true,
        raises: Raised::Nothing,
        adapters: [Number::F32, Number::Half],
        loss: LossForm::Tiled,
        recompute: Recompute::Layers,
        holds_logits: false,
        foreach: false,
        ..PEFT
    },
    StackRow {
        kind: Stack::Axolotl,
        name: "axolotl",
        aliases: &[],
        about: "axolotl",
        pads_to: 64,
        autocast: true,
        raises: Raised::Nothing,
        foreach: false,
        ..PEFT
    },
    StackRow {
        kind: Stack::LlamaFactory,
        name: "llamafactory",
        aliases: &["llama-factory"],
        about: "LLaMA-Factory",
        pads_to: 8,
        autocast: true,
        raises: Raised::Nothing,
        recompute: Recompute::Layers,
        foreach: false,
        ..PEFT
    },
    StackRow {
        kind: Stack::Unsloth,
        name: "unsloth",
        aliases: &[],
        about: "unsloth, with its kernels",
        autocast: true,
        raises: Raised::Nothing,
        loss: LossForm::FusedLinear,
        recompute: Recompute::LayersOffloaded,
        fused: true,
        fused_lora: true,
        holds_logits: false,
        foreach: false,
        launch_s: 12e-6,
        ..PEFT
    },
    StackRow {
        kind: Stack::Torchtune,
        name: "torchtune",
        aliases: &[],
        about: "torchtune",
        autocast: false,
        raises: Raised::Nothing,
        adapters: [Number::Half, Number::Half],
        loss: LossForm::Chunked(8),
        recompute: Recompute::Nothing,
        holds_logits: false,
        foreach: false,
        ..PEFT
    },
];

impl Stack {
    /// Its row.
    pub fn row(self) -> &'static StackRow {
        STACKS.iter().find(|row| row.kind == self).unwrap_or(&PEFT)
    }

    /// Its name on the command line and in study files.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The stack of that name.
    ///
    /// # Errors
    /// [`StackError::UnknownStack`], with the names that there are.
    pub fn from_name(name: &str) -> Result<Self, StackError> {
        let wanted = name.trim().to_lowercase();
        let found = STACKS
            .iter()
            .find(|row| row.name == wanted || row.aliases.contains(&wanted.as_str()));
        found.map(|row| row.kind).ok_or_else(|| StackError::UnknownStack {
            name: name.to_owned(),
            known: STACKS.map(|row| row.name).join(", "),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stack_has_one_row_and_is_found_by_its_names() {
        for row in &STACKS {
            assert_eq!(row.kind.row(), row);
            for name in row.aliases.iter().chain([&row.name]) {
                assert_eq!(Stack::from_name(name).unwrap(), row.kind);
            }
        }
        let error = Stack::from_name("megatron").unwrap_err().to_string();
        assert!(error.contains("trl"), "{error}");
    }
}
