//! The storage that each tensor of an architecture asks for.

use std::collections::BTreeMap;

use candle_core::DType;

use peft_tune_core::architecture::{Architecture, CORRECTION, Experts, LinearRole};
use peft_tune_core::recipe::Precision;

/// Storage of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightKind {
    /// Values in the compute dtype.
    Dense,
    /// Weight of a linear layer: quantized where the precision says so.
    Linear,
    /// F32 whatever the precision: a rounded score chooses another expert.
    Exact,
}

impl WeightKind {
    /// Dtype of what is not quantized.
    pub(super) fn dtype(self, precision: Precision) -> DType {
        match self {
            Self::Exact => DType::F32,
            Self::Dense | Self::Linear => compute_dtype(precision),
        }
    }
}

/// Kinds that the tensors of an architecture are stored as.
pub(super) struct WeightKinds<'a> {
    /// The weight of a linear layer beside the decoder layers.
    outer: Option<String>,
    experts: Option<&'a Experts>,
    /// Names of the linear layers inside decoder layers, and whether they are routers.
    modules: BTreeMap<&'static str, bool>,
}

impl<'a> WeightKinds<'a> {
    pub(super) fn new(architecture: &'a Architecture) -> Self {
        let layers = 0..architecture.layers.len();
        let modules = layers.flat_map(|index| architecture.layer_modules(index));
        Self {
            experts: architecture.experts.as_ref(),
            outer: architecture
                .outer_module()
                .map(|module| format!("{}.weight", module.name)),
            modules: modules
                .map(|module| (module.name, module.role == LinearRole::Router))
                .collect(),
        }
    }

    fn is_router_bias(&self, inner: &str) -> bool {
        let module = inner.strip_suffix(".bias").and_then(|module| self.modules.get(module));
        module.copied().unwrap_or(false)
    }

    /// Kind of the tensor `name`: linear layers and experts may be quantized; what chooses experts is exact.
    pub(super) fn of(&self, name: &str) -> WeightKind {
        if self.outer.as_deref() == Some(name) {
            return WeightKind::Linear;
        }
        let inner = name.splitn(4, '.').nth(3).unwrap_or_default();
        let module = inner
            .strip_suffix(".weight")
            .and_then(|module| self.modules.get(module));
        match (module, self.experts) {
            (Some(true), _) => WeightKind::Exact,
            // What is added to exact logits is exact too.
            _ if self.is_router_bias(inner) => WeightKind::Exact,
            (Some(false), _) => WeightKind::Linear,
            (None, Some(experts)) if experts.weight_of(inner).is_some() => WeightKind::Linear,
            (None, Some(_)) if inner.ends_with(CORRECTION) => WeightKind::Exact,
            (None, _) => WeightKind::Dense,
        }
    }
}

/// Dtype in which a precision computes.
pub(crate) fn compute_dtype(precision: Precision) -> DType {
    match precision.compute() {
        Precision::Fp32 => DType::F32,
        Precision::Fp16 => DType::F16,
        _ => DType::BF16,
    }
}
