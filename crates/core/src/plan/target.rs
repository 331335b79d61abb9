//! Which linear layers `target_modules` and `layers_to_transform` select, as PEFT does.
//!
//! A name t selects a module n if n == t or n ends in `.t`. With `layers_to_transform`, only modules below a numbered
//! layer count, and its number must be in the list.

use crate::recipe::{AdapterSettings, TargetModules, TargetPreset};

use super::error::PlanError;
use super::shape::{BaseShape, LinearShape, last_component};

/// Endings of attention projections; `qkv_proj` is the fused form (Phi-3).
const ATTENTION: &[&str] = &["q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj"];
/// Endings of MLP projections; `gate_up_proj` is the fused form (Phi-3), `input_linear` and `output_linear` are Granite 4's.
const MLP: &[&str] = &[
    "gate_proj",
    "up_proj",
    "down_proj",
    "gate_up_proj",
    "input_linear",
    "output_linear",
];

/// The linears of `base` that get an adapter, in the order of `base`.
pub(super) fn select<'a>(settings: &AdapterSettings, base: &'a BaseShape) -> Result<Vec<&'a LinearShape>, PlanError> {
    check_names(settings, base)?;
    check_layers(settings, base)?;
    let selected: Vec<_> = base
        .linears
        .iter()
        .filter(|linear| is_target(&settings.target_modules, &linear.name) && is_in_layers(settings, &linear.name))
        .collect();
    if selected.is_empty() {
        return Err(PlanError::NoTarget {
            known: known_suffixes(base.linears.iter().map(|linear| linear.name.as_str())),
        });
    }
    Ok(selected)
}

/// The endings of `names`, each once, in their order.
pub(super) fn known_suffixes<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut known = Vec::new();
    for name in names.map(last_component) {
        if !known.contains(&name) {
            known.push(name);
        }
    }
    known.join(", ")
}

/// The regular expression that PEFT needs for modules of a language model inside of a multimodal one that end in `names`, of
/// some layers or of all. PEFT compares whole names with it, and takes no list of layers beside an expression.
pub fn expression_within(names: &[String], layers: Option<&[usize]>) -> String {
    let escaped = names.iter().map(|name| {
        let inside = name.strip_prefix("model.").unwrap_or(name);
        inside.replace('.', "\\.")
    });
    let any = escaped.collect::<Vec<_>>().join("|");
    let layers = match layers {
        None | Some([]) => String::new(),
        Some(layers) => {
            let numbers: Vec<String> = layers.iter().map(usize::to_string).collect();
            format!(r"layers\.(?:{})\.(?:.*\.)?", numbers.join("|"))
        }
    };
    format!(r".*language_model\.(?:.*\.)?{layers}(?:{any})")
}

/// Whether module `name` is `target` or lies at its end.
pub(super) fn ends_in(name: &str, target: &str) -> bool {
    name == target || name.strip_suffix(target).is_some_and(|head| head.ends_with('.'))
}

fn is_target(targets: &TargetModules, name: &str) -> bool {
    match targets {
        TargetModules::Preset(TargetPreset::AllLinear) => true,
        TargetModules::Preset(TargetPreset::Attention) => ATTENTION.contains(&last_component(name)),
        TargetModules::Preset(TargetPreset::Mlp) => MLP.contains(&last_component(name)),
        TargetModules::Named(names) => names.iter().any(|target| ends_in(name, target)),
    }
}

fn is_in_layers(settings: &AdapterSettings, name: &str) -> bool {
    // PEFT takes an empty list as "all layers".
    match settings.layers_to_transform.as_deref() {
        None | Some([]) => true,
        Some(layers) => layer_index(name).is_some_and(|layer| layers.contains(&layer)),
    }
}

/// The number in `model.layers.3.mlp.up_proj`: the last numeric component that has two before and one behind it, as
/// PEFT's pattern `.*\.[^.]*\.(\d+)\.` finds it.
fn layer_index(name: &str) -> Option<usize> {
    let parts: Vec<_> = name.split('.').collect();
    let last = parts.len().checked_sub(1)?;
    let numbers = parts.get(2..last)?;
    numbers.iter().rev().find_map(|part| part.parse().ok())
}

fn check_names(settings: &AdapterSettings, base: &BaseShape) -> Result<(), PlanError> {
    let TargetModules::Named(names) = &settings.target_modules else {
        return Ok(());
    };
    for name in names {
        if !base.linears.iter().any(|linear| ends_in(&linear.name, name)) {
            return Err(PlanError::UnknownTarget {
                name: name.clone(),
                known: known_suffixes(base.linears.iter().map(|linear| linear.name.as_str())),
            });
        }
    }
    Ok(())
}

fn check_layers(settings: &AdapterSettings, base: &BaseShape) -> Result<(), PlanError> {
    for &layer in settings.layers_to_transform.iter().flatten() {
        if layer >= base.layers {
            return Err(PlanError::UnknownLayer {
                layer,
                layers: base.layers,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_ends_at_a_dot() {
        assert!(ends_in("model.layers.0.mlp.up_proj", "up_proj"));
        assert!(ends_in("model.layers.0.mlp.up_proj", "mlp.up_proj"));
        assert!(ends_in("up_proj", "up_proj"));
        assert!(!ends_in("model.layers.0.mlp.gate_up_proj", "up_proj"));
    }

    #[test]
    fn the_layer_number_is_found_below_a_prefix() {
        assert_eq!(layer_index("model.layers.12.mlp.up_proj"), Some(12));
        assert_eq!(layer_index("layers.12.mlp"), None);
        assert_eq!(layer_index("lm_head"), None);
    }
}
