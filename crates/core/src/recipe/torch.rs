//! Settings of a training in PyTorch's stack: choices among its kernels and loaders, which the built-in engine does without.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Recipe;
use super::named::named;
use crate::quantity::{self, Count};

/// Implementation of attention among those that transformers has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AttentionImplementation {
    #[default]
    Auto,
    Eager,
    Sdpa,
    Flash2,
    Flash3,
    Flash4,
    Flex,
}

/// Row of the table of implementations of attention.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AttentionImplementationRow {
    #[serde(skip)]
    pub kind: AttentionImplementation,
    pub name: &'static str,
    /// Names that are read beside `name`.
    pub aliases: &'static [&'static str],
    pub about: &'static str,
    /// Whether a processor trains with it.
    pub on_cpu: bool,
    /// Package that has its kernels; `None` for what PyTorch has itself.
    pub package: Option<&'static str>,
}

const ROWS: &[AttentionImplementationRow] = &[
    AttentionImplementationRow {
        kind: AttentionImplementation::Auto,
        name: "auto",
        aliases: &[],
        about: "What transformers takes by itself: PyTorch's attention, where the model has it.",
        on_cpu: true,
        package: None,
    },
    AttentionImplementationRow {
        kind: AttentionImplementation::Eager,
        name: "eager",
        aliases: &[],
        about: "Products and a softmax one by one: all scores of a layer lie in memory.",
        on_cpu: true,
        package: None,
    },
    AttentionImplementationRow {
        kind: AttentionImplementation::Sdpa,
        name: "sdpa",
        aliases: &[],
        about: "PyTorch's `scaled_dot_product_attention`.",
        on_cpu: true,
        package: None,
    },
    AttentionImplementationRow {
        kind: AttentionImplementation::Flash2,
        name: "flash_attention_2",
        aliases: &[],
        about: "FlashAttention 2 of the package flash-attn.",
        on_cpu: false,
        package: Some("flash-attn"),
    },
    AttentionImplementationRow {
        kind: AttentionImplementation::Flash3,
        name: "flash_attention_3",
        aliases: &[],
        about: "FlashAttention 3 of the package flash-attn-3.",
        on_cpu: false,
        package: Some("flash-attn-3"),
    },
    AttentionImplementationRow {
        kind: AttentionImplementation::Flash4,
        name: "flash_attention_4",
        aliases: &[],
        about: "FlashAttention 4 of the package flash-attn-4.",
        on_cpu: false,
        package: Some("flash-attn-4"),
    },
    AttentionImplementationRow {
        kind: AttentionImplementation::Flex,
        name: "flex_attention",
        aliases: &[],
        about: "PyTorch's compiled `flex_attention`.",
        // PyTorch has no backward pass of it for a processor.
        on_cpu: false,
        package: None,
    },
];

named!(
    AttentionImplementation,
    AttentionImplementationRow,
    ROWS,
    "AttentionImplementation",
    "How transformers computes attention."
);

impl AttentionImplementation {
    /// Whether transformers is left to choose.
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }

    /// Whether packed documents keep apart in it: these kernels read where each begins.
    pub fn keeps_documents_apart(self) -> bool {
        matches!(self, Self::Auto | Self::Flash2 | Self::Flash3 | Self::Flash4)
    }
}

/// Choices of a training in PyTorch, transformers and TRL.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TorchSettings {
    /// How attention is computed.
    pub attn_implementation: AttentionImplementation,
    /// Has the model compiled by `torch.compile`.
    pub torch_compile: bool,
    /// Takes norms, rotations and MLP activations from the package liger-kernel.
    pub use_liger_kernel: bool,
    /// Processes that read rows beside the trainer's; 0 reads as `batch.prefetch_depth` says.
    #[serde(deserialize_with = "quantity::count")]
    #[schemars(with = "Count")]
    pub dataloader_num_workers: usize,
}

/// Setting of a recipe that the built-in engine has no part of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{setting}: {value}` is for trainings in TRL: {why}; leave it out, or train with `backend: trl`")]
pub struct TorchOnly {
    pub setting: &'static str,
    pub value: String,
    pub why: &'static str,
}

impl TorchSettings {
    /// Whether nothing is said of PyTorch.
    pub fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

impl Recipe {
    /// Refuses a recipe with a choice that PyTorch's stack alone has.
    ///
    /// # Errors
    /// The first such choice, by its name.
    pub fn check_built_in(&self) -> Result<(), TorchOnly> {
        let TorchSettings {
            attn_implementation: attention,
            torch_compile,
            use_liger_kernel,
            dataloader_num_workers: workers,
        } = &self.torch;
        let asked = [
            (
                !attention.is_auto(),
                "attn_implementation",
                attention.to_string(),
                "the built-in engine has one attention, whose scores never lie in memory",
            ),
            (
                *torch_compile,
                "torch_compile",
                "true".to_owned(),
                "the built-in engine has no graph of PyTorch to compile",
            ),
            (
                *use_liger_kernel,
                "use_liger_kernel",
                "true".to_owned(),
                "the built-in engine fuses such passes by itself",
            ),
            (
                *workers > 0,
                "dataloader_num_workers",
                workers.to_string(),
                "the built-in engine reads rows on a thread, as far ahead as `prefetch_depth` says",
            ),
        ];
        let refused = asked.into_iter().find(|(is_asked, ..)| *is_asked);
        match refused {
            None => Ok(()),
            Some((_, setting, value, why)) => Err(TorchOnly { setting, value, why }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::settings::settings;
    use crate::recipe::{DataSettings, ParamValue};

    #[test]
    fn what_pytorch_alone_has_is_refused_by_name() {
        let plain = Recipe::new("model", DataSettings::default());
        assert_eq!(plain.check_built_in(), Ok(()));
        for row in settings().filter(|row| row.is_of_torch()) {
            let value = match row.name {
                "attn_implementation" => ParamValue::from("eager"),
                "dataloader_num_workers" => ParamValue::Int(2),
                _ => ParamValue::Bool(true),
            };
            let mut recipe = plain.clone();
            (row.set)(&mut recipe, &value).unwrap();
            let told = recipe.check_built_in().unwrap_err().to_string();
            assert!(
                told.starts_with(&format!("`{}: {value}`", row.name)) && told.ends_with("`backend: trl`"),
                "{told}"
            );
        }
    }
}
