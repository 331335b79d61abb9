//! [`StackSetting`]: one fine-tuning as a stack runs it.

use serde::{Serialize, Serializer};

use super::behaviour::{AttentionForm, LossForm, Number, Raised, Recompute, StackBehaviour, Unable};
use super::comparison::Comparison;
use super::role::{ROLES, Role};
use super::weight_form::WeightForm;
use super::{ModelShape, StackError};

/// Parameters that are trained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trains {
    Everything,
    Adapters {
        rank: u64,
        #[serde(skip)]
        targets: Vec<Role>,
        has_dropout: bool,
        /// Embedding and head are trained whole beside the adapters.
        whole_embeddings: bool,
    },
}

/// States of an optimizer, bytes for each trained element.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OptimizerForm {
    /// States that have the parameter's dtype.
    pub states: u64,
    /// Bytes beside those, such as codes of 8 bits.
    pub bytes: u64,
    /// The states lie in the host's memory.
    pub is_paged: bool,
    /// Temporaries as large as all parameters.
    pub foreach: bool,
    /// Updates run inside the backward pass, and no gradient is kept.
    pub in_backward: bool,
}

/// How work and tensors are shared between devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// Every device has everything (DDP).
    Copies,
    /// DeepSpeed ZeRO 1: optimizer states are shared out.
    Zero1,
    /// ZeRO 2: gradients too.
    Zero2,
    /// ZeRO 3: weights too.
    Zero3,
    /// FSDP: weights, gradients and states.
    Full,
    /// FSDP inside nodes of so many devices, copies between them.
    Hybrid(u64),
}

impl Sharing {
    /// The sharing of a name such as `copies`, `zero2`, `fsdp` or `hybrid-8`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name.to_lowercase().as_str() {
            "copies" | "ddp" => Some(Self::Copies),
            "zero1" => Some(Self::Zero1),
            "zero2" => Some(Self::Zero2),
            "zero3" => Some(Self::Zero3),
            "fsdp" | "full" => Some(Self::Full),
            other => {
                let devices: u64 = other.strip_prefix("hybrid-")?.parse().ok()?;
                (devices > 0).then_some(Self::Hybrid(devices))
            }
        }
    }
}

fn by_name<S: Serializer>(stack: &StackBehaviour, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(stack.name)
}

/// One fine-tuning as a stack runs it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StackSetting {
    #[serde(serialize_with = "by_name")]
    pub stack: &'static StackBehaviour,
    pub trains: Trains,
    pub weights: WeightForm,
    /// Dtype of weights that are not quantized.
    pub loads: Number,
    /// Dtype of products.
    pub computes: Number,
    pub autocast: bool,
    pub raises: Raised,
    pub adapters: Number,
    /// Adapters have magnitudes beside their factors (DoRA).
    pub dora: bool,
    /// Comparison of answers that is learnt.
    #[serde(skip_serializing_if = "Comparison::is_none")]
    pub comparison: Comparison,
    /// Rows that go through the model at once, on each device.
    pub micro_batch: u64,
    pub gradient_accumulation: u64,
    /// Tokens of a row, padding included; of rows that are compared, of each of their sequences.
    pub sequence_length: u64,
    /// Batches are padded to their longest row only, so that their lengths differ; `sequence_length` is the longest.
    pub rows_differ: bool,
    pub recompute: Recompute,
    pub optimizer: OptimizerForm,
    pub attention: AttentionForm,
    pub loss: LossForm,
    pub fused: bool,
    pub fused_lora: bool,
    /// The model goes through a compiler, which fuses passes over memory.
    pub compiled: bool,
    pub holds_logits: bool,
    /// Outputs are raised to F32 on their way out of the model (accelerate, with mixed precision on several devices).
    pub raises_outputs: bool,
    pub devices: u64,
    pub sharing: Sharing,
    /// Whether what is shared out lies in the host's memory: optimizer states, and weights with ZeRO 3.
    pub offloads: bool,
}

impl Unable {
    /// Whether a setting of a model asks for the feature.
    fn is_asked(self, setting: &StackSetting, shape: &ModelShape) -> bool {
        match self {
            Self::Experts => shape.experts.is_some(),
            Self::Int8 => setting.weights == WeightForm::Int8,
            Self::SharedWeights => setting.devices > 1 && setting.sharing != Sharing::Copies,
        }
    }
}

/// Reasons why predictions are not proven, whatever the stack.
const OFFLOADED: &str =
    "with what is shared out in the host's memory, published peaks are up to a half above predictions";
const DEEPSPEED: &str = "ZeRO was compared on one device only";
const COMPARED: &str = "steps of trainers of preferences were compared with nothing";

/// Larger settings are no training that a device could run; smaller numbers keep sums in range.
const MOST_TOKENS: u64 = 1 << 24;
/// Scores of attention that no device could hold either, bytes and passes over them counted.
const MOST_SCORES: u64 = 1 << 57;

impl StackSetting {
    /// A setting as `stack` has it by default: LoRA on all linear layers at rank 16, AdamW, rows of 1024 tokens.
    pub fn new(stack: &'static StackBehaviour, weights: WeightForm) -> Self {
        Self {
            stack,
            trains: Trains::Adapters {
                rank: 16,
                targets: ROLES.to_vec(),
                has_dropout: false,
                whole_embeddings: false,
            },
            weights,
            loads: stack.loads,
            computes: Number::Half,
            autocast: stack.autocast,
            raises: stack.raises,
            adapters: stack.adapters[usize::from(weights.is_quantized())],
            dora: false,
            comparison: Comparison::NONE,
            micro_batch: 1,
            gradient_accumulation: 1,
            sequence_length: 1024,
            rows_differ: false,
            recompute: stack.recompute,
            optimizer: OptimizerForm {
                states: 2,
                bytes: 0,
                is_paged: false,
                foreach: stack.foreach,
                in_backward: false,
            },
            attention: stack.attention,
            loss: stack.loss,
            fused: stack.fused,
            fused_lora: stack.fused_lora,
            compiled: false,
            holds_logits: stack.holds_logits,
            raises_outputs: false,
            devices: 1,
            sharing: Sharing::Copies,
            offloads: false,
        }
    }

    /// The setting on a model: weights that its checkpoint has in codes stay in these, whatever else is asked for.
    #[must_use]
    pub fn on(&self, shape: &ModelShape) -> Self {
        let mut setting = self.clone();
        let Some(stored) = &shape.stored else {
            return setting;
        };
        setting.weights = stored.form;
        if setting.computes == Number::Half {
            setting.adapters = setting.stack.adapters[1];
        }
        setting
    }

    /// The setting as it runs on a model: a stack's own layers are those of some types of models, and they take no dropout between LoRA's
    /// factors; scores that a tanh caps exist at once in them.
    pub fn as_run(&self, shape: &ModelShape) -> Self {
        let mut setting = self.clone();
        let Some(own) = self.stack.own_layers else {
            return setting;
        };
        let is_own = own.are_of(&shape.model_type);
        let has_dropout = matches!(&self.trains, Trains::Adapters { has_dropout: true, .. });
        setting.fused_lora &= is_own && !has_dropout;
        if is_own && shape.caps_scores && setting.attention == AttentionForm::Sdpa {
            setting.attention = AttentionForm::Eager;
        }
        setting
    }

    /// Reason why no measurement stands behind predictions of the setting; `None` where such settings were compared.
    pub fn unproven(&self) -> Option<&'static str> {
        let reasons = [
            (self.offloads, OFFLOADED),
            (self.is_deepspeeds() && self.devices > 1, DEEPSPEED),
            (!self.comparison.is_none(), COMPARED),
        ];
        let found = reasons.into_iter().find(|(holds, _)| *holds);
        self.stack.unproven.or(found.map(|(_, reason)| reason))
    }

    fn is_deepspeeds(&self) -> bool {
        matches!(self.sharing, Sharing::Zero1 | Sharing::Zero2 | Sharing::Zero3)
    }

    /// Sequences of a micro-batch.
    pub fn sequences(&self) -> u64 {
        self.micro_batch.saturating_mul(self.comparison.sequences)
    }

    /// Tokens of a micro-batch.
    pub fn tokens(&self) -> u64 {
        self.sequences().saturating_mul(self.sequence_length)
    }

    /// Scores of attention in a layer.
    fn scores(&self, shape: &ModelShape) -> u64 {
        let of_token = self.sequence_length.saturating_mul(shape.heads);
        self.tokens().saturating_mul(of_token)
    }

    /// Whether the numbers are such that anything can be said.
    ///
    /// # Errors
    /// What is 0, or larger than any training; what the stack cannot run.
    pub fn check(&self, shape: &ModelShape) -> Result<(), StackError> {
        for (key, value, most) in [
            ("micro_batch", self.micro_batch, 1 << 20),
            ("gradient_accumulation", self.gradient_accumulation, 1 << 20),
            ("sequence_length", self.sequence_length, 1 << 22),
            ("micro_batch x sequence_length", self.tokens(), MOST_TOKENS),
            (
                "micro_batch x sequence_length^2 x heads",
                self.scores(shape),
                MOST_SCORES,
            ),
            ("devices", self.devices, 1 << 16),
        ] {
            if !(1..=most).contains(&value) {
                return Err(StackError::Setting { key, value, most });
            }
        }
        match &self.trains {
            Trains::Adapters { rank, .. } if !(1..=1 << 16).contains(rank) => Err(StackError::Setting {
                key: "rank",
                value: *rank,
                most: 1 << 16,
            }),
            Trains::Everything if self.weights.is_quantized() => Err(StackError::CannotRun {
                stack: self.stack.name,
                what: "all parameters are trained, and weights are quantized".into(),
                instead: "train adapters, or load the weights in bf16".into(),
            }),
            _ => self.check_stack(shape),
        }
    }

    fn check_stack(&self, shape: &ModelShape) -> Result<(), StackError> {
        let refused = self
            .stack
            .refuses
            .iter()
            .find(|refusal| refusal.of.is_asked(self, shape));
        refused.map_or(Ok(()), |refusal| {
            Err(StackError::CannotRun {
                stack: self.stack.name,
                what: refusal.what.to_owned(),
                instead: refusal.instead.to_owned(),
            })
        })
    }

    /// DeepSpeed updates F32 copies of parameters of 16 bits.
    pub(super) fn keeps_masters(&self) -> bool {
        let trained = match self.trains {
            Trains::Everything => self.loads,
            Trains::Adapters { .. } => self.adapters,
        };
        self.is_deepspeeds() && trained == Number::Half
    }

    /// Devices among which weights, gradients and optimizer states are shared out.
    pub(super) fn shares(&self) -> [u64; 3] {
        let all = self.devices.max(1);
        match self.sharing {
            Sharing::Copies => [1, 1, 1],
            Sharing::Zero1 => [1, 1, all],
            Sharing::Zero2 => [1, all, all],
            Sharing::Zero3 | Sharing::Full => [all; 3],
            Sharing::Hybrid(node) => [node.clamp(1, all); 3],
        }
    }
}
