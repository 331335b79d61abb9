//! The table of tools: the row of each, and what it says. A new tool is a variant of [`Tool`], a folder and a row here.

use std::fmt;

use serde_json::Value;

use super::export::ExportRow;
use super::import::{FileKind, ImportRow};
use super::keys::{ToolKeys, Word};
use super::known_keys::KnownKeys;
use super::row::ToolRow;
use super::{Tool, axolotl, llamafactory, peft, torchtune, trl, unsloth};
use peft_tune_core::architecture::Family;
use peft_tune_core::predict::stack::{StackBehaviour, StackSetting};
use peft_tune_core::recipe::{OptimizerKind, Recipe, TrainerKind};

impl fmt::Display for Tool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A name that no tool has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no stack `{name}`; choose one of {known}")]
pub struct UnknownTool {
    name: String,
    known: String,
}

impl Tool {
    /// Row of the tool's folder, with all that is known of it.
    fn row(self) -> &'static ToolRow {
        match self {
            Self::Peft => &peft::ROW,
            Self::Trl => &trl::ROW,
            Self::Axolotl => &axolotl::ROW,
            Self::LlamaFactory => &llamafactory::ROW,
            Self::Torchtune => &torchtune::ROW,
            Self::Unsloth => &unsloth::ROW,
        }
    }

    /// Name on the command line and in study files.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The tool as messages call it.
    pub fn title(self) -> &'static str {
        self.row().title
    }

    /// Names in study files, the usual one last.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let row = self.row();
        row.aliases.iter().copied().chain([row.name])
    }

    /// The tool of that name.
    ///
    /// # Errors
    /// [`UnknownTool`], with the names that there are.
    pub fn from_name(name: &str) -> Result<Self, UnknownTool> {
        let wanted = name.trim().to_lowercase();
        let mut all = Self::ALL.iter().copied();
        all.find(|tool| tool.names().any(|name| name == wanted))
            .ok_or_else(|| UnknownTool {
                name: name.to_owned(),
                known: Self::ALL.iter().map(|tool| tool.name()).collect::<Vec<_>>().join(", "),
            })
    }

    /// Keys by which the tool's file says what recipes have.
    pub fn keys(self) -> &'static ToolKeys {
        &self.row().keys
    }

    /// The key of its file for a setting, where it has one.
    pub fn key_of(self, setting: &str) -> Option<&'static str> {
        self.keys().setting(setting)
    }

    /// The words of its file for an optimizer.
    pub fn optimizer_words(self, kind: OptimizerKind) -> Option<Vec<Word>> {
        (self.keys().optimizer)(kind)
    }

    /// Keys of its schema that recipes have no word for.
    pub(crate) fn known_keys(self) -> &'static KnownKeys {
        &self.row().known
    }

    /// What tools that build models by functions of their own call the parts of a family, by the tool's name.
    pub fn names_of_family(family: Family) -> Vec<(&'static str, Value)> {
        let of = |tool: &Self| tool.row().family.map(|names| (tool.name(), names(family)));
        Self::ALL.iter().filter_map(of).collect()
    }

    /// Writer of its file.
    pub(crate) fn export(self) -> &'static ExportRow {
        &self.row().export
    }

    /// Reader of its file.
    pub(crate) fn import(self) -> &'static ImportRow {
        &self.row().import
    }

    /// Whether the tool's file says how is trained, and not only what the adapter is.
    pub fn says_training(self) -> bool {
        self.import().file != FileKind::Adapter
    }

    /// Behaviour of its trainings: what they hold and cannot run.
    pub fn behaviour(self) -> &'static StackBehaviour {
        &self.row().memory
    }

    /// Whether what a trainer needs is predicted of the tool: trainings on preferences are modelled as TRL runs them alone.
    pub fn predicts(self, trainer: TrainerKind) -> bool {
        trainer.is_sft() || self == Self::Trl
    }

    /// The setting that `recipe` becomes in the tool.
    pub fn setting_of(self, recipe: &Recipe) -> StackSetting {
        StackSetting::of_recipe(self.behaviour(), recipe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::predict::stack::{ModelShape, Number, Sharing, WeightForm, predict};
    use peft_tune_core::recipe::{DataSettings, OptimizerOffload, Precision};

    #[test]
    fn each_tool_is_found_by_its_names() {
        for tool in Tool::ALL {
            assert_eq!(tool.behaviour().name, tool.name());
            for name in tool.names() {
                assert_eq!(Tool::from_name(name), Ok(*tool));
            }
        }
        let error = Tool::from_name("megatron").unwrap_err().to_string();
        assert!(error.contains("trl"), "{error}");
    }

    #[test]
    fn a_tool_holds_what_its_row_says_and_needs_more_for_more_rows() {
        let config = r#"{"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
            "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": true}"#;
        let shape = ModelShape::from_json("config.json", &serde_json::from_str(config).unwrap()).unwrap();
        for tool in Tool::ALL {
            let mut setting = StackSetting::new(tool.behaviour(), WeightForm::Numbers);
            let few = predict(&shape, &setting, None).unwrap().memory.tensors_bytes;
            setting.micro_batch = 8;
            let many = predict(&shape, &setting, None).unwrap();
            assert!(few < many.memory.tensors_bytes, "{tool:?}");
            let components: u64 = many.memory.components.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(components, many.memory.tensors_bytes, "{tool:?}");
        }
    }

    #[test]
    fn trainings_on_preferences_are_predicted_of_trl_alone() {
        for tool in Tool::ALL {
            assert!(tool.predicts(TrainerKind::default()));
            assert_eq!(tool.predicts(TrainerKind::Dpo), *tool == Tool::Trl, "{tool}");
        }
    }

    #[test]
    fn a_recipe_becomes_what_its_exported_file_says() {
        let mut recipe = Recipe::new("model", DataSettings::default());
        recipe.precision = Precision::Nf4Double;
        assert_eq!(
            Tool::Trl.setting_of(&recipe).adapters,
            Number::Half,
            "TRL trains adapters of quantized weights in BF16"
        );
        recipe.optimizer.kind = OptimizerKind::AdamW;
        recipe.optimizer.offload = OptimizerOffload::Host;
        let offload = |tool: Tool| {
            let setting = tool.setting_of(&recipe);
            (setting.sharing, setting.offloads, setting.optimizer.is_paged)
        };
        for tool in [Tool::Trl, Tool::Axolotl, Tool::LlamaFactory] {
            assert_eq!(offload(tool), (Sharing::Zero2, true, false));
        }
        assert_eq!(offload(Tool::Torchtune), (Sharing::Copies, false, true));
        assert_eq!(offload(Tool::Unsloth), (Sharing::Copies, false, false));
    }
}
