//! Attention against autograd of its plain form in F64, and against the definition.

use super::super::oracle::{assert_close, autograd, random, rounded};
use super::*;
use candle_core::DType;

fn settings(head_dim: usize) -> Settings {
    Settings {
        scale: 1.0 / (head_dim as f64).sqrt(),
        window: None,
        soft_cap: None,
    }
}

/// The definition, query by query.
fn naive(q: &Tensor, k: &Tensor, v: &Tensor, offsets: &[u32], settings: &Settings) -> Tensor {
    let ((tokens, heads, _), width) = (q.dims3().unwrap(), v.dim(2).unwrap());
    let group = heads / k.dim(1).unwrap();
    let read = |x: &Tensor| x.to_vec3::<f64>().unwrap();
    let (q, k, v) = (read(q), read(k), read(v));
    let mut o = vec![0.0; tokens * heads * width];
    for (i, head) in (0..tokens).flat_map(|i| (0..heads).map(move |head| (i, head))) {
        let start = *offsets.iter().rfind(|start| **start as usize <= i).unwrap() as usize;
        let first = start.max((i + 1).saturating_sub(settings.window.unwrap_or(usize::MAX)));
        let score = |j: usize| {
            let dot: f64 = q[i][head].iter().zip(&k[j][head / group]).map(|(a, b)| a * b).sum();
            let score = dot * settings.scale;
            settings.soft_cap.map_or(score, |cap| cap * (score / cap).tanh())
        };
        let weights: Vec<f64> = (first..=i).map(|j| score(j).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for (weight, j) in weights.iter().zip(first..) {
            for column in 0..width {
                o[(i * heads + head) * width + column] += weight / sum * v[j][head / group][column];
            }
        }
    }
    Tensor::from_vec(o, (tokens, heads, width), &candle_core::Device::Cpu).unwrap()
}

fn variants(head_dim: usize) -> [Settings; 4] {
    let plain = settings(head_dim);
    let windowed = Settings {
        window: Some(3),
        ..plain
    };
    let capped = Settings {
        soft_cap: Some(0.7),
        ..plain
    };
    let both = Settings {
        window: Some(2),
        ..capped
    };
    [plain, windowed, capped, both]
}

#[test]
fn reference_matches_the_definition() {
    for width in [8, 5, 11] {
        let (q, k, v) = (
            random(&[11, 4, 8], 1),
            random(&[11, 2, 8], 2),
            random(&[11, 2, width], 3),
        );
        let offsets = [0, 4, 4, 5, 11];
        for settings in variants(8) {
            let (o, _) = reference::forward(&q, &k, &v, &offsets, &settings).unwrap();
            assert_close(&o, &naive(&q, &k, &v, &offsets, &settings), "o");
        }
    }
}

#[test]
fn reference_gradients_match_autograd() {
    let (q, k, v) = (random(&[7, 4, 8], 1), random(&[7, 2, 8], 2), random(&[7, 2, 6], 3));
    let (d_o, offsets) = (random(&[7, 4, 6], 4), [0, 5, 7]);
    for settings in variants(8) {
        let [_, _, dq, dk, dv] = reference::both_passes([&q, &k, &v, &d_o], &offsets, &settings).unwrap();
        let expected = autograd(&[&q, &k, &v], &d_o, |inputs| {
            Ok(reference::forward(&inputs[0], &inputs[1], &inputs[2], &offsets, &settings)?.0)
        });
        for (name, actual, expected) in [
            ("dq", &dq, &expected[0]),
            ("dk", &dk, &expected[1]),
            ("dv", &dv, &expected[2]),
        ] {
            assert_close(actual, expected, name);
        }
    }
}

#[test]
fn offsets_that_do_not_end_at_the_stream_are_refused() {
    let (q, k) = (random(&[4, 2, 8], 1), random(&[4, 1, 8], 2));
    let error = forward(&q, &k, &k, &[0, 3], &settings(8)).unwrap_err();
    assert!(
        error.to_string().contains("do not split a stream of 4 tokens"),
        "{error}"
    );
}

/// Runs both directions in `dtype` and compares them with the reference form in F64.
fn compare(
    dtype: DType,
    offsets: &[u32],
    (query_heads, key_heads, head_dim): (usize, usize, usize),
    settings: &Settings,
) {
    compare_widths(dtype, offsets, (query_heads, key_heads), [head_dim; 2], settings);
}

/// Compares as [`compare`] does, with a width of queries and keys, and one of values.
fn compare_widths(
    dtype: DType,
    offsets: &[u32],
    (query_heads, key_heads): (usize, usize),
    [head_dim, value_dim]: [usize; 2],
    settings: &Settings,
) {
    let tokens = *offsets.last().unwrap() as usize;
    let input = |heads, width, seed| rounded(&(random(&[tokens, heads, width], seed) * 2.0).unwrap(), dtype);
    let ((q, q64), (k, k64)) = (input(query_heads, head_dim, 1), input(key_heads, head_dim, 2));
    let ((v, v64), (d_o, d_o64)) = (input(key_heads, value_dim, 3), input(query_heads, value_dim, 4));
    let (o, lse) = forward(&q, &k, &v, offsets, settings).unwrap();
    let (o64, lse64) = reference::forward(&q64, &k64, &v64, offsets, settings).unwrap();
    assert_close(&o, &o64, "o");
    assert_close(&lse, &lse64, "lse");
    let saved = Saved {
        q: &q,
        k: &k,
        v: &v,
        o: &o,
        lse: &lse,
    };
    let (dq, dk, dv) = backward(saved, &d_o, offsets, settings).unwrap();
    // The saved result is rounded to the dtype; its oracle starts from the rounded one too.
    let o64 = o.to_dtype(DType::F64).unwrap();
    let saved64 = Saved {
        q: &q64,
        k: &k64,
        v: &v64,
        o: &o64,
        lse: &lse64,
    };
    let (dq64, dk64, dv64) = reference::backward(saved64, &d_o64, offsets, settings).unwrap();
    for (name, actual, expected) in [("dq", &dq, &dq64), ("dk", &dk, &dk64), ("dv", &dv, &dv64)] {
        assert_close(actual, expected, name);
    }
}

#[test]
fn fused_form_matches_f64_for_every_head_size_and_group() {
    for heads in [(1, 1, 16), (4, 2, 24), (3, 1, 64), (2, 2, 96), (4, 1, 128), (2, 1, 256)] {
        for settings in variants(heads.2) {
            compare(DType::F32, &[0, 70, 71, 71, 103], heads, &settings);
        }
    }
}

#[test]
fn values_may_be_narrower_or_wider_than_keys() {
    for (heads, widths) in [
        ((4, 4), [24, 12]),
        ((2, 2), [192, 128]),
        ((4, 2), [24, 40]),
        ((3, 1), [7, 1]),
    ] {
        for settings in variants(widths[0]) {
            compare_widths(DType::F32, &[0, 70, 71, 71, 103], heads, widths, &settings);
        }
    }
    for dtype in [DType::BF16, DType::F16] {
        compare_widths(dtype, &[0, 40, 90], (4, 4), [48, 32], &settings(48));
    }
    compare_widths(DType::F32, &[0, 700], (2, 1), [24, 16], &settings(24));
}

#[test]
fn fused_form_matches_f64_in_half_precision() {
    for dtype in [DType::BF16, DType::F16] {
        compare(dtype, &[0, 40, 90], (6, 2, 32), &settings(32));
    }
}

#[test]
fn fused_form_matches_f64_over_many_blocks_and_spans() {
    let windowed = Settings {
        window: Some(200),
        ..settings(16)
    };
    for settings in [settings(16), windowed] {
        compare(DType::F32, &[0, 700], (2, 1, 16), &settings);
    }
}

#[test]
fn rows_of_the_softmax_gradient_sum_to_zero() {
    // With all values equal, the result does not depend on the scores, so that dq and dk vanish.
    let (q, k) = (
        random(&[50, 2, 16], 1).to_dtype(DType::F32).unwrap(),
        random(&[50, 1, 16], 2).to_dtype(DType::F32).unwrap(),
    );
    let v = k.ones_like().unwrap();
    let d_o = random(&[50, 2, 16], 3).to_dtype(DType::F32).unwrap();
    let [_, _, dq, dk, _] = both_passes(None, [&q, &k, &v, &d_o], &[0, 50], &settings(16)).unwrap();
    for gradient in [dq, dk] {
        let largest = gradient
            .abs()
            .unwrap()
            .flatten_all()
            .unwrap()
            .max(0)
            .unwrap()
            .to_scalar::<f32>()
            .unwrap();
        assert!(largest < 1e-5, "{largest}");
    }
}
