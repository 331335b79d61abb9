//! [`PassedOver`]: keys that no reader takes, by what the schema of the tool says of them.

use serde_json::Value;

use crate::tools::Tool;
use crate::tools::known_keys::{KeyClass, is_off};

/// Letters of a value that are shown.
const SHOWN: usize = 60;

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

/// A value as a line has it.
fn shown(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.chars().count() > SHOWN {
        true => line.chars().take(SHOWN).collect::<String>() + "…",
        false => line,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
        assert_eq!(shown(&json!("a\nb")), "a b");
        assert!(shown(&json!("a".repeat(99))).ends_with("a…"));
    }
}
