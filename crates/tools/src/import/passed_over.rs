//! [`PassedOver`]: keys that no reader takes, by what the schema of the tool says of them.

use serde_json::Value;

use super::one_line::on_one_line;
use crate::Tool;
use crate::known_keys::{KeyClass, is_off, written};
use peft_tune_core::recipe::settings::{Reach, SettingRow, setting};

/// Keys of readers of their own that leave memory and speed of a step alone.
pub(super) const OF_NO_BYTES: &[&str] = &[
    "num_train_epochs",
    "max_steps",
    "warmup_ratio",
    "seed",
    "random_state",
    "eval_strategy",
    "evaluation_strategy",
    "eval_steps",
    "beta",
    "completion_only_loss",
    "assistant_only_loss",
    "dataset_text_field",
];

/// Keys of a file that no reader takes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PassedOver {
    /// Lines on keys that change the training.
    pub told: Vec<String>,
    /// Lines on those keys that change memory or speed of a step, as a prediction has them.
    pub uncounted: Vec<String>,
    /// Keys that change neither a setting nor memory and speed.
    pub silent: Vec<String>,
    /// Keys that the tools do not know.
    pub unknown: Vec<String>,
}

impl PassedOver {
    /// Sorts a key of a file that has the words of these tools.
    pub(super) fn take(&mut self, tools: [Tool; 2], key: &str, value: &Value) {
        let class = tools.iter().find_map(|tool| tool.known_keys().class_of(key));
        match class {
            Some(KeyClass::Told(row)) if !row.is_usual(value) => {
                let (said, does) = (shown(value), row.does);
                self.told.push(format!("`{key}: {said}` is not carried over: {does}"));
                if row.costs {
                    self.uncounted.push(format!("`{key}: {said}` is not counted: {does}"));
                }
            }
            _ if is_off(value) => {}
            Some(_) => self.silent.push(key.to_owned()),
            None => self.unknown.push(key.to_owned()),
        }
    }
}

/// What an argument that is not known can change, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Concern {
    /// Whether the training is another one.
    pub training: bool,
    /// Whether memory or speed of a step change.
    pub costs: bool,
}

impl Concern {
    /// Concern of a key in the words of these tools. In doubt it is everything.
    pub(super) fn of(tools: [Tool; 2], key: &str) -> Self {
        match tools.iter().find_map(|tool| tool.known_keys().class_of(key)) {
            Some(KeyClass::Silent) => Self {
                training: false,
                costs: false,
            },
            Some(KeyClass::Told(row)) => Self {
                training: true,
                costs: row.costs,
            },
            None => Self {
                training: true,
                costs: !OF_NO_BYTES.contains(&key) && settings_of(tools, key).all(changes_costs),
            },
        }
    }
}

/// Settings that these tools call so.
fn settings_of(tools: [Tool; 2], key: &str) -> impl Iterator<Item = &'static SettingRow> {
    let names = tools.into_iter().flat_map(move |tool| {
        let all = tool.keys().settings.iter();
        all.filter(move |(_, own)| *own == key).map(|(name, _)| *name)
    });
    names.filter_map(setting)
}

fn changes_costs(row: &SettingRow) -> bool {
    let effects = [row.effects.throughput, row.effects.peak_memory];
    effects.iter().any(|effect| !matches!(effect.reach, Reach::Nothing))
}

/// A value as a line has it.
fn shown(value: &Value) -> String {
    on_one_line(&written(value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_concern_what_their_settings_change() {
        let of = |key| {
            let Concern { training, costs } = Concern::of([Tool::Unsloth; 2], key);
            (training, costs)
        };
        assert_eq!((of("output_dir"), of("learning_rate")), ((false, false), (true, false)));
        assert_eq!(
            (of("max_steps"), of("neftune_noise_alpha")),
            ((true, false), (true, false))
        );
        assert_eq!(
            (of("r"), of("unsloth_tiled_mlp"), of("")),
            ((true, true), (true, true), (true, true))
        );
    }

    #[test]
    fn keys_are_told_or_silent_or_unknown_by_the_schema_of_their_tool() {
        let mut passed_over = PassedOver::default();
        for (key, value) in [
            ("wandb_project", json!("x")),
            ("neftune_noise_alpha", json!(5)),
            ("tiled_mlp", json!(true)),
            ("dataloader_drop_last", json!(false)),
            ("warp_factor", json!(9)),
            ("new_flag", json!(false)),
        ] {
            passed_over.take([Tool::Axolotl; 2], key, &value);
        }
        assert_eq!(
            (&*passed_over.silent, &*passed_over.unknown),
            (&["wandb_project".to_owned()][..], &["warp_factor".to_owned()][..])
        );
        assert_eq!(passed_over.told.len(), 2);
        assert_eq!(
            passed_over.told[0],
            "`neftune_noise_alpha: 5` is not carried over: noise is added to embeddings there"
        );
        assert_eq!(
            passed_over.uncounted,
            ["`tiled_mlp: true` is not counted: MLPs are computed in tiles there"]
        );
        let mut of_preferences = PassedOver::default();
        of_preferences.take([Tool::Unsloth; 2], "max_prompt_length", &json!(256));
        of_preferences.take([Tool::Unsloth; 2], "loss_type", &json!("nll"));
        assert_eq!(of_preferences.unknown, [""; 0]);
        assert_eq!(shown(&json!("a\nb")), "a b");
        assert!(shown(&json!("a".repeat(99))).ends_with("a…"));
    }
}
