//! The adapter before a training's first step, handed from one engine to another, so that both start from the same values.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::interruption::{Interruption, invalid};
use peft_tune_core::study::FailReason;
use peft_tune_engine::{Trainer, adapter};

/// Folder by which one engine hands another the adapter that a training starts from, in PEFT's layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FirstAdapter {
    /// Folder that the adapter is written to before the first step. The built-in engine does this.
    Write(PathBuf),
    /// Folder of the adapter that the training starts from. Engines do this whose own files cannot say so.
    Read(PathBuf),
}

impl FirstAdapter {
    /// Writes the adapter of a trainer before its first step, on base model `model`.
    pub(super) fn keep(&self, trainer: &Trainer, model: &str) -> Result<(), Interruption> {
        let refused = |message: &str| {
            let message = message.to_owned();
            Err(Interruption::Failed(FailReason::Invalid { message }))
        };
        let Self::Write(folder) = self else {
            return refused("the built-in engine starts from an adapter that the recipe names as `adapter_init`");
        };
        let Some(plan) = trainer.adapter_plan() else {
            return refused("there is no adapter to hand over where every weight trains");
        };
        adapter::write(folder, plan, Some(model), trainer.parameters()).map_err(invalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_named_with_what_is_done_with_it() {
        let read = FirstAdapter::Read("/first".into());
        let text = serde_json::to_string(&read).unwrap();
        assert_eq!(text, r#"{"read":"/first"}"#);
        assert_eq!(serde_json::from_str::<FirstAdapter>(&text).unwrap(), read);
    }
}
