//! The loss head against autograd of the plain cross-entropy in F64.

use super::super::oracle::{assert_close, autograd, random, rounded};
use super::*;
use crate::ops::loss_head::IGNORE;
use candle_core::{D, DType, Device};

fn settings() -> Settings {
    Settings {
        soft_cap: None,
        chunk_tokens: 3,
        gradient_scale: Some(0.25),
    }
}

const TARGETS: [i64; 7] = [3, IGNORE, 0, 10, IGNORE, 3, 5];

fn plain_loss(hidden: &Tensor, weight: &Tensor, soft_cap: Option<f64>) -> Result<Tensor> {
    let mut logits = hidden.matmul(&weight.t()?)?;
    if let Some(cap) = soft_cap {
        logits = ((logits / cap)?.tanh()? * cap)?;
    }
    let kept: Vec<u32> = vec![0, 2, 3, 5, 6];
    let ids: Vec<u32> = kept.iter().map(|row| TARGETS[*row as usize] as u32).collect();
    let logits = logits.index_select(&Tensor::new(kept, &Device::Cpu)?, 0)?;
    let picked = logits.gather(&Tensor::new(ids, &Device::Cpu)?.unsqueeze(1)?, 1)?;
    let lse = logits.exp()?.sum_keepdim(D::Minus1)?.log()?;
    (lse - picked)?.sum_all()
}

#[test]
fn loss_and_gradients_match_autograd() {
    let (hidden, weight) = (random(&[7, 6], 1), random(&[11, 6], 2));
    for soft_cap in [None, Some(0.8)] {
        let settings = Settings { soft_cap, ..settings() };
        let into = Tensor::ones((11, 6), DType::F64, &Device::Cpu).unwrap();
        let output = reference::forward(&hidden, &weight, &TARGETS, &settings, Some(&into)).unwrap();
        let scale = Tensor::new(0.25, &Device::Cpu).unwrap();
        let expected = autograd(&[&hidden, &weight], &scale, |inputs| {
            plain_loss(&inputs[0], &inputs[1], soft_cap)
        });
        let loss = plain_loss(&hidden, &weight, soft_cap)
            .unwrap()
            .to_scalar::<f64>()
            .unwrap();
        assert!((output.sums.read().unwrap().0 - loss).abs() < 1e-12 * loss);
        assert_eq!(output.target_tokens, 5);
        assert_close(&output.d_hidden.unwrap(), &expected[0], "d_hidden");
        assert_close(&(into - 1.0).unwrap(), &expected[1], "d_weight");
    }
}

#[test]
fn a_stream_without_targets_costs_nothing_and_has_no_gradient() {
    let (hidden, weight) = (random(&[3, 6], 1), random(&[11, 6], 2));
    let output = forward(&hidden, &weight, &[IGNORE; 3], &settings()).unwrap();
    assert_eq!((output.sums.read().unwrap(), output.target_tokens), ((0.0, 0), 0));
    let d_hidden = output.d_hidden.unwrap().flatten_all().unwrap();
    assert_eq!(d_hidden.to_vec1::<f64>().unwrap(), [0.0; 18]);
}

#[test]
fn evaluation_makes_no_gradient_and_counts_right_predictions() {
    let hidden = Tensor::eye(6, DType::F64, &Device::Cpu).unwrap();
    let settings = Settings {
        gradient_scale: None,
        ..settings()
    };
    let output = forward(&hidden, &hidden, &[0, 1, 5, 3, IGNORE, 5], &settings).unwrap();
    assert_eq!((output.sums.read().unwrap().1, output.target_tokens), (4, 5));
    let each = output.sums.of_targets().unwrap();
    assert_eq!(each.len(), 5);
    assert!((each.iter().sum::<f64>() - output.sums.read().unwrap().0).abs() < 1e-12);
    assert!(output.d_hidden.is_none());
}

#[test]
fn a_target_outside_the_vocabulary_is_refused() {
    let (hidden, weight) = (random(&[2, 6], 1), random(&[11, 6], 2));
    let error = forward(&hidden, &weight, &[3, 11], &settings()).unwrap_err();
    assert!(error.to_string().contains("target 11 at position 1"), "{error}");
}

#[test]
fn fused_form_matches_f64() {
    let targets: Vec<i64> = (0..37)
        .map(|i| if i % 5 == 1 { IGNORE } else { (i * 29) % 130 })
        .collect();
    let (hidden, weight) = (random(&[37, 24], 1), random(&[130, 24], 2));
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for (soft_cap, chunk_tokens) in [(None, 8), (Some(2.0), 100), (None, 1)] {
            let settings = Settings {
                soft_cap,
                chunk_tokens,
                gradient_scale: Some(0.25),
            };
            let ((hidden, hidden64), (weight, weight64)) = (rounded(&hidden, dtype), rounded(&weight, dtype));
            let into = Tensor::ones((130, 24), DType::F32, &Device::Cpu).unwrap();
            let into64 = into.to_dtype(DType::F64).unwrap();
            let chunks = forward_with_weight_gradient(&hidden, &weight, &targets, &settings, &into).unwrap();
            let groups = forward(&hidden, &weight, &targets, &settings).unwrap();
            let expected = reference::forward(&hidden64, &weight64, &targets, &settings, Some(&into64)).unwrap();
            let (loss, correct) = expected.sums.read().unwrap();
            let evaluation = Settings {
                gradient_scale: None,
                ..settings
            };
            let evaluated = forward(&hidden, &weight, &targets, &evaluation).unwrap().sums;
            assert_eq!(evaluated.read().unwrap(), groups.sums.read().unwrap());
            // In the order of positions, so that they add up to the same bits.
            let each = evaluated.of_targets().unwrap();
            assert_eq!(each.iter().sum::<f64>(), evaluated.read().unwrap().0);
            for output in [chunks, groups] {
                let sums = output.sums.read().unwrap();
                assert!((sums.0 / loss - 1.0).abs() < 1e-6, "{dtype:?}");
                assert_eq!((sums.1, output.target_tokens), (correct, expected.target_tokens));
                let expected = expected.d_hidden.as_ref().unwrap();
                assert_close(&output.d_hidden.unwrap(), expected, "d_hidden");
            }
            let rounding = if dtype == DType::BF16 { 4e-3 } else { 2e-6 };
            let error = crate::ops::oracle::error(&into, &into64);
            assert!(error < rounding, "d_weight in {dtype:?}: {error:.2e}");
        }
    }
}

#[test]
fn a_model_of_another_dtype_than_its_head_is_served() {
    let (hidden, weight) = (random(&[7, 24], 1), random(&[130, 24], 2));
    for (compute, storage) in [(DType::F32, DType::BF16), (DType::BF16, DType::F32)] {
        let ((hidden, hidden64), (weight, weight64)) = (rounded(&hidden, compute), rounded(&weight, storage));
        let output = forward(&hidden, &weight, &TARGETS, &settings()).unwrap();
        let expected = reference::forward(&hidden64, &weight64, &TARGETS, &settings(), None).unwrap();
        assert!((output.sums.read().unwrap().0 / expected.sums.read().unwrap().0 - 1.0).abs() < 4e-3);
        assert_close(&output.d_hidden.unwrap(), &expected.d_hidden.unwrap(), "d_hidden");
    }
}
