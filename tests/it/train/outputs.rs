//! Outputs of a training: what it computes, prints and leaves behind.

use std::collections::HashSet;
use std::sync::Arc;

use candle_core::Device;
use peft_tune::space::RecipeFile;
use peft_tune_core::recipe::Precision;
use peft_tune_engine::adapter::SavedAdapter;
use peft_tune_engine::data::MicroBatch;
use peft_tune_engine::{BaseModel, Checkpoint, Trainer};

use super::{Workplace, adapter_bytes, column};
use crate::golden::{assert_close, base, documents, folder, json, numbers, recipe, whole_batch};

#[test]
fn the_references_twenty_losses_come_out() {
    let place = Workplace::new(&[]);
    let lines = place.train(&["--output", "out"]);
    let expected = json(&folder("ref_llama/ref.json"));
    let mut losses = column(&lines, "step", "loss");
    losses.extend(column(&lines, "evaluation", "held_out_loss"));
    assert_close(&losses, &numbers(&expected["losses_f64"]), 1e-5, "loss");
    let norms = column(&lines, "step", "grad_norm");
    assert_close(&norms, &numbers(&expected["grad_norms"]), 1e-5, "gradient norm");
    assert_eq!(
        column(&lines, "step", "step"),
        (1..=20).map(f64::from).collect::<Vec<_>>()
    );
    assert!(column(&lines, "step", "learning_rate").iter().all(|rate| *rate == 1e-3));
    assert!(column(&lines, "step", "tokens_per_s").iter().all(|speed| *speed > 0.0));
    let end = lines.last().unwrap();
    assert_eq!((&end["event"], &end["ending"]), (&"end".into(), &"finished".into()));
    assert_eq!((&end["steps"], &end["tokens"]), (&20.into(), &(20 * 64).into()));
}

#[test]
fn an_epoch_is_one_pass_over_the_rows_however_large_a_global_batch_may_be() {
    let of = |batch: &str, length: &str| {
        let training = format!("{{length: {length}, shuffle: false}}");
        let place = Workplace::new(&[("batch", batch), ("training", training.as_str())]);
        place.train(&["--output", "out"])
    };
    // Two rows of 32 tokens.
    let expected = of("{micro_batch: 2, sequence_length: 256}", "{steps: 3}");
    let large = "{micro_batch: 4, gradient_accumulation: 16, sequence_length: 256}";
    let epochs = of(large, "{epochs: 3}");
    assert_eq!(column(&epochs, "step", "loss"), column(&expected, "step", "loss"));
    assert_eq!(column(&epochs, "step", "tokens"), [64.0; 3]);
    // A length of another kind has the same steps.
    assert_eq!(column(&of(large, "{steps: 2}"), "step", "tokens"), [64.0; 2]);
    assert_eq!(column(&of(large, "{tokens: 100}"), "step", "tokens"), [64.0; 2]);
}

#[test]
fn the_adapter_that_is_written_gives_the_last_loss() {
    let place = Workplace::new(&[]);
    let lines = place.train(&["--output", "out"]);
    let out = place.path("out");
    let saved = SavedAdapter::read(&out).unwrap();
    assert!(saved.config.base_model.unwrap().ends_with("ref_llama/model"));
    let mut trainer = Trainer::new(base("ref_llama", Precision::Fp32), &recipe(&out), 1).unwrap();
    let loss = trainer.evaluate(&whole_batch("ref_llama")).unwrap().loss;
    let expected = column(&lines, "evaluation", "held_out_loss");
    assert_close(&[loss], &expected, 1e-12, "loss of the adapter in the output folder");
    // The recipe that ran is a whole recipe, with paths that hold anywhere.
    let ran = RecipeFile::read(&out.join("recipe.yaml")).unwrap();
    assert_eq!(ran, RecipeFile::read(&place.path("recipe.yaml")).unwrap());
}

#[test]
fn the_summary_and_progress_are_for_people() {
    let place = Workplace::new(&[("training", "{length: {steps: 4}, evaluate_every: 2}")]);
    let output = place.command(&["--output", "out"]).output().unwrap();
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(stdout.starts_with("trained 4 of 4 steps, 256 tokens in "), "{stdout}");
    assert!(
        stdout.contains("written to out\n") && stdout.contains("kept in out/best\n"),
        "{stdout}"
    );
    assert!(
        stderr.contains("step 1/4, loss 6.3641, learning rate 1.00e-3, "),
        "{stderr}"
    );
    assert!(stderr.contains("step 2, held-out loss 6."), "{stderr}");
}

#[test]
fn full_fine_tuning_writes_a_whole_model() {
    let place = Workplace::new(&[("adapter", "null"), ("training", "{length: {steps: 4}}")]);
    let lines = place.train(&["--output", "out"]);
    let out = place.path("out");
    let checkpoint = Checkpoint::open(&out).unwrap();
    assert_eq!(
        checkpoint.dtype("model.norm.weight"),
        Some(peft_tune_core::architecture::Dtype::F32)
    );
    let model = Arc::new(BaseModel::load(&out, Precision::Fp32, &Device::Cpu).unwrap());
    let mut full = recipe(&folder("ref_llama/adapter_init"));
    full.adapter = None;
    let loss = Trainer::new(model, &full, 1)
        .unwrap()
        .evaluate(&whole_batch("ref_llama"))
        .unwrap()
        .loss;
    let expected = column(&lines, "evaluation", "held_out_loss");
    assert_close(&[loss], &expected, 1e-12, "loss of the written model");
    assert!(
        expected[0] < column(&lines, "step", "loss")[0] - 0.3,
        "it learns: {lines:?}"
    );
}

#[test]
fn the_best_adapter_is_kept_beside_the_last() {
    let training = "{length: {steps: 12}, shuffle: false, evaluate_every: 2}";
    let place = Workplace::new(&[
        ("training", training),
        ("data", "{train: rows.jsonl, held_out: unseen.jsonl, format: tokenized}"),
        ("optimizer", "{kind: adamw, learning_rate: 0.05, max_grad_norm: null}"),
    ]);
    // Held-out tokens that training never shows: the more it learns, the less likely they are.
    let mut rows = documents("ref_llama", "input_ids", "input_ids");
    let seen: HashSet<u32> = rows.iter().flat_map(|row| row.input_ids.clone()).collect();
    let unseen: Vec<u32> = (0..512).filter(|id| !seen.contains(id)).collect();
    let mut lines = String::new();
    for row in &mut rows {
        for (id, label) in row.input_ids.iter_mut().zip(&mut row.labels) {
            *id = unseen[*id as usize % unseen.len()];
            *label = i64::from(*id);
        }
        lines += &format!(
            "{}\n",
            serde_json::json!({"input_ids": row.input_ids, "labels": row.labels})
        );
    }
    std::fs::write(place.path("unseen.jsonl"), lines).unwrap();
    let lines = place.train(&["--output", "out"]);
    let losses = column(&lines, "evaluation", "held_out_loss");
    let best = losses.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(best < *losses.last().unwrap(), "the loss is to rise again: {losses:?}");
    let kept = place.path("out/best");
    let mut trainer = Trainer::new(base("ref_llama", Precision::Fp32), &recipe(&kept), 1).unwrap();
    let loss = trainer.evaluate(&[MicroBatch::from_documents(&rows)]).unwrap().loss;
    assert_close(&[loss], &[best], 1e-12, "loss of the best adapter");
    assert_ne!(adapter_bytes(&kept), adapter_bytes(&place.path("out")));
    assert_eq!(lines.last().unwrap()["best_held_out_loss"], best);
}

#[test]
fn only_the_last_checkpoints_are_kept() {
    let place = Workplace::new(&[]);
    place.train(&["--output", "out", "--checkpoint-every", "3", "--keep-checkpoints", "3"]);
    let mut names: Vec<_> = std::fs::read_dir(place.path("out/checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["step-00000015", "step-00000018", "step-00000020"]);
    // A checkpoint is an adapter that PEFT loads.
    assert!(SavedAdapter::read(&place.path("out/checkpoints/step-00000018")).is_ok());
}

#[test]
fn text_needs_a_tokenizer_and_says_so() {
    let place = Workplace::new(&[("data", "{train: text.jsonl}")]);
    std::fs::write(place.path("text.jsonl"), "{\"text\": \"one\"}\n{\"text\": \"two\"}\n").unwrap();
    let message = place.refused(2, &["--output", "out"]);
    let expected = "this row is text, and the model has no tokenizer.json";
    assert!(
        message.contains("text.jsonl line ") && message.contains(expected),
        "{message}"
    );
    assert!(!place.path("out").exists());
}

#[test]
fn the_initial_adapter_is_found_from_the_recipes_folder() {
    let place = Workplace::new(&[("adapter", "{rank: 8, alpha: 16, adapter_init: start}")]);
    let message = place.refused(2, &["--output", "out"]);
    assert!(message.contains("start"), "{message}");
    std::fs::create_dir(place.path("start")).unwrap();
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(
            folder("ref_llama/adapter_init").join(name),
            place.path("start").join(name),
        )
        .unwrap();
    }
    let lines = place.train(&["--output", "out"]);
    let expected = numbers(&json(&folder("ref_llama/ref.json"))["losses_f64"]);
    assert_close(&column(&lines, "step", "loss"), &expected[..20], 1e-5, "loss");
}

#[test]
fn another_scaling_than_that_of_the_initial_adapter_is_said() {
    let expected = numbers(&json(&folder("ref_llama/ref.json"))["losses_f64"]);
    for (alpha, is_said) in [(16, false), (64, true)] {
        let adapter = format!(
            "{{rank: 8, alpha: {alpha}, adapter_init: {:?}}}",
            folder("ref_llama/adapter_init")
        );
        let place = Workplace::new(&[
            ("adapter", adapter.as_str()),
            ("training", "{length: {steps: 1}, shuffle: false}"),
        ]);
        let said = place.refused(0, &["--output", "out"]);
        let words = "adapter_config.json has a scaling of 2 for `model.layers.0.";
        assert_eq!(said.contains(words), is_said, "{said}");
        let lines = place.train(&["--output", "again"]);
        assert_close(&column(&lines, "step", "loss"), &expected[..1], 1e-5, "loss");
    }
}

#[test]
fn masked_labels_of_tokenised_rows_count_as_such() {
    let place = Workplace::new(&[("training", "{length: {steps: 1}, shuffle: false}")]);
    let rows: String = documents("ref_llama", "input_ids", "labels")
        .iter()
        .map(|row| serde_json::json!({"input_ids": row.input_ids, "labels": row.labels}).to_string() + "\n")
        .collect();
    std::fs::write(place.path("rows.jsonl"), rows).unwrap();
    let lines = place.train(&["--output", "out"]);
    let expected = json(&folder("ref_llama/ref.json"))["loss_labels_masked"]
        .as_f64()
        .unwrap();
    assert_close(&column(&lines, "step", "loss"), &[expected], 1e-5, "masked loss");
}

#[test]
fn rows_that_trials_are_evaluated_on_are_not_read() {
    let data = "{train: rows.jsonl, held_out: rows.jsonl, format: tokenized, retain: torn.jsonl}";
    let place = Workplace::new(&[("data", data)]);
    std::fs::write(place.path("torn.jsonl"), "no row\n").unwrap();
    let told = place.train(&["--output", "out"]);
    assert_eq!(told.last().unwrap()["ending"], "finished");
}

#[test]
fn what_the_engine_warns_of_is_told() {
    let place = Workplace::new(&[("training", "{length: {steps: 2}}")]);
    let trained = |name| place.refused(0, &["--output", name, "--json"]);
    assert!(!trained("first").contains("WARN"));
    let tables = std::fs::read_dir(place.path("cache")).unwrap();
    for table in tables.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()) {
        let bytes = std::fs::read(&table).unwrap();
        std::fs::write(&table, &bytes[..bytes.len() / 2]).unwrap();
    }
    let message = trained("second");
    assert!(message.contains("WARN the tokenised cache is damaged"), "{message}");
}
