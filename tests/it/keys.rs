//! Keys of recipes on the real engine: two recipes with one loss key train to the same loss, two with one cost key have
//! the same peak memory.

use std::path::Path;
use std::time::Duration;

use peft_tune::worker::WorkerPool;
use peft_tune_core::objective::{LOSS, PEAK_MEMORY};
use peft_tune_core::recipe::{
    AdapterInit, Checkpointing, DataSettings, HeldOut, OptimizerKind, Precision, Recipe, ScheduleKind,
};
use peft_tune_core::study::{AccuracyPlan, MeasurePlan, Metrics, TrainPlan, TrialPlan};

use super::trial_run::{self, complete};

type Change = fn(&mut Recipe);

fn recipe() -> Recipe {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart");
    let data = DataSettings {
        train: vec![assets.join("train.jsonl")].into(),
        held_out: HeldOut::Files(vec![assets.join("held_out.jsonl")]),
        max_rows: Some(64),
        ..DataSettings::default()
    };
    let mut recipe = Recipe::new(assets.join("base").to_str().unwrap(), data);
    recipe.precision = Precision::Fp32;
    recipe.batch.sequence_length = 96;
    recipe.batch.micro_batch = 4;
    recipe.adapter.as_mut().unwrap().rank = 4;
    recipe.optimizer.learning_rate = 1e-2;
    recipe
}

fn changed(change: Change) -> Recipe {
    let mut recipe = recipe();
    change(&mut recipe);
    recipe
}

/// Runs a recipe in a process of its own, so that nothing else counts in its memory.
fn run(recipe: Recipe, plan: TrialPlan) -> Metrics {
    let program = env!("CARGO_BIN_EXE_peft-tune").into();
    let mut evaluator = WorkerPool::single(program, Some(1));
    let patience = Duration::from_secs(60);
    complete(trial_run::run(&mut evaluator, 0, (recipe, plan), patience, |_, _| ()))
}

fn loss(recipe: Recipe) -> f64 {
    let train = TrainPlan {
        length: peft_tune_core::recipe::TrainingLength::Steps(3),
        evaluations: 1,
        evaluation_rows: Some(8),
        accuracy: AccuracyPlan::default(),
        seed_offset: 0,
    };
    let plan = TrialPlan {
        measure: None,
        train: Some(train),
    };
    run(recipe, plan).value(LOSS).unwrap()
}

fn peak_memory(recipe: Recipe) -> f64 {
    let measure = MeasurePlan {
        steps: 2,
        max_warmup_steps: 0,
        serve: None,
    };
    let plan = TrialPlan {
        measure: Some(measure),
        train: None,
    };
    run(recipe, plan).value(PEAK_MEMORY).unwrap()
}

#[test]
fn what_cannot_change_the_loss_does_not() {
    let changes: [(&str, Change); 6] = [
        ("the split of the global batch", |recipe| {
            recipe.batch.micro_batch = 1;
            recipe.batch.gradient_accumulation = 4;
        }),
        ("the split with dropout", |recipe| {
            recipe.batch.micro_batch = 2;
            recipe.batch.gradient_accumulation = 2;
            recipe.adapter.as_mut().unwrap().dropout = 0.2;
        }),
        ("full checkpointing", |recipe| {
            recipe.gradient_checkpointing = Checkpointing::Full;
        }),
        ("checkpointing of every second layer", |recipe| {
            recipe.gradient_checkpointing = Checkpointing::EVERY_SECOND;
        }),
        ("checkpointing to the host", |recipe| {
            recipe.gradient_checkpointing = Checkpointing::Offload;
        }),
        ("paging", |recipe| recipe.optimizer.kind = OptimizerKind::PagedAdamW),
    ];
    let plain = loss(recipe());
    let dropped = loss(changed(|recipe| recipe.adapter.as_mut().unwrap().dropout = 0.2));
    for (name, change) in changes {
        let changed = changed(change);
        let drops = changed.adapter.as_ref().unwrap().dropout > 0.0;
        let (expected, reference) = if drops {
            (
                dropped,
                self::changed(|recipe| recipe.adapter.as_mut().unwrap().dropout = 0.2),
            )
        } else {
            (plain, recipe())
        };
        assert_eq!(changed.loss_key(), reference.loss_key(), "{name}");
        assert_ne!(changed.cost_key(), reference.cost_key(), "{name}");
        let found = loss(changed);
        assert!(
            (found - expected).abs() < 2e-5 * expected,
            "{name}: {found} for {expected}"
        );
    }
    // The losses do differ where something changes them, or equal ones would say nothing.
    assert!((plain - dropped).abs() > 1e-4 * plain);
}

#[test]
fn what_cannot_change_the_cost_does_not() {
    let changes: [(&str, Change); 15] = [
        ("alpha", |recipe| recipe.adapter.as_mut().unwrap().alpha = 64.0),
        ("rslora", |recipe| recipe.adapter.as_mut().unwrap().rslora = true),
        ("init", |recipe| {
            recipe.adapter.as_mut().unwrap().init = AdapterInit::Gaussian
        }),
        ("learning_rate", |recipe| recipe.optimizer.learning_rate = 1e-3),
        ("weight_decay", |recipe| recipe.optimizer.weight_decay = 0.1),
        ("beta1", |recipe| recipe.optimizer.beta1 = 0.8),
        ("beta2", |recipe| recipe.optimizer.beta2 = Some(0.95)),
        ("epsilon", |recipe| recipe.optimizer.epsilon = 1e-6),
        ("loraplus_ratio", |recipe| recipe.optimizer.loraplus_ratio = Some(4.0)),
        ("max_grad_norm", |recipe| recipe.optimizer.max_grad_norm = Some(0.3)),
        ("schedule", |recipe| recipe.schedule.kind = ScheduleKind::Cosine),
        ("warmup", |recipe| recipe.schedule.warmup = 0.5),
        ("momentum of AdamW", |recipe| recipe.optimizer.momentum = 0.5),
        ("training length", |recipe| {
            recipe.training.length = peft_tune_core::recipe::TrainingLength::Steps(99);
        }),
        ("evaluation", |recipe| recipe.training.evaluation_rows = Some(3)),
    ];
    let plain = peak_memory(recipe());
    for (name, change) in changes {
        let changed = changed(change);
        assert_eq!(changed.cost_key(), recipe().cost_key(), "{name}");
        let found = peak_memory(changed);
        // The data's thread takes a few kilobytes now and then.
        assert!((found - plain).abs() < 2e-3 * plain, "{name}: {found} for {plain}");
    }
    let larger = peak_memory(changed(|recipe| recipe.adapter.as_mut().unwrap().rank = 32));
    assert!(larger > 1.02 * plain, "{larger} for {plain}");
}

#[test]
fn another_dropout_costs_the_same_and_a_first_one_does_not() {
    let of = |dropout: f64| {
        let mut recipe = recipe();
        recipe.adapter.as_mut().unwrap().dropout = dropout;
        recipe
    };
    assert_eq!(of(0.1).cost_key(), of(0.3).cost_key());
    assert_ne!(of(0.1).cost_key(), of(0.0).cost_key());
    let (low, high) = (peak_memory(of(0.1)), peak_memory(of(0.3)));
    assert!((low - high).abs() < 2e-3 * low, "{low} and {high}");
}
