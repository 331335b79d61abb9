//! Trainings that take a later quantization into account: what they can have, and the codes that they hold.
//!
//! Every linear layer of the decoder has codes of its merged weight beside the weight itself. Those of a layer with an adapter are made
//! anew before each pass; the others never change.

use super::storage::{BLOCK, WeightBytes, linear_bytes};
use super::{GroupPlan, LayerPlan, ModelPlan, PlanError};
use crate::architecture::Architecture;
use crate::recipe::{Precision, QuantizationAware, Recipe};

/// Rows of a merged weight that are made at once: whole blocks of any width, and little memory.
pub const MERGED_ROWS: usize = 4 * BLOCK;

impl ModelPlan {
    /// Refuses what no merged model in the recipe's form could keep, or what the engine does not train so.
    pub(super) fn check_aware(&self, recipe: &Recipe) -> Result<(), PlanError> {
        let aware = recipe.quantization_aware;
        if aware.is_none() {
            return Ok(());
        }
        let refuse = |with: String, remedy| Err(PlanError::AwareWith { aware, with, remedy });
        if recipe.adapter.is_none() {
            return refuse("full fine-tuning (`adapter: null`)".to_owned(), "train an adapter");
        }
        if recipe.precision.is_quantized() {
            let with = format!("`precision: {}`, whose weights are codes already", recipe.precision);
            return refuse(with, "take `precision` fp32, bf16 or fp16");
        }
        if !recipe.precision_schedule.is_none() {
            let with = format!("`precision_schedule: {}`", recipe.precision_schedule);
            return refuse(with, "set `precision_schedule` to none");
        }
        if !recipe.weight_sparsity.is_none() {
            let with = format!("`weight_sparsity: {}`", recipe.weight_sparsity);
            return refuse(with, "set `weight_sparsity` to none");
        }
        if self.dora() {
            return refuse("`dora`".to_owned(), "set `dora` to false");
        }
        if self.dropout() {
            // What is multiplied is one weight, whose adapter sees what the rest of it sees.
            return refuse("`dropout` above 0".to_owned(), "set `dropout` to 0");
        }
        if let Some(found) = self.architecture.without_quantized_form() {
            return Err(PlanError::AwareModel { aware, found });
        }
        let groups = || self.kinds.iter().flat_map(LayerPlan::groups);
        let mut projections = groups().flat_map(|group| &group.projections);
        if let Some(whole) = projections.find(|projection| projection.weight_trains) {
            let with = format!("`modules_to_save` with `{}`", whole.module);
            return refuse(with, "give it an adapter instead");
        }
        match aware {
            QuantizationAware::Nf4 => groups().try_for_each(check_blocks),
            QuantizationAware::None | QuantizationAware::Int8 => Ok(()),
        }
    }

    /// Bytes of the codes of all linear layers.
    pub fn aware_bytes(&self) -> WeightBytes {
        let mut bytes = WeightBytes::default();
        for kind in self.layers.iter().map(|kind| &self.kinds[*kind]) {
            for group in kind.groups() {
                for projection in &group.projections {
                    let one = merged_bytes([projection.outputs(), group.inputs], self.quantization_aware);
                    bytes.values += one.values;
                    bytes.constants += one.constants;
                }
            }
        }
        bytes
    }
}

/// Bytes of the codes of a merged weight (out, in).
pub fn merged_bytes([outputs, inputs]: [usize; 2], aware: QuantizationAware) -> WeightBytes {
    let elements = (outputs * inputs) as u64;
    match aware {
        QuantizationAware::None => WeightBytes::default(),
        QuantizationAware::Int8 => WeightBytes {
            values: elements,
            constants: 4 * outputs as u64,
        },
        QuantizationAware::Nf4 => linear_bytes(elements, Precision::Nf4),
    }
}

/// A projection of a fused tensor has blocks of its own only where it begins at one of the tensor's.
fn check_blocks(group: &GroupPlan) -> Result<(), PlanError> {
    let within = |row: usize| !(row * group.inputs).is_multiple_of(BLOCK);
    match group
        .projections
        .iter()
        .find(|projection| within(projection.rows.start))
    {
        Some(projection) => Err(PlanError::AwareBlocks {
            module: projection.module,
            row: projection.rows.start,
            inputs: group.inputs,
        }),
        None => Ok(()),
    }
}

impl Architecture {
    /// Part of the model that has no form with quantized weights that other programs load as it is; `None` where all
    /// has one.
    pub fn without_quantized_form(&self) -> Option<&'static str> {
        if self.experts.is_some() {
            return Some("experts");
        }
        if !self.attends_everywhere() {
            return Some("layers that do not attend");
        }
        if self.within.is_some() {
            return Some("a vision tower");
        }
        self.outer_module().map(|_| "linear layers beside the decoder layers")
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::recipe::{DataSettings, PrecisionSchedule, TargetModules, TargetPreset, WeightSparsity};

    fn architecture(family: &str, hidden: usize) -> Architecture {
        let json = format!(
            r#"{{"model_type": "{family}", "hidden_size": {hidden}, "intermediate_size": 96, "num_hidden_layers": 2,
                "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 100, "rms_norm_eps": 1e-6,
                "max_position_embeddings": 128, "pad_token_id": 0, "tie_word_embeddings": true}}"#
        );
        Architecture::from_json(Path::new("config.json"), &json).unwrap()
    }

    fn recipe(aware: QuantizationAware) -> Recipe {
        let mut recipe = Recipe::new("model", DataSettings::default());
        recipe.adapter.as_mut().unwrap().rank = 2;
        recipe.quantization_aware = aware;
        recipe
    }

    #[test]
    fn codes_of_every_linear_layer_are_counted() {
        let bytes = |aware| {
            let plan = ModelPlan::of_recipe(&architecture("llama", 64), &recipe(aware)).unwrap();
            let WeightBytes { values, constants } = plan.aware_bytes();
            (values, constants)
        };
        // q, k, v, o, gate, up and down of two layers.
        let outputs = 2 * (48 + 16 + 16 + 64 + 96 + 96 + 64);
        let elements = 2 * (64 * (48 + 16 + 16) + 48 * 64 + 3 * 64 * 96);
        assert_eq!(bytes(QuantizationAware::None), (0, 0));
        assert_eq!(bytes(QuantizationAware::Int8), (elements, 4 * outputs));
        assert_eq!(bytes(QuantizationAware::Nf4), (elements / 2, 4 * elements / 64));
    }

    #[test]
    fn what_no_merged_model_could_keep_is_refused_by_name() {
        let error = |change: &dyn Fn(&mut Recipe)| {
            let mut recipe = recipe(QuantizationAware::Nf4);
            change(&mut recipe);
            ModelPlan::of_recipe(&architecture("llama", 64), &recipe)
                .unwrap_err()
                .to_string()
        };
        let begin = "`quantization_aware: nf4` cannot be combined with ";
        for (found, named) in [
            (
                error(&|recipe| recipe.adapter = None),
                "full fine-tuning (`adapter: null`); train",
            ),
            (error(&|recipe| recipe.precision = Precision::Int8), "`precision: int8`"),
            (
                error(&|recipe| recipe.precision_schedule = PrecisionSchedule::from_name("fp32_2").unwrap()),
                "`precision_schedule: fp32_2`; set",
            ),
            (
                error(&|recipe| recipe.weight_sparsity = WeightSparsity::Magnitude),
                "`weight_sparsity: magnitude_2_4`; set",
            ),
            (
                error(&|recipe| recipe.adapter.as_mut().unwrap().dora = true),
                "`dora`; set",
            ),
            (
                error(&|recipe| recipe.adapter.as_mut().unwrap().dropout = 0.1),
                "`dropout` above 0; set",
            ),
            (
                error(&|recipe| {
                    let adapter = recipe.adapter.as_mut().unwrap();
                    adapter.target_modules = TargetModules::Preset(TargetPreset::Attention);
                    adapter.modules_to_save.push("down_proj".to_owned());
                }),
                "`modules_to_save` with `mlp.down_proj`",
            ),
        ] {
            assert!(found.starts_with(&format!("{begin}{named}")), "{found}");
        }
    }

    #[test]
    fn projections_within_a_fused_tensor_begin_at_its_blocks() {
        let plan = |aware, hidden| ModelPlan::of_recipe(&architecture("phi3", hidden), &recipe(aware));
        assert!(plan(QuantizationAware::Nf4, 64).is_ok());
        assert!(plan(QuantizationAware::Int8, 50).is_ok());
        // Keys begin at row 48, which is element 2,400 of the tensor.
        let error = plan(QuantizationAware::Nf4, 50).unwrap_err().to_string();
        assert!(error.contains("row 48 of `self_attn.qkv_proj`, 50 wide"), "{error}");
    }
}
