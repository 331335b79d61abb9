//! Names of the linear layers that get adapters, as a model's checkpoint has them.

use peft_tune_core::architecture::{Architecture, LinearModule, LinearRole, Mixer};
use peft_tune_core::plan::{expression_within, last_component};
use peft_tune_core::recipe::{AdapterSettings, TargetModules, TargetPreset};
use serde_json::{Value, json};

/// Layers of most families, for models whose `config.json` is not at hand.
const ATTENTION: [&str; 4] = ["q_proj", "k_proj", "v_proj", "o_proj"];
const MLP: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// The modules that an adapter is for, as PEFT takes them: a list of endings, or the regular expression that leaves out what
/// stands beside a language model. The expression names the layers too.
pub(crate) fn peft_targets(adapter: &AdapterSettings, architecture: Option<&Architecture>) -> Value {
    let names = module_names(&adapter.target_modules, architecture);
    match is_within(architecture) {
        true => json!(expression_within(&names, adapter.layers_to_transform.as_deref())),
        false => json!(names),
    }
}

/// Whether a model is a part of a multimodal one.
pub(crate) fn is_within(architecture: Option<&Architecture>) -> bool {
    architecture.is_some_and(|architecture| architecture.within.is_some())
}

/// The endings of the modules that `targets` means on a model.
pub(crate) fn module_names(targets: &TargetModules, architecture: Option<&Architecture>) -> Vec<String> {
    match targets {
        TargetModules::Named(names) => names.clone(),
        TargetModules::Preset(preset) => layers(architecture)
            .into_iter()
            .filter(|(_, group)| match preset {
                TargetPreset::AllLinear => true,
                TargetPreset::Attention => *group == ModuleGroup::Attention,
                TargetPreset::Mlp => *group == ModuleGroup::Mlp,
            })
            .map(|(name, _)| name.to_owned())
            .collect(),
    }
}

/// What a linear layer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModuleGroup {
    Attention,
    Mlp,
    /// What only some families have: the inputs of layers beside the stream.
    Other,
}

/// Each linear layer's name, and what it belongs to.
fn layers(architecture: Option<&Architecture>) -> Vec<(&'static str, ModuleGroup)> {
    let Some(architecture) = architecture else {
        let named = |group| move |name: &'static str| (name, group);
        return ATTENTION
            .into_iter()
            .map(named(ModuleGroup::Attention))
            .chain(MLP.into_iter().map(named(ModuleGroup::Mlp)))
            .collect();
    };
    let group = |role: LinearRole| match role {
        LinearRole::InputGate | LinearRole::InputProjection | LinearRole::LayerInputs => ModuleGroup::Other,
        role if role.attends() => ModuleGroup::Attention,
        _ => ModuleGroup::Mlp,
    };
    let mut named = Vec::new();
    for module in modules(architecture) {
        let name = last_component(module.name);
        if named.iter().all(|(known, _)| *known != name) {
            named.push((name, group(module.role)));
        }
    }
    named
}

/// The linear layers of all kinds of layers, those that attend first, and the one beside them. Of a mixture they are the ones of a
/// layer without experts.
fn modules(architecture: &Architecture) -> Vec<LinearModule> {
    let mut modules = architecture.linear_modules();
    let others = (0..architecture.layers.len()).filter(|index| architecture.mixer(*index) != Mixer::Attention);
    modules.extend(others.take(1).flat_map(|index| architecture.layer_modules(index)));
    modules.extend(architecture.outer_module());
    modules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_name_the_layers_of_the_family() {
        let path =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/ref_phi3/model/config.json");
        let phi3 = Architecture::from_config(&path).unwrap();
        let names = |preset| module_names(&TargetModules::Preset(preset), Some(&phi3));
        assert_eq!(names(TargetPreset::Attention), ["qkv_proj", "o_proj"]);
        assert_eq!(names(TargetPreset::Mlp), ["gate_up_proj", "down_proj"]);
        let path =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/ref_lfm2/model/config.json");
        let lfm2 = Architecture::from_config(&path).unwrap();
        let names = |preset| module_names(&TargetModules::Preset(preset), Some(&lfm2));
        let attention = ["q_proj", "k_proj", "v_proj", "out_proj", "in_proj"];
        assert_eq!(names(TargetPreset::Attention), attention);
        assert_eq!(names(TargetPreset::Mlp), ["w1", "w3", "w2"]);
        let path =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/ref_gemma3_mm/model/config.json");
        let gemma = Architecture::from_config(&path).unwrap();
        let settings = AdapterSettings {
            target_modules: TargetModules::Preset(TargetPreset::Mlp),
            ..AdapterSettings::default()
        };
        let expected = r".*language_model\.(?:.*\.)?(?:gate_proj|up_proj|down_proj)";
        assert_eq!(peft_targets(&settings, Some(&gemma)), expected);
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/golden/ref_gemma4_e2b/model/config.json");
        let gemma = Architecture::from_config(&path).unwrap();
        let names = |preset| module_names(&TargetModules::Preset(preset), Some(&gemma));
        assert_eq!(names(TargetPreset::Mlp), ["gate_proj", "up_proj", "down_proj"]);
        let all = names(TargetPreset::AllLinear);
        let inputs = [
            "per_layer_input_gate",
            "per_layer_projection",
            "per_layer_model_projection",
        ];
        assert_eq!(all[7..], inputs);
        let unknown = module_names(&TargetModules::Preset(TargetPreset::AllLinear), None);
        assert_eq!(unknown.len(), 7);
    }
}
