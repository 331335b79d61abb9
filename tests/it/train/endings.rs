//! Trainings that end before their length: early stop and divergence.

use super::{Workplace, adapter_bytes, column};

#[test]
fn patience_ends_a_training_that_learns_nothing() {
    let place = Workplace::new(&[
        ("optimizer", "{kind: adamw, learning_rate: 1e-30}"),
        ("training", "{length: {steps: 20}, shuffle: false, evaluate_every: 2}"),
    ]);
    let lines = place.train(&["--output", "out", "--patience", "3"]);
    assert_eq!(column(&lines, "evaluation", "step"), [2.0, 4.0, 6.0, 8.0]);
    let end = lines.last().unwrap();
    assert_eq!(
        (&end["ending"], &end["best_step"]),
        (&"stopped_early".into(), &2.into())
    );
    assert_eq!(
        adapter_bytes(&place.path("out")),
        adapter_bytes(&place.path("out/best"))
    );
}

#[test]
fn patience_needs_evaluations() {
    let place = Workplace::new(&[]);
    let message = place.refused(2, &["--output", "out", "--patience", "3"]);
    assert!(message.contains("set `training.evaluate_every`"), "{message}");
}

#[test]
fn divergence_keeps_the_last_good_checkpoint() {
    // The rate of a warm-up begins at 0: the first step changes nothing, the second everything.
    let place = Workplace::new(&[
        (
            "optimizer",
            "{kind: sgd, learning_rate: 1e30, momentum: 0.0, max_grad_norm: null}",
        ),
        ("schedule", "{kind: constant, warmup: 4}"),
    ]);
    let message = place.refused(1, &["--output", "out", "--checkpoint-every", "1"]);
    assert!(
        message.contains("the training diverged: the training loss became NaN in step 3"),
        "{message}"
    );
    assert!(
        message.contains("checkpoints/step-00000001; lower `learning_rate`"),
        "{message}"
    );
    assert!(
        message.contains("step 3: the training loss became NaN; cause: rate"),
        "{message}"
    );
    let checkpoint = place.path("out/checkpoints/step-00000001");
    let start = crate::golden::folder("ref_llama/adapter_init");
    let values = |folder| {
        let mut values: Vec<_> = crate::golden::tensors(&std::path::Path::join(folder, "adapter_model.safetensors"))
            .into_iter()
            .map(|(name, tensor)| (name, tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap()))
            .collect();
        values.sort_by(|a, b| a.0.cmp(&b.0));
        values
    };
    assert!(values(&checkpoint) == values(&start));
    assert!(!place.path("out/adapter_model.safetensors").exists());
    assert!(!place.path("out/checkpoints/step-00000002").exists());
}

#[test]
fn mistakes_of_the_recipe_are_shown_before_anything_is_written() {
    for (change, expected) in [
        (("adapter", "{rank: 100000}"), "rank"),
        (("batch", "{micro_batch: 0}"), "micro_batch"),
        (("training", "{length: {stepz: 3}}"), "stepz"),
        (("data", "{train: nowhere.jsonl}"), "nowhere.jsonl"),
        (("adapter", "{rank: 4, adapter_init: \"rows.jsonl\"}"), "rows.jsonl"),
    ] {
        let place = Workplace::new(&[change]);
        let message = place.refused(2, &["--output", "out"]);
        assert!(message.contains(expected), "{change:?}: {message}");
        assert!(!place.path("out/recipe.yaml").exists(), "{change:?}");
    }
}
