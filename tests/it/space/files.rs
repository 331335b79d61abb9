//! Folders and files that the tests read.

use peft_tune::space::file::StudyFile;
use peft_tune::space::{SpaceError, Study};

/// A study file with every key.
pub(super) const WHOLE: &str = "
study: everything
model: ./base
data:
  train: [train.jsonl]
  held_out: held_out.jsonl
  format: alpaca
  columns: {instruction: question}
  loss_on: all
objectives: [throughput, {metric: peak_memory, reference: 24 GiB}, {metric: loss, known_after: 20}]
constraints:
  peak_memory: <= 22 GiB
  throughput: '>= 1.5k'
space:
  optimizer: [adamw, sgd]
  rank: [32, 4, 8]
  alpha_ratio: 2
  learning_rate: {low: 5e-5, high: 5e-3, scale: log}
  dropout: {low: 0, high: 0.2, step: 0.05}
  micro_batch: {low: 1, high: 8}
  target_modules: [all-linear, attention, [q_proj, v_proj]]
  gradient_checkpointing: [full]
  momentum: {low: 0.8, high: 0.99, when: {optimizer: sgd}}
  nesterov: {value: true, when: {optimizer: [sgd]}}
  weight_decay: {choices: [0, 0.1], when: {optimizer: adamw}}
  max_grad_norm: null
trial:
  sequence_length: 256
  profile_steps: 7
  training_tokens: 60k
  evaluation: {rows: 64, times: 3}
  memory_limit: 2 GiB
  timeout: 10m
training: {length: {epochs: 3}}
budget: {trials: 40, time: 1h30m}
price: $2.49/h
seed: 7
sampler: {kind: nsga2, options: {population: 20}}
";

/// A folder with a model directory and data files, as a study file expects them beside it.
pub(super) fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("base")).unwrap();
    for name in ["base/config.json", "train.jsonl", "held_out.jsonl"] {
        std::fs::write(folder.path().join(name), "{}").unwrap();
    }
    folder
}

/// Reads `text` as a file of such a folder.
pub(super) fn read(text: &str) -> Result<Study, SpaceError> {
    let folder = folder();
    let path = folder.path().join("space.yaml");
    std::fs::write(&path, text).unwrap();
    StudyFile::read(&path)
}

/// The study of a file with this `space` section and these further lines.
pub(super) fn study(space: &str, rest: &str) -> Result<Study, SpaceError> {
    read(&format!(
        "model: ./base\ndata: {{train: train.jsonl, held_out: held_out.jsonl}}\n{rest}\nspace:\n{space}\n"
    ))
}

/// The message about a file, without the folder it happens to lie in.
pub(super) fn message(result: Result<impl Sized, SpaceError>) -> String {
    let error = result.err().expect("the file is wrong");
    let text = error.to_string();
    match text.find(".yaml") {
        Some(end) => {
            let start = text[..end].rfind(['/', ' ']).map_or(0, |slash| slash + 1);
            let before = text[..start].find('/').map_or(&text[..start], |slash| &text[..slash]);
            format!("{before}{}", &text[start..])
        }
        None => text,
    }
}
