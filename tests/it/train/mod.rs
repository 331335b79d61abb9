//! `peft-tune train`: whole trainings, as a person runs them.

mod endings;
mod events;
mod mixtures;
mod outputs;
mod precision;
mod ranks;
mod resume;
mod spikes;
mod together;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::golden::{documents, folder};

/// A folder with data, a recipe and the output of a training.
pub(crate) struct Workplace {
    folder: tempfile::TempDir,
}

impl Workplace {
    /// The rows of the reference's inputs as tokenised data, and a recipe that trains on them as the reference did,
    /// with `changes` (`key: value` lines of YAML) in place of its settings.
    pub(crate) fn new(changes: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let rows: String = documents("ref_llama", "input_ids", "input_ids")
            .iter()
            .map(|row| serde_json::json!({"input_ids": row.input_ids, "labels": row.labels}).to_string() + "\n")
            .collect();
        std::fs::write(folder.path().join("rows.jsonl"), rows).unwrap();
        let place = Self { folder };
        place.write_recipe(changes);
        place
    }

    /// Writes `recipe.yaml` again.
    pub(crate) fn write_recipe(&self, changes: &[(&str, &str)]) {
        let mut settings = [
            ("model", format!("{:?}", folder("ref_llama/model"))),
            (
                "data",
                "{train: rows.jsonl, held_out: rows.jsonl, format: tokenized}".to_owned(),
            ),
            ("adapter", adapter_of("ref_llama/adapter_init", "")),
            ("precision", "fp32".to_owned()),
            (
                "batch",
                "{micro_batch: 2, gradient_accumulation: 1, sequence_length: 256}".to_owned(),
            ),
            (
                "optimizer",
                "{kind: adamw, learning_rate: 1e-3, max_grad_norm: null}".to_owned(),
            ),
            ("schedule", "{kind: constant}".to_owned()),
            ("training", "{length: {steps: 20}, shuffle: false}".to_owned()),
        ];
        for (key, value) in changes {
            let setting = settings.iter_mut().find(|(name, _)| name == key).unwrap();
            setting.1 = (*value).to_owned();
        }
        let lines: String = settings
            .iter()
            .map(|(key, value)| format!("{key}: {value}\n"))
            .collect();
        std::fs::write(self.path("recipe.yaml"), lines).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `peft-tune train recipe.yaml` with further arguments.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = crate::program();
        command
            .args(["train", "recipe.yaml", "--threads", "2"])
            .args(arguments)
            .current_dir(self.folder.path())
            .env("PEFT_TUNE_CACHE", self.path("cache"));
        command
    }

    /// The objects that a training which succeeds prints.
    pub(crate) fn train(&self, arguments: &[&str]) -> Vec<Value> {
        let output = self.command(arguments).arg("--json").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        lines(&output.stdout)
    }

    /// Message on standard error of a training that ends with `code`.
    pub(crate) fn refused(&self, code: i32, arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.command(arguments).output().unwrap();
        let message = String::from_utf8(stderr).unwrap();
        assert_eq!(
            status.code(),
            Some(code),
            "{message}{}",
            String::from_utf8_lossy(&stdout)
        );
        message
    }
}

/// The adapter section that starts from a reference's adapter, with further keys.
pub(crate) fn adapter_of(reference: &str, more: &str) -> String {
    format!(
        "{{rank: 8, alpha: 16, target_modules: all-linear, adapter_init: {:?}, {more}}}",
        folder(reference)
    )
}

/// JSON lines.
pub(crate) fn lines(text: &[u8]) -> Vec<Value> {
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

/// The numbers under `key` of all objects of one kind.
pub(crate) fn column(lines: &[Value], event: &str, key: &str) -> Vec<f64> {
    let of_kind = lines.iter().filter(|line| line["event"] == event);
    of_kind.map(|line| line[key].as_f64().unwrap()).collect()
}

/// The trained adapter's bytes.
pub(crate) fn adapter_bytes(folder: &Path) -> Vec<u8> {
    std::fs::read(folder.join("adapter_model.safetensors")).unwrap()
}
