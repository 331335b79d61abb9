//! Attention over four documents of 256 tokens, and over one of 1024.

use crate::{Case, TOKENS, cases, operations};
use candle_core::Tensor;
use peft_tune_kernels::ops::attention;
use peft_tune_kernels::ops::attention::{Saved, Settings};

/// Offsets of documents of one length.
fn offsets(length: usize) -> Vec<u32> {
    (0..=TOKENS / length)
        .map(|document| (document * length) as u32)
        .collect()
}

/// Operations of the forward: two products over the visible pairs.
fn visible_operations(case: &Case, length: usize) -> usize {
    let pairs = TOKENS / length * length * (length + 1) / 2;
    4 * pairs * case.model.query_heads * case.model.head_dim
}

fn settings(case: &Case) -> Settings {
    Settings {
        scale: 1.0 / (case.model.head_dim as f64).sqrt(),
        window: None,
        soft_cap: None,
    }
}

fn inputs(case: &Case) -> [Tensor; 4] {
    let input = |heads| case.random(&[TOKENS, heads, case.model.head_dim]);
    let (query_heads, key_heads) = (case.model.query_heads, case.model.key_heads);
    [
        input(query_heads),
        input(key_heads),
        input(key_heads),
        input(query_heads),
    ]
}

#[divan::bench(args = cases(), consts = [256, 1024])]
fn forward<const LENGTH: usize>(bencher: divan::Bencher, case: &Case) {
    let ([q, k, v, _], offsets, settings) = (inputs(case), offsets(LENGTH), settings(case));
    let count = operations(visible_operations(case, LENGTH));
    case.time(bencher, count, || attention::forward(&q, &k, &v, &offsets, &settings));
}

#[divan::bench(args = cases(), consts = [256, 1024])]
fn backward<const LENGTH: usize>(bencher: divan::Bencher, case: &Case) {
    let ([q, k, v, d_o], offsets, settings) = (inputs(case), offsets(LENGTH), settings(case));
    let (o, lse) = attention::forward(&q, &k, &v, &offsets, &settings).expect("shapes agree");
    let saved = Saved {
        q: &q,
        k: &k,
        v: &v,
        o: &o,
        lse: &lse,
    };
    let count = operations(visible_operations(case, LENGTH) * 5 / 2);
    case.time(bencher, count, || attention::backward(saved, &d_o, &offsets, &settings));
}
