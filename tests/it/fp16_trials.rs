//! A trial in fp16 whose gradients overflow the loss scale: steps are skipped, and the trial continues.

use std::path::Path;
use std::time::Duration;

use peft_tune::worker::{TrialEvent, WorkerPool};
use peft_tune_core::objective::{LOSS, THROUGHPUT};
use peft_tune_core::recipe::{DataSettings, HeldOut, Precision, Recipe, TrainingLength};
use peft_tune_core::study::{AccuracyPlan, MeasurePlan, TrainPlan, TrialPlan};

use super::trial_run::{self, complete};

#[test]
fn gradients_that_overflow_are_no_divergence() {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart");
    let data = DataSettings {
        train: vec![assets.join("train.jsonl")].into(),
        held_out: HeldOut::Files(vec![assets.join("held_out.jsonl")]),
        ..DataSettings::default()
    };
    let mut recipe = Recipe::new(assets.join("base").to_str().unwrap(), data);
    recipe.precision = Precision::Fp16;
    recipe.batch.sequence_length = 32;
    recipe.batch.micro_batch = 1;
    recipe.optimizer.learning_rate = 5e-3;
    let plan = TrialPlan {
        measure: Some(MeasurePlan {
            steps: 12,
            max_warmup_steps: 1,
            serve: None,
        }),
        train: Some(TrainPlan {
            length: TrainingLength::Steps(12),
            evaluations: 1,
            evaluation_rows: Some(4),
            accuracy: AccuracyPlan::default(),
            seed_offset: 0,
        }),
    };
    let mut evaluator = WorkerPool::single(env!("CARGO_BIN_EXE_peft-tune").into(), Some(1));
    let mut overflows = 0;
    let state = trial_run::run(
        &mut evaluator,
        0,
        (recipe, plan),
        Duration::from_secs(60),
        |_, event| {
            if let TrialEvent::Step { step, .. } = event {
                overflows += u32::from(!step.grad_norm.is_finite());
            }
        },
    );
    let metrics = complete(state);
    assert!(overflows > 0, "nothing overflowed: the test says nothing");
    assert!(metrics.value(LOSS).unwrap() < 9.0 && metrics.value(THROUGHPUT).unwrap() > 0.0);
}
