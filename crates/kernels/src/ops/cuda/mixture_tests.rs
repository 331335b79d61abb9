//! The kernels of mixtures of experts, run on the emulator, against the F64 form of their ops or against the CPU's.

use candle_core::{DType, Device, Tensor};

use super::codes::Codes;
use super::tests::DTYPES;
use crate::gpu::{emulated, forget_scratch, has_compiler};
use crate::ops::matmul::grouped::{self, GroupFactors, GroupTerm};
use crate::ops::matmul::{Factor, QuantizedMatrix};
use crate::ops::offsets::Offsets;
use crate::ops::oracle::{assert_close, random, rounded};
use crate::ops::routing::{self, Routing, Scores, Settings};
use crate::ops::{clamped_glu, expert_parts, rows, sinks};
use crate::quant::{Int8, Nf4};

/// Groups with several tiles, with few rows, with none, and with a whole tile.
const SIZES: [&[usize]; 3] = [&[3, 0, 140, 1], &[128, 9], &[0, 0, 17, 33, 0]];

fn offsets(sizes: &[usize]) -> Offsets {
    let mut offsets = vec![0];
    for size in sizes {
        offsets.push(offsets[offsets.len() - 1] + size);
    }
    offsets.into()
}

fn codes<'a>(all: &[&'a dyn QuantizedMatrix]) -> GroupFactors<'a> {
    GroupFactors::Each(all.iter().map(|w| Factor::QuantizedMatrix(*w)).collect())
}

fn each(stacked: &Tensor) -> Vec<Tensor> {
    (0..stacked.dims()[0])
        .map(|group| stacked.get(group).unwrap())
        .collect()
}

fn stacked<'a>(x: &'a Tensor, w: &'a Tensor, scale: f64) -> GroupTerm<'a> {
    let w = GroupFactors::Stacked(w);
    GroupTerm { x, w, scale }
}

#[test]
fn grouped_sums_match_f64() {
    if !has_compiler() {
        return;
    }
    for dtype in DTYPES {
        // Aligned and odd rows, one tile of columns and several.
        for (sizes, depth, width, rank) in [(SIZES[0], 72, 136, 8), (SIZES[1], 37, 21, 3), (SIZES[2], 8, 40, 16)] {
            let (offsets, groups) = (offsets(sizes), sizes.len());
            let total = offsets.rows();
            let (x, x64) = rounded(&random(&[total, depth], 1), dtype);
            let (wide, wide64) = rounded(&random(&[total, rank + 8], 2), dtype);
            let (w, w64) = rounded(&random(&[groups, width, depth], 3), dtype);
            let (b, b64) = rounded(&random(&[groups, width, rank], 4), dtype);
            let separate = each(&w);
            // Columns of a wider tensor.
            let (u, u64) = (wide.narrow(1, 8, rank).unwrap(), wide64.narrow(1, 8, rank).unwrap());
            let base = GroupTerm {
                x: &x,
                w: GroupFactors::Each(separate.iter().map(Factor::from).collect()),
                scale: 1.0,
            };
            let terms = [base, stacked(&u, &b, 0.5), stacked(&u, &b, 0.0)];
            let expected = [stacked(&x64, &w64, 1.0), stacked(&u64, &b64, 0.5)];
            let expected = grouped::nt(&expected, &offsets).unwrap();
            assert_close(&emulated(|| grouped::nt(&terms, &offsets)).unwrap(), &expected, "nt");
            let (y, y64) = rounded(&random(&[total, width], 5), dtype);
            let (a, a64) = rounded(&random(&[groups, rank, depth], 6), dtype);
            let terms = [stacked(&y, &w, 2.0), stacked(&u, &a, 1.0), stacked(&y, &w, 1.0)];
            let expected = [stacked(&y64, &w64, 3.0), stacked(&u64, &a64, 1.0)];
            let expected = grouped::nn(&expected, &offsets).unwrap();
            assert_close(&emulated(|| grouped::nn(&terms, &offsets)).unwrap(), &expected, "nn");
            forget_scratch();
        }
    }
}

#[test]
fn grouped_sums_of_quantized_matrices_match_f64() {
    if !has_compiler() {
        return;
    }
    let (sizes, depth, width) = (SIZES[0], 64, 48);
    let (offsets, groups) = (offsets(sizes), sizes.len());
    let matrices: Vec<Tensor> = (0..groups).map(|seed| random(&[width, depth], seed as u64)).collect();
    let f32s: Vec<Tensor> = matrices.iter().map(|w| w.to_dtype(DType::F32).unwrap()).collect();
    let nf4: Vec<Codes<Nf4>> = f32s
        .iter()
        .map(|w| Codes::new(Nf4::quantize(w, true).unwrap()))
        .collect();
    let int8: Vec<Codes<Int8>> = f32s.iter().map(|w| Codes::new(Int8::quantize(w).unwrap())).collect();
    let of_nf4: Vec<&dyn QuantizedMatrix> = nf4.iter().map(|w| w as &dyn QuantizedMatrix).collect();
    let of_int8: Vec<&dyn QuantizedMatrix> = int8.iter().map(|w| w as &dyn QuantizedMatrix).collect();
    for dtype in DTYPES {
        let widened = |dense: Vec<Tensor>| {
            let dense: Vec<Tensor> = dense.iter().map(|w| w.to_dtype(DType::F64).unwrap()).collect();
            Tensor::stack(&dense, 0).unwrap()
        };
        let of_nf4_64 = widened(nf4.iter().map(|w| w.dense(dtype).unwrap()).collect());
        let of_int8_64 = widened(int8.iter().map(|w| w.dense(dtype).unwrap()).collect());
        let (x, x64) = rounded(&random(&[offsets.rows(), depth], 1), dtype);
        let (y, y64) = rounded(&random(&[offsets.rows(), width], 2), dtype);
        let terms = [GroupTerm {
            x: &x,
            w: codes(&of_nf4),
            scale: 1.0,
        }];
        let expected = grouped::nt(&[stacked(&x64, &of_nf4_64, 1.0)], &offsets).unwrap();
        assert_close(&emulated(|| grouped::nt(&terms, &offsets)).unwrap(), &expected, "nt");
        // Two terms whose matrices are widened beside each other.
        let terms = [
            GroupTerm {
                x: &y,
                w: codes(&of_int8),
                scale: 1.0,
            },
            GroupTerm {
                x: &y,
                w: codes(&of_nf4),
                scale: 1.0,
            },
        ];
        let expected = [stacked(&y64, &of_int8_64, 1.0), stacked(&y64, &of_nf4_64, 1.0)];
        let expected = grouped::nn(&expected, &offsets).unwrap();
        assert_close(&emulated(|| grouped::nn(&terms, &offsets)).unwrap(), &expected, "nn");
        forget_scratch();
    }
}

#[test]
fn grouped_gradients_match_f64() {
    if !has_compiler() {
        return;
    }
    for dtype in DTYPES {
        for (sizes, rows_of, columns) in [(SIZES[0], 8, 136), (SIZES[1], 140, 5), (SIZES[2], 40, 24)] {
            let (offsets, groups) = (offsets(sizes), sizes.len());
            let (a, a64) = rounded(&random(&[offsets.rows(), rows_of], 1), dtype);
            let (b, b64) = rounded(&random(&[offsets.rows(), columns], 2), dtype);
            let into = Tensor::ones((groups * rows_of, columns), DType::F32, &Device::Cpu).unwrap();
            emulated(|| grouped::tn_add(&a, &b, &offsets, 0.5, &into)).unwrap();
            let offsets = offsets.host().unwrap();
            for (group, part) in offsets.windows(2).enumerate() {
                let got = into.narrow(0, group * rows_of, rows_of).unwrap();
                let mut expected = Tensor::ones((rows_of, columns), DType::F64, &Device::Cpu).unwrap();
                if part[1] > part[0] {
                    let of = |tensor: &Tensor| tensor.narrow(0, part[0], part[1] - part[0]).unwrap();
                    let product = of(&a64).t().unwrap().contiguous().unwrap().matmul(&of(&b64)).unwrap();
                    expected = (expected + (product * 0.5).unwrap()).unwrap();
                }
                assert_close(&got, &expected, "gradient");
            }
        }
    }
}

fn settings() -> [Settings; 5] {
    let plain = Settings {
        scores: Scores::Softmax,
        chosen: 2,
        normalised: true,
        scale: 1.5,
        groups: None,
    };
    let sigmoid = Settings {
        scores: Scores::Sigmoid,
        ..plain
    };
    [
        plain,
        Settings {
            normalised: false,
            chosen: 5,
            ..plain
        },
        sigmoid,
        Settings {
            groups: Some((4, 2)),
            chosen: 3,
            ..sigmoid
        },
        Settings {
            groups: Some((8, 3)),
            ..plain
        },
    ]
}

/// Parts of a routing that are exact.
fn places(routing: &Routing) -> (Vec<u32>, Vec<Vec<u32>>, Vec<usize>) {
    (
        routing.tokens.to_vec1().unwrap(),
        routing.rows.to_vec2().unwrap(),
        routing.offsets.host().unwrap().to_vec(),
    )
}

#[test]
fn routing_is_that_of_the_cpu() {
    if !has_compiler() {
        return;
    }
    // More choices than a block sorts; and more experts than a warp has lanes.
    for (tokens, experts) in [(300, 16), (7, 72)] {
        let logits = (random(&[tokens, experts], 1) * 3.0)
            .unwrap()
            .to_dtype(DType::F32)
            .unwrap();
        let correction = random(&[experts], 2).to_dtype(DType::F32).unwrap();
        for settings in settings() {
            for correction in [None, Some(&correction)] {
                let expected = routing::forward(&logits, correction, &settings).unwrap();
                let got = emulated(|| routing::forward(&logits, correction, &settings)).unwrap();
                assert_eq!(places(&got), places(&expected), "{settings:?}");
                let wide = |tensor: &Tensor| tensor.to_dtype(DType::F64).unwrap();
                assert_close(&got.scores, &wide(&expected.scores), "scores");
                assert_close(&got.weights, &wide(&expected.weights), "weights");
                let map = |offsets: &Offsets| offsets.on_device(&Device::Cpu).unwrap().map.to_vec2::<u32>().unwrap();
                let (got_map, expected_map) = (map(&got.offsets), map(&expected.offsets));
                assert_eq!(got_map[..expected_map.len()], expected_map);
                assert!(got_map[expected_map.len()..].iter().all(|tile| tile[0] == u32::MAX));
                let d_weights = random(&[tokens * settings.chosen], 3).to_dtype(DType::F32).unwrap();
                let expected = routing::backward(&expected, &d_weights, &settings).unwrap();
                let got = emulated(|| routing::backward(&got, &d_weights, &settings)).unwrap();
                assert_close(&got, &wide(&expected), "d_logits");
            }
        }
    }
}

#[test]
fn logits_that_are_no_numbers_choose_as_many_experts() {
    if !has_compiler() {
        return;
    }
    let nan = Tensor::full(f32::NAN, (3, 16), &Device::Cpu).unwrap();
    for settings in settings() {
        let expected = routing::forward(&nan, None, &settings).unwrap();
        let got = emulated(|| routing::forward(&nan, None, &settings)).unwrap();
        assert_eq!(places(&got), places(&expected), "{settings:?}");
        let weights: Vec<f32> = got.weights.to_vec1().unwrap();
        assert!(weights.iter().all(|weight| weight.is_nan()));
    }
}

#[test]
fn rows_of_experts_match_f64() {
    if !has_compiler() {
        return;
    }
    for dtype in DTYPES {
        for width in [64, 37] {
            let (x, x64) = rounded(&random(&[30, width], 1), dtype);
            let (y, y64) = rounded(&random(&[60, width], 2), dtype);
            let index: Vec<u32> = (0..60).map(|row| row * 7 % 30).collect();
            let index = Tensor::new(index, &Device::Cpu).unwrap();
            let of_tokens: Vec<u32> = (0..60).map(|row| row * 11 % 60).collect();
            let of_tokens = Tensor::from_vec(of_tokens, (30, 2), &Device::Cpu).unwrap();
            let gathered = emulated(|| rows::gather(&x, &index)).unwrap();
            assert_close(&gathered, &rows::gather(&x64, &index).unwrap(), "gather");
            for onto in [None, Some((&x, &x64))] {
                let sum = emulated(|| rows::sum(onto.map(|both| both.0), &y, &of_tokens)).unwrap();
                let expected = rows::sum(onto.map(|both| both.1), &y64, &of_tokens).unwrap();
                assert_close(&sum, &expected, "sum");
            }
            assert_close(
                &emulated(|| rows::dot(&gathered, &y)).unwrap(),
                &rows::dot(&gathered.to_dtype(DType::F64).unwrap(), &y64).unwrap(),
                "dot",
            );
            let (weights, weights64) = rounded(&random(&[60], 3), DType::F32);
            let scaled = y.copy().unwrap();
            emulated(|| rows::scale(&scaled, &weights)).unwrap();
            let of_weights = weights64.unsqueeze(1).unwrap();
            assert_close(&scaled, &y64.broadcast_mul(&of_weights).unwrap(), "scale");
            let offsets = offsets(&[20, 0, 39, 1]);
            for bias_dtype in [dtype, DType::F32] {
                let (biases, biases64) = rounded(&random(&[4, width], 4), bias_dtype);
                let dots = emulated(|| expert_parts::dot_of_experts(&y, &biases, &offsets)).unwrap();
                let expected = expert_parts::dot_of_experts(&y64, &biases64, &offsets).unwrap();
                assert_close(&dots, &expected, "dot of biases");
                for weights in [None, Some((&weights, &weights64))] {
                    let (sum, sum64) = (y.copy().unwrap(), y64.copy().unwrap());
                    let of = weights.map(|both| both.0);
                    emulated(|| expert_parts::add_of_experts(&sum, &biases, &offsets, of)).unwrap();
                    expert_parts::add_of_experts(&sum64, &biases64, &offsets, of).unwrap();
                    assert_close(&sum, &sum64, "biases");
                }
            }
        }
    }
}

#[test]
fn factors_are_split_and_joined_exactly() {
    if !has_compiler() {
        return;
    }
    for (outputs, rank, experts) in [(45, 3, 4), (20, 16, 8)] {
        let b = random(&[outputs, rank * experts], 1);
        for dtype in DTYPES {
            let b = b.to_dtype(dtype).unwrap();
            let got = emulated(|| expert_parts::split_experts(&b, experts)).unwrap();
            let expected = expert_parts::split_experts(&b, experts).unwrap();
            let values = |tensor: Tensor| {
                tensor
                    .flatten_all()
                    .unwrap()
                    .to_dtype(DType::F32)
                    .unwrap()
                    .to_vec1::<f32>()
                    .unwrap()
            };
            assert_eq!(values(got), values(expected));
        }
        let b = b.to_dtype(DType::F32).unwrap();
        let (split, into) = (expert_parts::split_experts(&b, experts).unwrap(), b.copy().unwrap());
        emulated(|| expert_parts::join_experts_add(&split, &into)).unwrap();
        assert_close(&into, &(b.to_dtype(DType::F64).unwrap() * 2.0).unwrap(), "joined");
    }
}

#[test]
fn sinks_and_clamped_units_match_f64() {
    if !has_compiler() {
        return;
    }
    for dtype in DTYPES {
        for width in [64, 20, 7] {
            let ((o, o64), (lse, lse64)) = (
                rounded(&random(&[9, 3, width], 1), dtype),
                rounded(&(random(&[9, 3], 2) * 4.0).unwrap(), DType::F32),
            );
            let (sinks, sinks64) = rounded(&random(&[3], 3), dtype);
            emulated(|| sinks::apply(&o, &lse, &sinks)).unwrap();
            sinks::apply(&o64, &lse64, &sinks64).unwrap();
            assert_close(&o, &o64, "o");
            assert_close(&lse, &lse64, "lse");
            let input = |seed| rounded(&(random(&[30, width], seed) * 3.0).unwrap(), dtype);
            let ((gate, gate64), (up, up64), (dy, dy64)) = (input(4), input(5), input(6));
            let y = emulated(|| clamped_glu::forward(&gate, &up, 1.5)).unwrap();
            assert_close(&y, &clamped_glu::reference::forward(&gate64, &up64, 1.5).unwrap(), "y");
            let (d_gate, d_up) = emulated(|| clamped_glu::backward(&gate, &up, &dy, 1.5)).unwrap();
            let expected = clamped_glu::reference::backward(&gate64, &up64, &dy64, 1.5).unwrap();
            assert_close(&d_gate, &expected.0, "d_gate");
            assert_close(&d_up, &expected.1, "d_up");
        }
    }
}
