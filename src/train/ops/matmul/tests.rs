//! Every engine against F64, on sizes that fill no block.

use super::super::oracle::{assert_close, random, rounded};
use super::*;
use candle_core::{DType, Device, Tensor};

/// (tokens, inner, outer): skinny ones, ones that are no multiple of any block, and one with two passes and many tasks.
const SIZES: [(usize, usize, usize); 9] = [
    (1, 1, 1),
    (3, 5, 7),
    (13, 24, 9),
    (17, 48, 16),
    (37, 130, 49),
    (64, 4, 100),
    (129, 96, 4),
    (100, 33, 200),
    (9, 4300, 50),
];

#[test]
fn products_match_f64_in_every_dtype() {
    for (tokens, inner, outer) in SIZES {
        let (x, w, a) = (
            random(&[tokens, inner], 1),
            random(&[outer, inner], 2),
            random(&[tokens, outer], 3),
        );
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let ((x, x64), (w, w64), (a, a64)) = (rounded(&x, dtype), rounded(&w, dtype), rounded(&a, dtype));
            assert_close(&nt(&x, &w).unwrap(), &x64.matmul(&w64.t().unwrap()).unwrap(), "nt");
            assert_close(&nn(&a, &w).unwrap(), &a64.matmul(&w64).unwrap(), "nn");
            let into = Tensor::ones((outer, inner), DType::F32, &Device::Cpu).unwrap();
            tn_add(&a, &x, 0.5, &into).unwrap();
            let expected = ((a64.t().unwrap().matmul(&x64).unwrap() * 0.5).unwrap() + 1.0).unwrap();
            assert_close(&into, &expected, "tn_add");
        }
    }
}

#[test]
fn a_weight_of_another_dtype_is_converted_on_the_way() {
    let (x, w) = (random(&[20, 34], 1), random(&[50, 34], 2));
    for (compute, storage) in [
        (DType::F32, DType::BF16),
        (DType::BF16, DType::F32),
        (DType::F32, DType::F16),
    ] {
        let ((x, x64), (w, _)) = (rounded(&x, compute), rounded(&w, storage));
        let w64 = w.to_dtype(compute).unwrap().to_dtype(DType::F64).unwrap();
        assert_close(&nt(&x, &w).unwrap(), &x64.matmul(&w64.t().unwrap()).unwrap(), "nt");
    }
}

#[test]
fn a_layer_with_its_adapter_is_one_sum() {
    let (x, w) = (random(&[21, 40], 1), random(&[50, 40], 2));
    let (u, b, a) = (random(&[21, 6], 3), random(&[50, 6], 4), random(&[6, 40], 5));
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let ((x, x64), (w, w64), (u, u64)) = (rounded(&x, dtype), rounded(&w, dtype), rounded(&u, dtype));
        let ((b, b64), (a, a64), (dy, dy64)) = (
            rounded(&b, dtype),
            rounded(&a, dtype),
            rounded(&random(&[21, 50], 6), dtype),
        );
        let y = nt_sum(&[Term::new(&x, &w, 1.0), Term::new(&u, &b, 2.0)]).unwrap();
        let adapter = (u64.matmul(&b64.t().unwrap()).unwrap() * 2.0).unwrap();
        assert_close(
            &y,
            &(x64.matmul(&w64.t().unwrap()).unwrap() + adapter).unwrap(),
            "nt_sum",
        );
        let dx = nn_sum(&[Term::new(&dy, &w, 1.0), Term::new(&u, &a, 0.5)]).unwrap();
        let adapter = (u64.matmul(&a64).unwrap() * 0.5).unwrap();
        assert_close(&dx, &(dy64.matmul(&w64).unwrap() + adapter).unwrap(), "nn_sum");
    }
}

#[test]
fn sums_onto_a_matrix_and_beside_each_other_match_f64() {
    for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
        let inputs = [[19, 50], [70, 50], [19, 70], [50, 16], [50, 9]];
        let inputs = [1, 2, 3, 4, 5].map(|seed| rounded(&random(&inputs[seed as usize - 1], seed), dtype));
        let [(x, x64), (w, w64), (y, y64), (a, a64), (b, b64)] = inputs;
        let onto = nt_onto(&y, &[Term::new(&x, &w, 0.5)]).unwrap();
        let product = (x64.matmul(&w64.t().unwrap()).unwrap() * 0.5).unwrap();
        assert_close(&onto, &(y64 + product).unwrap(), "nt_onto");
        let sums = [
            vec![Term::new(&x, &a, 2.0)],
            vec![Term::new(&x, &b, 1.0), Term::new(&x, &b, 1.0)],
        ];
        let beside = nn_beside(&sums).unwrap();
        let parts = [x64.matmul(&a64).unwrap(), x64.matmul(&b64).unwrap()];
        assert_close(&beside, &(Tensor::cat(&parts, 1).unwrap() * 2.0).unwrap(), "nn_beside");
        // Columns of a wider tensor, read where they lie.
        let columns = beside.narrow(1, 16, 9).unwrap();
        let product = nt(&columns, &b).unwrap();
        assert_close(
            &product,
            &nt(&columns.contiguous().unwrap(), &b)
                .unwrap()
                .to_dtype(DType::F64)
                .unwrap(),
            "view",
        );
        let into = Tensor::zeros((9, 50), DType::F32, &Device::Cpu).unwrap();
        tn_add(&columns, &x, 1.0, &into).unwrap();
        let expected = columns
            .to_dtype(DType::F64)
            .unwrap()
            .t()
            .unwrap()
            .contiguous()
            .unwrap()
            .matmul(&x64)
            .unwrap();
        assert_close(&into, &expected, "tn_add of a view");
    }
}

#[test]
fn engines_agree() {
    use super::operand::{Left, Order, Result, Right, Side, Source, Term};
    let (rows, columns, depth) = (30, 300, 70);
    let left: Vec<f32> = (0..rows * depth).map(|i| (i % 17) as f32).collect();
    let right: Vec<half::bf16> = (0..columns * depth)
        .map(|i| half::bf16::from_f32((i % 13) as f32))
        .collect();
    let source = |order| {
        Right::Bf16(Source {
            values: &right,
            order,
            columns,
            depth,
            stride: match order {
                Order::Transposed => depth,
                Order::Straight => columns,
            },
            scale: 0.5,
        })
    };
    for order in [Order::Straight, Order::Transposed] {
        for (side, stride) in [(Side::Straight, depth), (Side::Transposed, rows)] {
            let operand = Left {
                values: &left[..],
                side,
                stride,
            };
            let (mut plain, mut narrow) = (vec![0f32; rows * columns], vec![half::f16::ZERO; rows * columns]);
            let terms = [Term {
                left: operand,
                right: source(order),
            }];
            // SAFETY: the results have rows times columns elements.
            unsafe {
                widened::multiply(&terms, rows, columns, Result::store(plain.as_mut_ptr(), columns));
                widened::multiply(&terms, rows, columns, Result::store(narrow.as_mut_ptr(), columns));
            }
            // Small integers and halves: every sum is exact in F32.
            assert!(
                plain
                    .iter()
                    .zip(&narrow)
                    .all(|(wide, narrow)| half::f16::from_f32(*wide) == *narrow)
            );
            #[cfg(target_arch = "x86_64")]
            if crate::train::ops::simd::level() == crate::train::ops::simd::Level::Avx512 {
                let mut blocked = vec![0f32; rows * columns];
                // SAFETY: the level was checked; the result has rows times columns elements.
                unsafe { blocked::multiply(&terms, rows, columns, Result::store(blocked.as_mut_ptr(), columns)) };
                assert_eq!(blocked, plain);
            }
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let error = nt(&random(&[2, 3], 1), &random(&[4, 5], 2)).unwrap_err();
    assert!(error.to_string().contains("matmul nt: w"), "{error}");
    let into = Tensor::zeros((3, 3), DType::F32, &Device::Cpu).unwrap();
    assert!(tn_add(&random(&[2, 3], 1), &random(&[2, 4], 2), 1.0, &into).is_err());
}
