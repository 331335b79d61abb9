//! The storage that each tensor of an architecture asks for.

use std::collections::BTreeMap;

use super::weight::WeightKind;
use peft_tune_core::architecture::{Architecture, CORRECTION, Experts, LinearRole};

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
