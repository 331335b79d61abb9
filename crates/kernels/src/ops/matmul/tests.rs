//! Every engine against F64, on sizes that fill no block.

use super::super::oracle::{assert_close, random, rounded};
use super::*;
use candle_core::{DType, Device, Tensor};

/// (tokens, inner, outer): skinny ones, ones that are no multiple of any block, and one with two passes and many tasks.
const SIZES: [(usize, usize, usize); 11] = [
    (1, 1, 1),
    (3, 5, 7),
    (13, 24, 9),
    (17, 48, 16),
    (37, 130, 49),
    (64, 4, 100),
    (129, 96, 4),
    (100, 33, 200),
    (9, 4300, 50),
    (97, 130, 101),
    (70, 4300, 83),
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

/// The output and the input gradient of a layer with its adapter, against F64.
fn assert_layer_matches_f64([tokens, inner, outer, rank]: [usize; 4], dtype: DType) {
    let tensor = |shape: [usize; 2], seed| rounded(&random(&shape, seed), dtype);
    let ((x, x64), (w, w64)) = (tensor([tokens, inner], 1), tensor([outer, inner], 2));
    let ((u, u64), (b, b64)) = (tensor([tokens, rank], 3), tensor([outer, rank], 4));
    let ((a, a64), (dy, dy64)) = (tensor([rank, inner], 5), tensor([tokens, outer], 6));
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

#[test]
fn a_layer_with_its_adapter_is_one_sum() {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        assert_layer_matches_f64([21, 40, 50, 6], dtype);
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
    // One KC block, and several with widths and heights that fill no tile.
    for (rows, columns, depth) in [(30, 300, 70), (23, 53, 1700)] {
        engines_agree_on(rows, columns, depth);
    }
}

fn engines_agree_on(rows: usize, columns: usize, depth: usize) {
    use super::operand::{Left, Result, Right, Side, Source, Term};
    use super::order::Order;
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
            {
                use crate::ops::simd::{Level, level};
                if level() >= Level::Avx2 {
                    // SAFETY: the level was checked.
                    unsafe { assert_blocked::<avx2::Avx2, _>(&terms, (rows, columns), &plain) };
                    // Left operands that become units on the way.
                    let left: Vec<half::f16> = left.iter().map(|value| half::f16::from_f32(*value)).collect();
                    let values = &left[..];
                    let terms = [Term {
                        left: Left { values, side, stride },
                        right: source(order),
                    }];
                    // SAFETY: as above.
                    unsafe { assert_blocked::<avx2::Avx2, _>(&terms, (rows, columns), &plain) };
                }
                if level() == Level::Avx512 {
                    // SAFETY: the level was checked.
                    unsafe { assert_blocked::<avx512::Avx512, _>(&terms, (rows, columns), &plain) };
                }
            }
            #[cfg(target_arch = "x86_64")]
            if amx::is_available() {
                let mut tiles = vec![0f32; rows * columns];
                // SAFETY: the unit is there; the result has rows times columns elements.
                unsafe { amx::multiply(&terms, rows, columns, Result::store(tiles.as_mut_ptr(), columns)) };
                // Digits share a factor in each row and column, which is not exact.
                let largest = plain.iter().fold(0f32, |most, value| most.max(value.abs()));
                assert!(
                    tiles
                        .iter()
                        .zip(&plain)
                        .all(|(tile, value)| (tile - value).abs() <= 1e-6 * largest)
                );
            }
        }
    }
}

/// Results that are stored, added to others and added onto themselves, in F32 and rounded.
///
/// # Safety
/// The processor has the instructions.
#[cfg(target_arch = "x86_64")]
unsafe fn assert_blocked<I: instructions::Instructions, T: unit_operand::Operand>(
    terms: &[operand::Term<'_, T>],
    (rows, columns): (usize, usize),
    expected: &[f32],
) {
    use super::operand::{Old, Result};
    let (mut stored, mut added) = (vec![0f32; rows * columns], vec![2f32; rows * columns]);
    let (others, mut onto) = (
        vec![half::bf16::ONE; rows * columns],
        vec![half::bf16::ZERO; rows * columns],
    );
    // SAFETY: the caller's promise; the results have rows times columns elements.
    unsafe {
        blocked::multiply::<I, T, _>(terms, rows, columns, Result::store(stored.as_mut_ptr(), columns));
        let into = Result {
            start: added.as_mut_ptr(),
            stride: columns,
            old: Old::Itself(0.5),
        };
        blocked::multiply::<I, T, _>(terms, rows, columns, into);
        let into = Result {
            start: onto.as_mut_ptr(),
            stride: columns,
            old: Old::Other(others.as_ptr()),
        };
        blocked::multiply::<I, T, _>(terms, rows, columns, into);
    }
    assert_eq!(stored, expected);
    for ((value, added), onto) in expected.iter().zip(added).zip(onto) {
        assert_eq!(added, 2.0 + 0.5 * value);
        assert_eq!(onto, half::bf16::from_f32(1.0 + value));
    }
}

/// Narrow products of tokens on each set of instructions, upright and turned, in one task and in several.
#[cfg(target_arch = "x86_64")]
#[test]
fn thin_products_match_plain_loops() {
    use crate::ops::simd::{Level, level};
    // Small integers: every sum is exact in F32.
    let value = |i: usize| (i * 37 % 23) as f32 - 11.0;
    for (tokens, few, many) in [(5, 1, 7), (130, 16, 100), (300, 9, 48)] {
        let u: Vec<f32> = (0..tokens * few).map(value).collect();
        let x: Vec<f32> = (0..tokens * many).map(|i| value(i + 3)).collect();
        let sum = |row: usize, column: usize| -> f32 {
            (0..tokens)
                .map(|token| u[token * few + row] * x[token * many + column])
                .sum()
        };
        for is_transposed in [false, true] {
            let (rows, columns) = if is_transposed { (many, few) } else { (few, many) };
            let run = |is_avx512: bool| {
                let mut result = vec![1f32; rows * columns];
                let matrix = |values, columns| thin::Tokens {
                    values,
                    columns,
                    stride: columns,
                };
                let (u, x) = (matrix(&u[..], few), matrix(&x[..], many));
                let target = thin::Target {
                    start: result.as_mut_ptr(),
                    is_transposed,
                    stride: columns,
                    alpha: 0.5,
                };
                // SAFETY: the caller checks the level; the result has rows times columns elements.
                unsafe {
                    match is_avx512 {
                        true => thin::add::<avx512::Avx512, _, _>(u, x, tokens, target),
                        false => thin::add::<avx2::Avx2, _, _>(u, x, tokens, target),
                    }
                }
                result
            };
            let at = |index: usize| match is_transposed {
                true => sum(index % columns, index / columns),
                false => sum(index / columns, index % columns),
            };
            let expected: Vec<f32> = (0..rows * columns).map(|index| 1.0 + 0.5 * at(index)).collect();
            if level() >= Level::Avx2 {
                assert_eq!(run(false), expected);
            }
            if level() == Level::Avx512 {
                assert_eq!(run(true), expected);
            }
        }
    }
}

/// Rows that the tiles read where they lie and rows that are laid out first, in one pass and in several.
#[cfg(target_arch = "x86_64")]
#[test]
fn tiles_read_in_place_what_they_would_lay_out() {
    use super::operand::{Left, Result, Right, Side, Source, Term};
    use super::order::Order;
    use half::bf16;
    if !amx::is_available() {
        return;
    }
    for depth in [64, 1600] {
        let (rows, columns) = (64, 50);
        let value = |i: usize| bf16::from_f32((i * 7919 % 251) as f32 / 251.0 - 0.5);
        // A whole cache line more, to begin at one or beside it.
        let memory: Vec<bf16> = (0..rows * depth + 33).map(value).collect();
        let line = memory.as_ptr().align_offset(64);
        let weight: Vec<bf16> = (0..columns * depth).map(|i| value(i + 5)).collect();
        let product = |start: usize| {
            let right = Right::Bf16(Source {
                values: &weight,
                order: Order::Transposed,
                columns,
                depth,
                stride: depth,
                scale: 1.0,
            });
            let shifted: Vec<bf16> = memory[line..].to_vec();
            let mut values = vec![bf16::ZERO; rows * depth + 64];
            let place = values.as_ptr().align_offset(64) + start;
            values[place..place + rows * depth].copy_from_slice(&shifted[..rows * depth]);
            let left = Left {
                values: &values[place..],
                side: Side::Straight,
                stride: depth,
            };
            let mut result = vec![0f32; rows * columns];
            // SAFETY: the unit is there; the result has rows times columns elements.
            unsafe {
                amx::multiply(
                    &[Term { left, right }],
                    rows,
                    columns,
                    Result::store(result.as_mut_ptr(), columns),
                );
            }
            result
        };
        assert_eq!(product(0), product(1), "depth {depth}");
    }
}

/// F32 values in digits: no further from F64 than multiply-adds in F32 are, and not twice as far where single values of a
/// row are a thousand times the others.
#[cfg(target_arch = "x86_64")]
#[test]
fn tiles_of_f32_are_as_exact_as_f32() {
    use super::super::oracle::error;
    use super::operand::{Left, Result, Right, Side, Source, Term};
    use super::order::Order;
    if !amx::is_available() {
        return;
    }
    let (rows, columns) = (70, 90);
    let values = |tensor: &Tensor| -> Vec<f32> { tensor.flatten_all().unwrap().to_vec1().unwrap() };
    for (order, storage, depth, outliers) in [
        (Order::Straight, DType::F32, 1700, false),
        (Order::Transposed, DType::F32, 1700, false),
        (Order::Straight, DType::BF16, 576, false),
        (Order::Transposed, DType::F32, 1700, true),
        (Order::Straight, DType::F32, 576, true),
    ] {
        let (mut x, _) = rounded(&random(&[rows, depth], 1), DType::F32);
        if outliers {
            let gain = (0..depth).map(|i| if i % 300 == 7 { 1000f32 } else { 1.0 });
            let gain = Tensor::from_iter(gain, &Device::Cpu).unwrap();
            x = x.broadcast_mul(&gain).unwrap();
        }
        let x64 = x.to_dtype(DType::F64).unwrap();
        let (w, w64) = rounded(&random(&[columns, depth], 2), storage);
        let (w, stride) = match order {
            Order::Transposed => (w, depth),
            Order::Straight => (w.t().unwrap().contiguous().unwrap(), columns),
        };
        let (x, w) = (values(&x), values(&w.to_dtype(DType::F32).unwrap()));
        let terms = [Term {
            left: Left {
                values: &x[..],
                side: Side::Straight,
                stride: depth,
            },
            right: Right::F32(Source {
                values: &w,
                order,
                columns,
                depth,
                stride,
                scale: 1.0,
            }),
        }];
        let (mut tiles, mut plain) = (vec![0f32; rows * columns], vec![0f32; rows * columns]);
        // SAFETY: the unit and with it AVX-512 are there; the results have rows times columns elements.
        unsafe {
            amx::multiply(&terms, rows, columns, Result::store(tiles.as_mut_ptr(), columns));
            blocked::multiply::<avx512::Avx512, _, _>(
                &terms,
                rows,
                columns,
                Result::store(plain.as_mut_ptr(), columns),
            );
        }
        let expected = x64.matmul(&w64.t().unwrap()).unwrap();
        let tensor = |values| Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap();
        let (tiles, plain) = (error(&tensor(tiles), &expected), error(&tensor(plain), &expected));
        assert!(
            tiles <= plain * if outliers { 2.0 } else { 1.0 },
            "{order:?} {storage:?} {depth}: {tiles:.2e} with tiles, {plain:.2e} with multiply-adds"
        );
    }
}

/// Gradients of adapters: few columns on either side, in wider tensors, more tokens than a task has.
#[test]
fn thin_products_match_f64() {
    for (tokens, few, many) in [
        (128, 8, 33),
        (300, 16, 100),
        (1100, 21, 50),
        (129, 32, 49),
        (200, 1, 64),
    ] {
        let (u, u64) = rounded(&random(&[tokens, few + 3], 1), DType::F32);
        let (x, x64) = rounded(&random(&[tokens, many], 2), DType::F32);
        let (u, u64) = (u.narrow(1, 2, few).unwrap(), u64.narrow(1, 2, few).unwrap());
        let turned = |tensor: &Tensor| tensor.t().unwrap().contiguous().unwrap();
        let product = (turned(&u64).matmul(&x64).unwrap() * 0.5).unwrap();
        for (a, b, product) in [(&u, &x, product.clone()), (&x, &u, turned(&product))] {
            let into = Tensor::ones(product.dims(), DType::F32, &Device::Cpu).unwrap();
            tn_add(a, b, 0.5, &into).unwrap();
            assert_close(&into, &(product + 1.0).unwrap(), "thin");
        }
    }
}

/// A layer whose adapter's term is short, in one pass and in two, with MR micro-panels and NR micro-panels that are not full.
#[test]
fn a_large_layer_with_its_adapter_is_one_sum() {
    for sizes in [
        [100, 200, 83, 16],
        [70, 1800, 65, 5],
        [64, 64, 64, 24],
        [96, 130, 90, 40],
    ] {
        assert_layer_matches_f64(sizes, DType::F32);
    }
}

/// A value that is not finite spoils the results of its row and no others.
#[test]
fn what_is_not_finite_stays_in_its_row() {
    let (rows, columns, depth) = (70, 66, 130);
    let (x, _) = rounded(&random(&[rows, depth], 1), DType::F32);
    let mut values: Vec<f32> = x.flatten_all().unwrap().to_vec1().unwrap();
    (values[depth + 5], values[3 * depth + 64]) = (f32::INFINITY, f32::NAN);
    let bad = Tensor::from_vec(values, (rows, depth), &Device::Cpu).unwrap();
    let (w, _) = rounded(&random(&[columns, depth], 2), DType::F32);
    let (good, bad): (Vec<Vec<f32>>, Vec<Vec<f32>>) = (
        nt(&x, &w).unwrap().to_vec2().unwrap(),
        nt(&bad, &w).unwrap().to_vec2().unwrap(),
    );
    for (row, (good, bad)) in good.iter().zip(&bad).enumerate() {
        match row {
            1 | 3 => assert!(bad.iter().all(|value| !value.is_finite())),
            _ => assert_eq!(good, bad),
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
