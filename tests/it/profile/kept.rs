//! Share of the loss that a precision keeps, and what a training changes of a model's distributions.

use std::sync::Arc;

use peft_tune_core::recipe::Precision;
use peft_tune_engine::{Divergence, LossKept, Trainer};
use peft_tune_kernels::ops::loss_head::IGNORE;

use crate::golden::{base, folder, recipe, whole_batch};

#[test]
fn f32_keeps_all_of_itself_and_4_bits_keep_most() {
    let recipe = recipe(&folder("ref_llama").join("adapter_init"));
    let batch = whole_batch("ref_llama");
    let trainer = |precision: Precision| Trainer::new(base("ref_llama", precision), &recipe, 10).unwrap();
    let mut exact = trainer(Precision::Fp32);
    let same = LossKept::measure(&mut trainer(Precision::Fp32), &mut exact, &batch).unwrap();
    assert_eq!((same.percent(), same.agreement), (100.0, 1.0));
    let mut trained = trainer(Precision::Nf4);
    trained.step(&batch).unwrap();
    let kept = LossKept::measure(&mut trained, &mut exact, &batch).unwrap();
    assert!((80.0..110.0).contains(&kept.percent()), "{kept:?}");
    assert!(kept.agreement > 0.3 && kept.agreement < 1.0, "{kept:?}");
    // The reference has what was trained.
    let values = |trainer: &Trainer| trainer.parameters().values.to_vec1::<f32>().unwrap();
    assert_eq!(values(&exact), values(&trained));
}

#[test]
fn the_most_likely_tokens_are_those_of_the_logits() {
    let recipe = recipe(&folder("ref_gemma2").join("adapter_init"));
    let mut trainer = Trainer::new(Arc::clone(&base("ref_gemma2", Precision::Fp32)), &recipe, 10).unwrap();
    let batch = &whole_batch("ref_gemma2")[0];
    let logits = trainer.logits(batch).unwrap();
    let expected: Vec<u32> = logits.argmax(1).unwrap().to_vec1().unwrap();
    assert_eq!(trainer.most_likely(batch).unwrap(), expected);
}

#[test]
fn the_divergence_from_the_model_before_is_that_of_the_whole_logits() {
    let recipe = recipe(&folder("ref_llama").join("adapter_init"));
    let batch = whole_batch("ref_llama");
    let trainer = || Trainer::new(base("ref_llama", Precision::Fp32), &recipe, 10).unwrap();
    let (mut trained, mut before) = (trainer(), trainer());
    let same = Divergence::measure(&mut trained, &mut before, &batch).unwrap();
    let targets: usize = batch.iter().map(|batch| batch.target_tokens()).sum();
    assert_eq!((same.nats, same.positions), (0.0, targets as u64));
    trained.step(&batch).unwrap();
    let found = Divergence::measure(&mut trained, &mut before, &batch).unwrap();
    // By candle's own ops, over all positions at once.
    let log_softmax = |trainer: &mut Trainer, batch| {
        let logits = trainer.logits(batch).unwrap();
        let sum = logits.exp().unwrap().sum_keepdim(1).unwrap();
        logits.broadcast_sub(&sum.log().unwrap()).unwrap()
    };
    let mut expected = 0.0;
    for batch in &batch {
        let (p, q) = (log_softmax(&mut before, batch), log_softmax(&mut trained, batch));
        let each = (p.exp().unwrap() * (p - q).unwrap()).unwrap().sum(1).unwrap();
        let each: Vec<f32> = each.to_vec1().unwrap();
        let of_targets = each.iter().zip(&batch.targets).filter(|(_, target)| **target != IGNORE);
        expected += of_targets.map(|(nats, _)| f64::from(*nats)).sum::<f64>();
    }
    expected /= targets as f64;
    assert!(
        found.nats > 0.0 && (found.nats - expected).abs() < 1e-6 + 1e-3 * expected,
        "{found:?} {expected}"
    );
}
