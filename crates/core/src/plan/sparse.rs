//! Models and recipes in which weights can be left out.

use super::PlanError;
use crate::architecture::{Architecture, ExpertPart, LinearRole};
use crate::recipe::{AdapterInit, Recipe, SPARSE_GROUP, WeightSparsity};

/// Refuses a sparsity that the recipe's other settings or the model's shapes have no place for.
///
/// # Errors
/// Each says what to do.
pub(super) fn check(architecture: &Architecture, recipe: &Recipe) -> Result<(), PlanError> {
    let sparsity = recipe.weight_sparsity;
    if sparsity.is_none() {
        return Ok(());
    }
    let Some(adapter) = &recipe.adapter else {
        return Err(PlanError::SparseWhole { sparsity });
    };
    if recipe.precision.is_quantized() {
        let precision = recipe.precision;
        return Err(PlanError::SparseCodes { sparsity, precision });
    }
    if adapter.init == AdapterInit::Pissa {
        return Err(PlanError::SparsePissa { sparsity });
    }
    if let Some((tensor, inputs)) = odd_width(architecture) {
        return Err(PlanError::SparseWidth {
            sparsity,
            tensor,
            inputs,
        });
    }
    match (sparsity, not_in_turn(architecture)) {
        (WeightSparsity::Wanda, Some(what)) => Err(PlanError::WandaLayers {
            sparsity,
            family: architecture.family.name(),
            what,
        }),
        _ => Ok(()),
    }
}

/// The first linear weight whose rows are not whole groups, and their length.
fn odd_width(architecture: &Architecture) -> Option<(String, usize)> {
    let is_odd = |inputs: usize| !inputs.is_multiple_of(SPARSE_GROUP);
    if let Some(module) = architecture.outer_module().filter(|module| is_odd(module.in_features)) {
        return Some((format!("{}.weight", module.name), module.in_features));
    }
    for index in 0..architecture.layers.len() {
        let layer = Architecture::layer_name(index);
        let modules = architecture.layer_modules(index).into_iter();
        let mut modules = modules.filter(|module| module.role != LinearRole::Router && is_odd(module.in_features));
        if let Some(module) = modules.next() {
            return Some((format!("{layer}.{}.weight", module.name), module.in_features));
        }
        let Some(experts) = architecture.experts_of(index) else {
            continue;
        };
        for part in [ExpertPart::Gate, ExpertPart::Down] {
            let [_, inputs] = experts.part_shape(part, architecture.hidden_size);
            if is_odd(inputs) {
                return Some((format!("{layer}.{}", experts.weight_name(0, part)), inputs));
            }
        }
    }
    None
}

/// Part of a model that keeps its layers from being run one after the other on the rows of another pass.
fn not_in_turn(architecture: &Architecture) -> Option<&'static str> {
    let has_sources = (0..architecture.layers.len()).any(|index| architecture.source_of(index).is_some());
    if architecture.experts.is_some() {
        return Some("experts");
    }
    if !architecture.attends_everywhere() {
        return Some("layers that do not attend");
    }
    if architecture.layer_inputs.is_some() {
        return Some("layers with inputs of their own");
    }
    has_sources.then_some("layers that read the keys of others")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::ModelPlan;
    use super::*;
    use crate::recipe::{AdapterSettings, DataSettings, Precision};

    fn llama(hidden: usize, intermediate: usize) -> Architecture {
        let config = format!(
            r#"{{"model_type": "llama", "hidden_size": {hidden}, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "intermediate_size": {intermediate}, "vocab_size": 96, "tie_word_embeddings": true,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}}"#
        );
        Architecture::from_json(Path::new("config.json"), &config).unwrap()
    }

    fn adapter() -> AdapterSettings {
        AdapterSettings {
            rank: 4,
            ..AdapterSettings::default()
        }
    }

    fn recipe(sparsity: WeightSparsity) -> Recipe {
        let mut recipe = Recipe::new("model", DataSettings::default());
        recipe.weight_sparsity = sparsity;
        recipe.adapter = Some(adapter());
        recipe
    }

    fn error(architecture: &Architecture, recipe: &Recipe) -> String {
        ModelPlan::of_recipe(architecture, recipe).unwrap_err().to_string()
    }

    #[test]
    fn each_refusal_names_its_key_and_what_to_do() {
        let sound = llama(16, 24);
        for sparsity in [WeightSparsity::Magnitude, WeightSparsity::Wanda] {
            assert!(ModelPlan::of_recipe(&sound, &recipe(sparsity)).is_ok());
            let mut whole = recipe(sparsity);
            whole.adapter = None;
            let said = error(&sound, &whole);
            assert!(
                said.contains(&format!("`weight_sparsity: {sparsity}`")) && said.contains("train an adapter"),
                "{said}"
            );
            let mut coded = recipe(sparsity);
            coded.precision = Precision::Nf4;
            let said = error(&sound, &coded);
            assert!(
                said.contains("`precision` is nf4") && said.contains("to none"),
                "{said}"
            );
            let mut pissa = recipe(sparsity);
            pissa.adapter = Some(AdapterSettings {
                init: AdapterInit::Pissa,
                ..adapter()
            });
            assert!(error(&sound, &pissa).contains("`init: pissa`"));
            // The width of the stream divides, that of the MLP does not.
            let said = error(&llama(16, 26), &recipe(sparsity));
            assert!(said.contains("`model.layers.0.mlp.down_proj.weight` have 26"), "{said}");
        }
        assert!(ModelPlan::of_recipe(&llama(16, 26), &recipe(WeightSparsity::None)).is_ok());
    }
}
