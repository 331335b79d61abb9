//! Every kernel, run on the emulator, against the F64 form of its op.

use candle_core::{DType, Device, Tensor};

use super::codes::Codes;
use crate::gpu::{emulated, has_compiler};
use crate::ops::attention::Settings;
use crate::ops::dropout::MaskKey;
use crate::ops::loss_head::IGNORE;
use crate::ops::matmul::{Factor, QuantizedMatrix, Term};
use crate::ops::oracle::{assert_close, error, random, rounded, tolerance};
use crate::ops::rope::RopeTable;
use crate::ops::{
    bias, cached_attention, centre, dropout, embedding, gain, glu, loss_head, matmul, residual, rms_norm, rope, xielu,
};
use crate::quant::Nf4;

pub(super) const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

#[test]
fn sums_and_biases_match_f64() {
    if !has_compiler() {
        return;
    }
    for dtype in DTYPES {
        for (rows, width) in [(3, 64), (5, 7), (70, 40)] {
            let ((x, x64), (y, y64)) = (
                rounded(&random(&[rows, width], 1), dtype),
                rounded(&random(&[rows, width], 2), dtype),
            );
            let sum = emulated(|| residual::add(&x, &y)).unwrap();
            assert_close(&sum, &(&x64 + &y64).unwrap(), "sum");
            let scaled64 = (&y64 * 0.3).unwrap();
            let sum = emulated(|| residual::add_scaled(&x, &y, 0.3)).unwrap();
            assert_close(&sum, &(&x64 + &scaled64).unwrap(), "scaled sum");
            assert_close(&emulated(|| residual::scale(&y, 0.3)).unwrap(), &scaled64, "multiple");
            for bias_dtype in [dtype, DType::F32] {
                let (b, b64) = rounded(&random(&[width], 3), bias_dtype);
                let got = x.copy().unwrap();
                emulated(|| bias::add(&got, &b, 0.5)).unwrap();
                assert_close(&got, &x64.broadcast_add(&(b64 * 0.5).unwrap()).unwrap(), "bias");
            }
        }
    }
}

#[test]
fn attention_over_what_is_kept_matches_f64() {
    if !has_compiler() {
        return;
    }
    // Fewer rows than warps, many, and one.
    let places = [0..3, 5..60, 59..60];
    for dtype in DTYPES {
        for (heads, key_heads, width, soft_cap) in [(4, 4, 20, None), (6, 2, 64, Some(2.0)), (2, 1, 136, None)] {
            let (q, q64) = rounded(&random(&[3, heads, width], 1), dtype);
            let (k, k64) = rounded(&random(&[60, key_heads, width], 2), dtype);
            let (v, v64) = rounded(&random(&[60, key_heads, width], 3), dtype);
            let settings = Settings {
                scale: 0.3,
                window: None,
                soft_cap,
            };
            let (sinks, sinks64) = rounded(&random(&[heads], 4), dtype);
            for sinks in [None, Some((&sinks, &sinks64))] {
                let own = sinks.map(|both| both.0);
                let o =
                    emulated(|| cached_attention::forward_with_sinks((&q, &k, &v), &places, &settings, own)).unwrap();
                let wide = sinks.map(|both| both.1);
                let expected =
                    cached_attention::reference::forward((&q64, &k64, &v64), &places, &settings, wide).unwrap();
                assert_close(&o, &expected, "o");
            }
        }
    }
}

#[test]
fn gains_match_f64() {
    if !has_compiler() {
        return;
    }
    for dtype in DTYPES {
        for (rows, width) in [(3, 64), (5, 7), (300, 40), (129, 264)] {
            let ((dz, dz64), (y, y64)) = (
                rounded(&random(&[rows, width], 1), dtype),
                rounded(&random(&[rows, width], 2), dtype),
            );
            let vector = |seed| rounded(&random(&[width], seed), DType::F32);
            let ((factor, factor64), (norm, norm64)) = (vector(3), vector(4));
            let (norm, norm64) = (
                (norm.sqr().unwrap() + 1.0).unwrap(),
                (norm64.sqr().unwrap() + 1.0).unwrap(),
            );
            let scaled = y.copy().unwrap();
            emulated(|| gain::scale(&scaled, &factor, -1.0)).unwrap();
            let expected = y64.broadcast_mul(&(&factor64 - 1.0).unwrap()).unwrap();
            assert_close(&scaled, &expected, "scaled");
            let gradient = Tensor::ones(width, DType::F32, &Device::Cpu).unwrap();
            emulated(|| gain::backward(&dz, &y, &factor, &norm, &gradient)).unwrap();
            assert_close(&y, &dz64.broadcast_mul(&factor64).unwrap(), "dy");
            let sums = ((dz64 * y64).unwrap().sum(0).unwrap() / norm64).unwrap();
            assert_close(&gradient, &(sums + 1.0).unwrap(), "d_magnitude");
        }
    }
}

#[test]
fn norms_of_dora_match_plain_ops() {
    if !has_compiler() {
        return;
    }
    let float = |shape: &[usize], seed| random(shape, seed).to_dtype(DType::F32).unwrap();
    for dtype in DTYPES {
        for (width, rank) in [(300, 8), (7, 1), (130, 33)] {
            let (projected, gram) = (float(&[rank, width], 1).to_dtype(dtype).unwrap(), float(&[rank, 40], 2));
            let parts = gain::NormParts {
                squared: &(float(&[width], 3).abs().unwrap() + 2e3).unwrap(),
                projected: &projected,
                gram: &gram.matmul(&gram.t().unwrap()).unwrap(),
                b: &float(&[width, rank], 4),
                scaling: 0.7,
            };
            let magnitude = float(&[width], 5);
            let (norm, factor) = (magnitude.zeros_like().unwrap(), magnitude.zeros_like().unwrap());
            emulated(|| gain::fill(parts, &magnitude, &norm, &factor)).unwrap();
            let expected = gain::norm(parts).unwrap().to_dtype(DType::F64).unwrap();
            assert_close(&norm, &expected, "norm");
            let expected = (magnitude.to_dtype(DType::F64).unwrap() / expected).unwrap();
            assert_close(&factor, &expected, "gain");
        }
    }
}

#[test]
fn gated_linear_units_match_f64() {
    if !has_compiler() {
        return;
    }
    for dtype in DTYPES {
        for activation in [glu::Activation::Silu, glu::Activation::GeluTanh] {
            for shape in [[9, 64], [3, 5]] {
                let large = |seed| (random(&shape, seed) * 6.0).unwrap();
                let (gate, gate64) = rounded(&large(1), dtype);
                let (up, up64) = rounded(&large(2), dtype);
                let (dy, dy64) = rounded(&random(&shape, 3), dtype);
                let y = emulated(|| glu::forward(&gate, &up, activation)).unwrap();
                assert_close(&y, &glu::reference::forward(&gate64, &up64, activation).unwrap(), "y");
                let (d_gate, d_up) = emulated(|| glu::backward(gate, &up, dy, activation)).unwrap();
                let expected = glu::reference::backward(&gate64, &up64, &dy64, activation).unwrap();
                assert_close(&d_gate, &expected.0, "d_gate");
                assert_close(&d_up, &expected.1, "d_up");
            }
        }
    }
}

#[test]
fn curves_without_a_gate_match_f64() {
    if !has_compiler() {
        return;
    }
    let curve = xielu::Curve {
        positive: 0.9,
        negative: 1.4,
        beta: 0.5,
        epsilon: -1e-6,
    };
    for dtype in DTYPES {
        for shape in [[9, 64], [3, 5]] {
            let (x, x64) = rounded(&(random(&shape, 1) * 4.0).unwrap(), dtype);
            let (dy, dy64) = rounded(&random(&shape, 2), dtype);
            let y = emulated(|| xielu::forward(&x, curve)).unwrap();
            assert_close(&y, &xielu::reference::forward(&x64, curve).unwrap(), "y");
            let dx = emulated(|| xielu::backward(&x, &dy, curve)).unwrap();
            assert_close(&dx, &xielu::reference::backward(&x64, &dy64, curve).unwrap(), "dx");
        }
    }
}

#[test]
fn rows_without_their_mean_match_f64() {
    if !has_compiler() {
        return;
    }
    for dtype in DTYPES {
        for (rows, width) in [(11, 64), (3, 1160), (2, 4096), (5, 37)] {
            let (x, x64) = rounded(&(random(&[rows, width], 1) + 2.0).unwrap(), dtype);
            let y = emulated(|| centre::rows(&x)).unwrap();
            assert_close(&y, &centre::reference::rows(&x64).unwrap(), "y");
        }
    }
}

#[test]
fn dropout_draws_the_mask_of_the_cpu() {
    if !has_compiler() {
        return;
    }
    for dtype in DTYPES {
        let x = Tensor::ones(3001, DType::F32, &Device::Cpu)
            .unwrap()
            .to_dtype(dtype)
            .unwrap();
        for first in [0, 64, 77, 1 << 40] {
            let key = MaskKey::new(9 << 33 | 5, first);
            let got = emulated(|| dropout::apply(&x, &key, 2, 0.3)).unwrap();
            let expected = dropout::apply(&x, &key, 2, 0.3).unwrap();
            let wide = |tensor: Tensor| tensor.to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(wide(got), wide(expected));
        }
    }
}

#[test]
fn the_kernel_of_dropout_reads_its_key_from_the_devices_memory() {
    if !has_compiler() {
        return;
    }
    let x = Tensor::ones((50, 7), DType::F32, &Device::Cpu).unwrap();
    let (old, new) = (MaskKey::new(1, 2), MaskKey::new(3 << 40, 9));
    let written = MaskKey {
        on_device: Some(Tensor::new(&new.words(), &Device::Cpu).unwrap()),
        ..old
    };
    let got = emulated(|| dropout::apply(&x, &written, 5, 0.3)).unwrap();
    let expected = dropout::apply(&x, &new, 5, 0.3).unwrap();
    assert_eq!(got.to_vec2::<f32>().unwrap(), expected.to_vec2::<f32>().unwrap());
}

#[test]
fn norms_match_f64_for_short_long_and_odd_rows() {
    if !has_compiler() {
        return;
    }
    for dtype in DTYPES {
        for (rows, width) in [(11, 64), (3, 1160), (2, 4096), (5, 37), (2, 4099)] {
            let ((x, x64), (dy, dy64)) = (
                rounded(&random(&[rows, width], 1), dtype),
                rounded(&random(&[rows, width], 2), dtype),
            );
            let (weight, weight64) = rounded(&random(&[width], 3), dtype);
            let (y, rstd) = emulated(|| rms_norm::forward(&x, &weight, 1e-5, 1.0)).unwrap();
            let (y64, rstd64) = rms_norm::reference::forward(&x64, &weight64, 1e-5, 1.0).unwrap();
            assert_close(&y, &y64, "y");
            assert_close(&rstd, &rstd64, "rstd");
            let dx = emulated(|| rms_norm::backward(&x, &weight, &rstd, &dy, 1.0)).unwrap();
            let dx64 = rms_norm::reference::backward(&x64, &weight64, &rstd64, &dy64, 1.0).unwrap();
            assert_close(&dx, &dx64, "dx");
            let dw = emulated(|| rms_norm::weight_gradient(&x, &rstd, &dy)).unwrap();
            assert_close(
                &dw,
                &rms_norm::reference::weight_gradient(&x64, &rstd64, &dy64).unwrap(),
                "dw",
            );
        }
    }
}

#[test]
fn rotations_match_f64_also_of_a_part_of_the_head() {
    if !has_compiler() {
        return;
    }
    let positions = Tensor::new(&[3u32, 0, 9, 4], &Device::Cpu).unwrap();
    for dtype in DTYPES {
        for (heads, head_dim, half) in [(4, 64, 32), (3, 24, 12), (5, 96, 24), (1, 256, 128), (2, 6, 2)] {
            let frequencies: Vec<f32> = (0..half).map(|i| 10_000f32.powf(-(i as f32) / half as f32)).collect();
            for order in [rope::PairOrder::Halves, rope::PairOrder::Neighbours] {
                let table = RopeTable::new(&frequencies, 1.0, 10, &Device::Cpu)
                    .unwrap()
                    .in_order(order);
                let (x, x64) = rounded(&random(&[4, heads, head_dim], 1), dtype);
                let y = emulated(|| rope::forward(&x, &table, &positions)).unwrap();
                assert_close(&y, &rope::reference::forward(&x64, &table, &positions).unwrap(), "y");
                let dx = emulated(|| rope::backward(&x, &table, &positions)).unwrap();
                assert_close(&dx, &rope::reference::backward(&x64, &table, &positions).unwrap(), "dx");
            }
        }
    }
}

#[test]
fn rotated_norms_are_the_norms_and_the_rotation_to_the_last_bit() {
    if !has_compiler() {
        return;
    }
    let positions = Tensor::new(&[3u32, 0, 9, 4], &Device::Cpu).unwrap();
    for dtype in DTYPES {
        for (head_dim, half) in [(128, 64), (64, 16), (256, 128), (6, 2)] {
            let frequencies: Vec<f32> = (0..half).map(|i| 10_000f32.powf(-(i as f32) / half as f32)).collect();
            let table = RopeTable::new(&frequencies, 1.0, 10, &Device::Cpu).unwrap();
            let tensor = |shape: &[usize], seed| rounded(&random(shape, seed), dtype).0;
            let (q, k) = (tensor(&[4, 5, head_dim], 1), tensor(&[4, 2, head_dim], 2));
            let weights = [tensor(&[head_dim], 3), tensor(&[head_dim], 4)];
            let norms = rope::HeadNorms {
                weights: [&weights[0], &weights[1]],
                epsilon: 1e-5,
                offset: 1.0,
            };
            let got = emulated(|| rope::forward_normed([q.clone(), k.clone()], &norms, &table, &positions)).unwrap();
            for ((x, weight), (got, got_rstd)) in [&q, &k].into_iter().zip(&weights).zip(got) {
                let rows = x.reshape(((), head_dim)).unwrap();
                let (y, rstd) = emulated(|| rms_norm::forward(&rows, weight, 1e-5, 1.0)).unwrap();
                let y = y.reshape(x.shape()).unwrap();
                let y = emulated(|| rope::forward(&y, &table, &positions)).unwrap();
                let flat = |tensor: &Tensor| -> Vec<f32> {
                    let wide = tensor.flatten_all().unwrap().to_dtype(DType::F32).unwrap();
                    wide.to_vec1().unwrap()
                };
                assert_eq!((flat(&got), flat(&got_rstd)), (flat(&y), flat(&rstd)));
            }
        }
    }
}

#[test]
fn gradients_of_an_embedding_add_up() {
    if !has_compiler() {
        return;
    }
    let ids = Tensor::new(&[2u32, 0, 2, 4], &Device::Cpu).unwrap();
    for dtype in DTYPES {
        let (dy, dy64) = rounded(&random(&[4, 300], 1), dtype);
        let into = Tensor::ones((5, 300), DType::F32, &Device::Cpu).unwrap();
        let expected = Tensor::ones((5, 300), DType::F64, &Device::Cpu).unwrap();
        emulated(|| embedding::backward_add(&dy, &ids, &into)).unwrap();
        embedding::reference::backward_add(&dy64, &ids, &expected).unwrap();
        assert_close(&into, &expected, "into");
    }
}

#[test]
fn sums_of_products_match_f64_with_dense_and_with_coded_weights() {
    if !has_compiler() {
        return;
    }
    for dtype in DTYPES {
        let (x, x64) = rounded(&random(&[5, 64], 1), dtype);
        let (u, u64) = rounded(&random(&[5, 4], 2), dtype);
        // Adapters are F32 whatever the compute dtype is.
        let b = random(&[7, 4], 3)
            .to_dtype(DType::BF16)
            .unwrap()
            .to_dtype(DType::F32)
            .unwrap();
        let codes = Nf4::quantize(&random(&[7, 64], 4).to_dtype(DType::F32).unwrap(), true).unwrap();
        let weight = Codes::new(codes);
        let dense64 = weight.dense(dtype).unwrap().to_dtype(DType::F64).unwrap();
        let terms = [
            Term::new(&x, Factor::QuantizedMatrix(&weight), 1.0),
            Term::new(&u, &b, 0.5),
        ];
        let y = emulated(|| matmul::nt_sum(&terms)).unwrap();
        let b64 = b.to_dtype(DType::F64).unwrap();
        let update = (u64.matmul(&b64.t().unwrap()).unwrap() * 0.5).unwrap();
        let expected = (x64.matmul(&dense64.t().unwrap()).unwrap() + update).unwrap();
        assert!(error(&y, &expected) < 2.0 * tolerance(dtype));
        let (dy, dy64) = rounded(&random(&[5, 7], 5), dtype);
        let dx = emulated(|| matmul::nn_sum(&[Term::new(&dy, Factor::QuantizedMatrix(&weight), 1.0)])).unwrap();
        assert_close(&dx, &dy64.matmul(&dense64).unwrap(), "dx");
        let into = Tensor::ones((7, 64), DType::F32, &Device::Cpu).unwrap();
        emulated(|| matmul::tn_add(&dy, &x, 0.25, &into)).unwrap();
        let product = (dy64.t().unwrap().matmul(&x64).unwrap() * 0.25).unwrap();
        assert_close(&into, &(product + 1.0).unwrap(), "into");
    }
}

#[test]
fn gradients_of_adapters_from_one_reading_match_f64() {
    if !has_compiler() {
        return;
    }
    // One tile; a few with an edge; two bands with a tile and an edge in the second; ranks between those of the kernels.
    let sizes = [
        (64, 128, 16),
        (70, 136, 8),
        (200, 264, 24),
        (130, 1160, 16),
        (300, 648, 32),
    ];
    for dtype in [DType::BF16, DType::F16] {
        for (tokens, columns, rank) in sizes {
            let (wide, wide64) = rounded(&random(&[tokens, columns + 16], 1), dtype);
            let (beside, beside64) = rounded(&random(&[tokens, rank + 8], 2), dtype);
            let (b, b64) = rounded(&random(&[columns, rank], 3), dtype);
            // Columns of wider tensors, as they are where projections share one.
            let (dy, dy64) = (
                wide.narrow(1, 8, columns).unwrap(),
                wide64.narrow(1, 8, columns).unwrap(),
            );
            let (xa, xa64) = (beside.narrow(1, 8, rank).unwrap(), beside64.narrow(1, 8, rank).unwrap());
            let d_b = Tensor::ones((columns, rank), DType::F32, &Device::Cpu).unwrap();
            let of = |dy, xa, scale| matmul::AdapterGradients {
                dy,
                xa,
                b: &b,
                d_b: &d_b,
                scale,
            };
            let all = [of(&dy, &xa, 0.5), of(&dy, &xa, 2.0)];
            assert!(emulated(|| matmul::reads_once(&all)).unwrap());
            let d_xa = emulated(|| matmul::adapter_gradients(&all)).unwrap();
            let d_xa64 = dy64.contiguous().unwrap().matmul(&b64).unwrap();
            for (column, scale) in [(0, 0.5), (rank, 2.0)] {
                let found = d_xa.narrow(1, column, rank).unwrap();
                assert_close(&found, &(&d_xa64 * scale).unwrap(), "d_xa");
            }
            let sums = dy64.t().unwrap().contiguous().unwrap();
            let sums = sums.matmul(&xa64.contiguous().unwrap()).unwrap();
            let expected = ((sums * 2.5).unwrap() + 1.0).unwrap();
            assert!(
                error(&d_b, &expected) < 2.0 * tolerance(DType::F32),
                "{}",
                error(&d_b, &expected)
            );
            // What begins elsewhere, or has too high a rank, is left to two products.
            let odd = wide.narrow(1, 1, columns).unwrap();
            assert!(!emulated(|| matmul::reads_once(&[of(&odd, &xa, 1.0)])).unwrap());
        }
    }
}

#[test]
fn the_loss_head_matches_f64_with_gathered_and_with_all_positions() {
    if !has_compiler() {
        return;
    }
    let some = [3, IGNORE, 0, 36, IGNORE, 3, 5];
    let all = [3, 1, 0, 36, 2, 3, 5];
    // Rows of 16 bytes at a time, of hidden states and of logits, and rows that are read one element at a time.
    for (dtype, vocabulary, width) in DTYPES.iter().flat_map(|dtype| [(*dtype, 37, 16), (*dtype, 2120, 12)]) {
        for (targets, soft_cap) in [(some, None), (some, Some(0.8)), (all, None)] {
            let ((hidden, hidden64), (weight, weight64)) = (
                rounded(&(random(&[7, width], 1) * 3.0).unwrap(), dtype),
                rounded(&random(&[vocabulary, width], 2), dtype),
            );
            let settings = loss_head::Settings {
                soft_cap,
                chunk_tokens: 3,
                gradient_scale: Some(0.25),
            };
            let into = Tensor::ones((vocabulary, width), DType::F32, &Device::Cpu).unwrap();
            let into64 = Tensor::ones((vocabulary, width), DType::F64, &Device::Cpu).unwrap();
            let output =
                emulated(|| loss_head::forward_with_weight_gradient(&hidden, &weight, &targets, &settings, &into))
                    .unwrap();
            let expected =
                loss_head::reference::forward(&hidden64, &weight64, &targets, &settings, Some(&into64)).unwrap();
            assert!(
                (output.sums.read().unwrap().0 - expected.sums.read().unwrap().0).abs()
                    < 1e-5 * expected.sums.read().unwrap().0
            );
            assert_eq!(
                (output.sums.read().unwrap().1, output.target_tokens),
                (expected.sums.read().unwrap().1, expected.target_tokens)
            );
            let (got, expected) = (output.d_hidden.unwrap(), expected.d_hidden.unwrap());
            assert!(
                error(&got, &expected) < 2.0 * tolerance(dtype),
                "{dtype:?} {:.2e}",
                error(&got, &expected)
            );
            assert!(error(&into, &into64) < 2.0 * tolerance(dtype));
            let evaluation = loss_head::Settings {
                gradient_scale: None,
                ..settings
            };
            let output = emulated(|| loss_head::forward(&hidden, &weight, &targets, &evaluation)).unwrap();
            assert!(output.d_hidden.is_none() && output.sums.read().unwrap().0 > 0.0);
        }
    }
}
