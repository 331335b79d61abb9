//! Held-out documents that are longer than the sequence: scored in windows, each target once.

use std::path::Path;
use std::sync::Arc;

use candle_core::Device;
use peft_tune_core::recipe::{AdapterSettings, DataFormat, DataSettings, HeldOut, LossOn, Precision, Recipe};
use peft_tune_engine::data::{MicroBatch, PreparedData, evaluation_batches};
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::{BaseModel, Trainer};
use peft_tune_kernels::ops::loss_head::IGNORE;

use super::{data_file, prepare, settings, tokenizer};

const LENGTHS: [usize; 7] = [2, 3, 5, 16, 33, 64, 200];

fn batches(data: &PreparedData, limit: Option<usize>) -> Vec<MicroBatch> {
    evaluation_batches(data.held_out(), 3, limit).collect()
}

/// Targets of all micro-batches, in order.
fn targets(batches: &[MicroBatch]) -> Vec<i64> {
    let all = batches.iter().flat_map(|batch| batch.targets.iter().copied());
    all.filter(|target| *target != IGNORE).collect()
}

#[test]
fn trials_of_all_lengths_are_scored_on_the_same_targets() {
    let tokenizer = tokenizer("tokenizer");
    for (file, loss_on) in [
        ("messages.jsonl", LossOn::Completions),
        ("alpaca.csv", LossOn::Completions),
        ("text.jsonl", LossOn::All),
        ("messages.jsonl", LossOn::All),
    ] {
        for held_out_length in [64, 120] {
            let settings = DataSettings {
                held_out: HeldOut::File(data_file(file)),
                held_out_length: Some(held_out_length),
                loss_on,
                ..settings("text.jsonl")
            };
            // Every document is one window.
            let whole = prepare(&settings, &tokenizer, 200).unwrap();
            for limit in [None, Some(2)] {
                let expected = targets(&batches(&whole, limit));
                for length in LENGTHS {
                    let data = prepare(&settings, &tokenizer, length).unwrap();
                    let found = batches(&data, limit);
                    assert_eq!(targets(&found), expected, "{file} at {length}");
                    assert!(found.iter().all(|batch| batch.longest() <= length));
                    assert!(
                        found.iter().all(|batch| batch.offsets.len() <= 4),
                        "three windows at once"
                    );
                    assert_eq!(data.held_out().statistics(), whole.held_out().statistics());
                }
            }
        }
    }
}

#[test]
fn documents_that_fit_are_scored_as_without_a_length_of_their_own() {
    let tokenizer = tokenizer("tokenizer");
    for file in ["messages.jsonl", "text.jsonl"] {
        let plain = prepare(&settings(file), &tokenizer, 64).unwrap();
        let own = DataSettings {
            held_out_length: Some(64),
            ..settings(file)
        };
        let own = prepare(&own, &tokenizer, 64).unwrap();
        assert_eq!(batches(&own, None), batches(&plain, None));
        let longest = own.held_out().statistics().longest as usize;
        assert_eq!(batches(&own.at_length(longest).unwrap(), None), batches(&plain, None));
        assert_eq!(own.fingerprint(), plain.fingerprint());
    }
}

/// A row of 23 tokens whose first seven are the prompt, and one of 4.
const ROWS: &str = concat!(
    r#"{"input_ids": [3,14,15,92,65,35,89,79,32,38,46,26,43,38,32,79,50,28,84,19,71,69,39], "#,
    r#""labels": [-100,-100,-100,-100,-100,-100,-100,79,32,38,46,26,43,38,32,79,50,28,84,19,71,69,39]}"#,
    "\n",
    r#"{"input_ids": [5,6,7,8]}"#,
    "\n",
);

/// Cross-entropy of token `at` of `ids` given those from `first` on, from the model's logits.
fn cross_entropy(trainer: &mut Trainer, ids: &[u32], first: usize, at: usize) -> f64 {
    let mut batch = MicroBatch::new();
    batch.push(&ids[first..at], ids[first..at].iter().map(|id| i64::from(*id)));
    let logits = trainer.logits(&batch).unwrap().to_vec2::<f32>().unwrap();
    let last = logits.last().unwrap();
    let sum: f64 = last.iter().map(|logit| f64::from(*logit).exp()).sum();
    sum.ln() - f64::from(last[ids[at] as usize])
}

/// Each target's loss is computed on its own here, from the context that its window should give it.
#[test]
fn the_loss_in_windows_is_that_of_each_target_with_its_context() {
    let folder = tempfile::tempdir().unwrap();
    let rows = folder.path().join("rows.jsonl");
    std::fs::write(&rows, ROWS).unwrap();
    let model = crate::golden::folder("ref_qwen2").join("model");
    let files = ModelFiles::resolve_weights(Path::new(&model).to_str().unwrap(), &mut ()).unwrap();
    let mut recipe = Recipe::new(
        model.to_str().unwrap(),
        DataSettings {
            train: vec![rows.clone()].into(),
            held_out: HeldOut::File(rows),
            held_out_length: Some(21),
            format: DataFormat::Tokenized,
            ..DataSettings::default()
        },
    );
    recipe.precision = Precision::Fp32;
    recipe.adapter = Some(AdapterSettings::default());
    let base = BaseModel::load(&files.folder, Precision::Fp32, &Device::Cpu).unwrap();
    let mut trainer = Trainer::new(Arc::new(base), &recipe, 1).unwrap();
    // Where each window of 8 begins, and the targets that it scores: windows of the prompt alone score none.
    let windows = [(0, 1..8), (4, 8..12), (8, 12..16), (12, 16..20), (16, 20..21)];
    let (first, second): (Vec<u32>, Vec<u32>) = (
        vec![
            3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26, 43, 38, 32, 79, 50, 28, 84, 19, 71,
        ],
        vec![5, 6, 7, 8],
    );
    let mut losses = Vec::new();
    for (start, scored) in windows {
        let of_answer = scored.filter(|at| *at >= 7);
        losses.extend(of_answer.map(|at| cross_entropy(&mut trainer, &first, start, at)));
    }
    losses.extend((1..4).map(|at| cross_entropy(&mut trainer, &second, 0, at)));
    recipe.batch.sequence_length = 8;
    let data = PreparedData::of_recipe(&recipe, &files).unwrap();
    let evaluation = trainer.evaluate(&batches(&data, None)).unwrap();
    assert_eq!(evaluation.target_tokens, losses.len() as u64);
    let expected = losses.iter().sum::<f64>() / losses.len() as f64;
    assert!(
        (evaluation.loss - expected).abs() < 1e-5,
        "{} {expected}",
        evaluation.loss
    );
    // With the whole row as context the loss is another one: the test can tell windows apart.
    let whole = trainer.evaluate(&batches(&data.at_length(21).unwrap(), None)).unwrap();
    assert_eq!(whole.target_tokens, evaluation.target_tokens);
    assert!((whole.loss - expected).abs() > 1e-4);
}
