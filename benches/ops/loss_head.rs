//! The loss head over 512 targets, in chunks of 256.

use crate::{Case, cases, operations};
use peft_tune_kernels::ops::loss_head;
use peft_tune_kernels::ops::loss_head::Settings;

const TARGETS: usize = 512;

#[divan::bench(args = cases(), sample_count = 20)]
fn training(bencher: divan::Bencher, case: &Case) {
    run(bencher, case, Some(1.0 / TARGETS as f32), 4);
}

#[divan::bench(args = cases(), sample_count = 20)]
fn evaluation(bencher: divan::Bencher, case: &Case) {
    run(bencher, case, None, 2);
}

fn run(bencher: divan::Bencher, case: &Case, gradient_scale: Option<f32>, products: usize) {
    let model = case.model;
    let (hidden, weight) = (
        case.random(&[TARGETS, model.hidden]),
        case.random(&[model.vocabulary, model.hidden]),
    );
    let targets: Vec<i64> = (0..TARGETS)
        .map(|position| (position * 37 % model.vocabulary) as i64)
        .collect();
    let settings = Settings {
        soft_cap: None,
        chunk_tokens: 256,
        gradient_scale,
    };
    let count = operations(products * TARGETS * model.hidden * model.vocabulary);
    case.time(bencher, count, || {
        loss_head::forward(&hidden, &weight, &targets, &settings)
    });
}
