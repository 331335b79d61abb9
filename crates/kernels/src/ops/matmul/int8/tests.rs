//! Products of bytes against plain loops in F64, which round both operands themselves.

use super::super::operand::{Product, Result as Target, Right, Side, Values};
use super::super::order::Order;
use super::oracle::{Coded, Storage, exact, rounded};
use super::*;
use crate::ops::matmul::quantized_source::QuantizedSource;
use candle_core::{DType, Device, Tensor};
use peft_tune_core::recipe::ActivationQuantization;
use proptest::prelude::*;

/// The forms that this processor has.
fn forms() -> Vec<Form> {
    let mut forms = vec![Form::Plain];
    #[cfg(target_arch = "x86_64")]
    if blocked::is_available() {
        forms.push(Form::Vnni);
        if amx::is_available() {
            forms.push(Form::Amx);
        }
    }
    forms
}

/// One product in every form, F32 in and out.
fn every_form(x: &[f32], (rows, depth): (usize, usize), matrix: &Coded, order: Order, columns: usize) -> Vec<Vec<f32>> {
    let product = Product {
        left: Values::F32(x),
        side: Side::Straight,
        stride: depth,
        right: Right::QuantizedMatrix(QuantizedSource {
            values: matrix,
            order,
            columns,
            depth,
            scale: 1.0,
        }),
    };
    assert!(takes(&product));
    let in_form = |form: Form| {
        let mut memory = LeftMemory::default();
        let left = memory.fill(&[product], rows, form.layout());
        let Right::QuantizedMatrix(right) = product.right else {
            unreachable!("made above");
        };
        let terms = [ByteTerm { left: left[0], right }];
        let mut result = vec![f32::NAN; rows * columns];
        let target = Target::store(result.as_mut_ptr(), columns);
        let no_others = |_: &[Product<'_>], _: Target<f32>| unreachable!("there are none");
        // SAFETY: the processor was asked; the result has rows times columns elements.
        unsafe { sum(form, (&terms, &[]), (rows, columns), target, no_others) };
        result
    };
    forms().into_iter().map(in_form).collect()
}

fn values(count: usize, seed: u64, outliers: bool) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |index: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let value = (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        if outliers && index.is_multiple_of(97) {
            60.0 * value
        } else {
            value
        }
    };
    (0..count).map(next).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_form_matches_f64_and_stays_within_the_bound_of_the_scales(
        rows in 1usize..40, depth in 1usize..300, columns in 1usize..150,
        transposed: bool, outliers: bool, storage in 0usize..3, seed: u64,
    ) {
        let order = if transposed { Order::Transposed } else { Order::Straight };
        let shape = if transposed { (columns, depth) } else { (depth, columns) };
        let weight = Tensor::from_vec(values(columns * depth, seed ^ 7, false), shape, &Device::Cpu).unwrap();
        let storage = [Storage::Int8, Storage::Nf4, Storage::Nf4Double][storage];
        let matrix = Coded::new(&weight, storage, ActivationQuantization::Int8Both);
        let x = values(rows * depth, seed, outliers);
        // Rows of the summed dimension: (columns, depth), whatever the order.
        let w: Vec<f64> = matrix.values(order);
        let left = rounded(&x.iter().map(|value| f64::from(*value)).collect::<Vec<_>>(), depth, depth);
        let right = rounded(&w, depth, BLOCK);
        let results = every_form(&x, (rows, depth), &matrix, order, columns);
        // The tiles round alike; plain loops have no fused multiply-add.
        prop_assert!(results[1..].windows(2).all(|pair| pair[0] == pair[1]));
        for result in results {
            for row in 0..rows {
                for column in 0..columns {
                    let (x, w) = (&left[row * depth..][..depth], &right[column * depth..][..depth]);
                    let got = f64::from(result[row * columns + column]);
                    let expected: f64 = x.iter().zip(w).map(|(x, w)| x.value * w.value).sum();
                    let size: f64 = x.iter().zip(w).map(|(x, w)| (x.value * w.value).abs()).sum();
                    // A value between two codes may go to either.
                    let slack: f64 = x.iter().zip(w).map(|(x, w)| x.slack * w.value.abs() + w.slack * x.value.abs()).sum();
                    prop_assert!((got - expected).abs() <= 2e-6 * size + slack + 1e-12, "{row} {column}: {got} {expected}");
                    let exact = exact(&x.iter().map(|x| x.exact).collect::<Vec<_>>(), &w.iter().map(|w| w.exact).collect::<Vec<_>>());
                    let bound: f64 = x.iter().zip(w).map(|(x, w)| {
                        x.scale / 2.0 * w.exact.abs() + w.scale / 2.0 * x.exact.abs() + x.scale * w.scale / 4.0
                    }).sum();
                    prop_assert!((got - exact).abs() <= 1.001 * bound + 2e-6 * size, "{row} {column}: {got} {exact} {bound}");
                }
            }
        }
    }

    #[test]
    fn whole_numbers_in_range_are_exact(
        rows in 1usize..34, depth in 1usize..300, columns in 1usize..100, transposed: bool, seed: u64,
    ) {
        let order = if transposed { Order::Transposed } else { Order::Straight };
        let whole = |count, seed| -> Vec<f32> { values(count, seed, false).iter().map(|value| (127.0 * value).round()).collect() };
        let (mut x, mut w) = (whole(rows * depth, seed), whole(columns * depth, seed ^ 3));
        x.chunks_mut(depth).for_each(|row| row[depth / 2] = -127.0);
        // The largest value of each block of a column is 127, and so is that of each block of the weight.
        let shape = if transposed { (columns, depth) } else { (depth, columns) };
        for (index, value) in w.iter_mut().enumerate() {
            let (row, column) = (index / shape.1, index % shape.1);
            let summed = if transposed { column } else { row };
            if summed % 64 == 0 || index % 64 == 0 {
                *value = 127.0;
            }
        }
        let weight = Tensor::from_vec(w.clone(), shape, &Device::Cpu).unwrap();
        let matrix = Coded::new(&weight, Storage::Int8, ActivationQuantization::Int8Both);
        for result in every_form(&x, (rows, depth), &matrix, order, columns) {
            for row in 0..rows {
                for column in 0..columns {
                    let weight = |index: usize| if transposed { w[column * depth + index] } else { w[index * columns + column] };
                    let expected: i64 = (0..depth).map(|index| x[row * depth + index] as i64 * weight(index) as i64).sum();
                    prop_assert_eq!(result[row * columns + column], expected as f32);
                }
            }
        }
    }
}

/// Widths on both sides of whole fours and whole blocks, and rows on both sides of whole tiles.
#[test]
fn tiles_have_the_bits_of_each_other_and_the_whole_numbers_of_plain_loops_at_odd_sizes() {
    for depth in [1, 3, 4, 5, 60, 63, 64, 65, 68, 100, 130, 192, 257] {
        for columns in [1, 15, 16, 17, 33, 48, 50] {
            for order in [Order::Transposed, Order::Straight] {
                let shape = match order {
                    Order::Transposed => (columns, depth),
                    Order::Straight => (depth, columns),
                };
                // 127 in each block, however it lies, so that codes are the values.
                let w = values(columns * depth, 5, false);
                let w = w.iter().enumerate().map(|(index, value)| {
                    let summed = if shape.0 == columns {
                        index % shape.1
                    } else {
                        index / shape.1
                    };
                    if summed % 64 == 0 || index % 64 == 0 {
                        127.0
                    } else {
                        (127.0 * value).round()
                    }
                });
                let weight = Tensor::from_iter(w, &Device::Cpu).unwrap().reshape(shape).unwrap();
                let matrix = Coded::new(&weight, Storage::Int8, ActivationQuantization::Int8Both);
                for rows in 1..=33 {
                    let mut x = values(rows * depth, rows as u64, true);
                    let results = every_form(&x, (rows, depth), &matrix, order, columns);
                    assert!(
                        results[1..].windows(2).all(|pair| pair[0] == pair[1]),
                        "{rows} {depth} {columns} {order:?}"
                    );
                    x.iter_mut().for_each(|value| *value = (2.0 * *value).round());
                    x.chunks_mut(depth).for_each(|row| row[depth / 2] = -127.0);
                    let results = every_form(&x, (rows, depth), &matrix, order, columns);
                    assert!(
                        results.windows(2).all(|pair| pair[0] == pair[1]),
                        "{rows} {depth} {columns} {order:?}"
                    );
                }
            }
        }
    }
}

/// Sums of a layer: products of bytes beside an adapter's, onto another matrix.
struct Layer {
    x: Tensor,
    xa: Tensor,
    y: Tensor,
    dys: [Tensor; 2],
    weights: [Coded; 2],
    adapter: [Tensor; 2],
}

impl Layer {
    fn new(dtype: DType, rows: usize) -> Self {
        let tensor = |(height, width): (usize, usize), seed| {
            let values = values(height * width, seed, seed == 1);
            let tensor = Tensor::from_vec(values, (height, width), &Device::Cpu).unwrap();
            tensor.to_dtype(dtype).unwrap()
        };
        let of_rows = |width, seed| tensor((100, width), seed).narrow(0, 0, rows).unwrap();
        let coded = |outputs, seed, storage| {
            let weight = tensor((outputs, 320), seed).to_dtype(DType::F32).unwrap();
            Coded::new(&weight, storage, ActivationQuantization::Int8Both)
        };
        Self {
            x: of_rows(320, 1),
            xa: of_rows(6, 2),
            y: of_rows(210, 3),
            dys: [of_rows(210, 8), of_rows(66, 9)],
            weights: [coded(210, 4, Storage::Int8), coded(66, 5, Storage::Nf4)],
            adapter: [tensor((210, 6), 6), tensor((6, 320), 7)],
        }
    }

    fn forward(&self) -> [crate::ops::matmul::Term<'_>; 2] {
        use crate::ops::matmul::{Factor, Term};
        [
            Term::new(&self.x, Factor::QuantizedMatrix(&self.weights[0]), 1.0),
            Term::new(&self.xa, &self.adapter[0], 2.0),
        ]
    }

    fn backward(&self) -> [crate::ops::matmul::Term<'_>; 3] {
        use crate::ops::matmul::{Factor, Term};
        let [q, k] = &self.weights;
        [
            Term::new(&self.dys[0], Factor::QuantizedMatrix(q), 1.0),
            Term::new(&self.dys[1], Factor::QuantizedMatrix(k), 1.0),
            Term::new(&self.xa, &self.adapter[1], 0.5),
        ]
    }

    fn sums(&self) -> Vec<Vec<f32>> {
        use crate::ops::matmul::{nn_sum, nt_onto, nt_sum};
        let sums = [
            nt_sum(&self.forward()[..1]).unwrap(),
            nt_onto(&self.y, &self.forward()).unwrap(),
            nn_sum(&self.backward()).unwrap(),
        ];
        sums.iter().map(to_values).collect()
    }

    /// Sums on one thread: within a task of the pool.
    fn sums_alone(&self) -> Vec<Vec<f32>> {
        let alone = std::sync::Mutex::new(Vec::new());
        crate::thread_pool::for_each(2, |task| {
            if task == 0 {
                *alone.lock().unwrap() = self.sums();
            }
        });
        alone.into_inner().unwrap()
    }
}

fn to_values(tensor: &Tensor) -> Vec<f32> {
    let tensor = tensor.to_dtype(DType::F32).unwrap();
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn the_same_bits_for_any_number_of_threads_and_rows() {
    for dtype in [DType::F32, DType::BF16] {
        let layer = Layer::new(dtype, 100);
        let alone = layer.sums_alone();
        assert_eq!(layer.sums(), alone);
        for rows in [1, 3, 14, 33, 99] {
            for (sum, (some, all)) in Layer::new(dtype, rows).sums().iter().zip(&alone).enumerate() {
                // As without bytes, an adapter's BF16 products of a few rows run on VNNI's pairs, which add up in another order than tiles.
                let few = dtype == DType::BF16 && rows < 8 && sum > 0;
                assert!(few || some[..] == all[..some.len()], "{rows} rows");
            }
        }
    }
}

/// The plain ops round activations alike, and leave the weights of nf4 as they are.
#[test]
fn sums_with_adapters_are_those_of_the_plain_ops() {
    use crate::ops::matmul::reference;
    for (dtype, allowed) in [(DType::F32, 5e-3), (DType::BF16, 2e-2)] {
        let layer = Layer::new(dtype, 100);
        let onto = (&layer.y + reference::nt_sum(&layer.forward()).unwrap()).unwrap();
        let expected = [
            reference::nt_sum(&layer.forward()[..1]).unwrap(),
            onto,
            reference::nn_sum(&layer.backward()).unwrap(),
        ];
        for (sum, expected) in layer.sums().iter().zip(&expected) {
            let expected = to_values(expected);
            let largest = expected.iter().fold(0f32, |largest, value| largest.max(value.abs()));
            let worst = sum
                .iter()
                .zip(&expected)
                .map(|(a, b)| (a - b).abs())
                .fold(0f32, f32::max);
            assert!(worst <= allowed * largest, "{dtype:?}: {worst} of {largest}");
        }
    }
}

#[test]
fn what_is_not_finite_spoils_its_row_alone_and_zeros_give_zeros() {
    let (rows, depth, columns) = (6, 130, 50);
    let weight = Tensor::from_vec(values(depth * columns, 3, false), (columns, depth), &Device::Cpu).unwrap();
    let matrix = Coded::new(&weight, Storage::Int8, ActivationQuantization::Int8Forward);
    let good = values(rows * depth, 1, false);
    let mut bad = good.clone();
    (bad[depth + 3], bad[3 * depth + 129]) = (f32::INFINITY, f32::NAN);
    bad[4 * depth..5 * depth].fill(0.0);
    let results = every_form(&bad, (rows, depth), &matrix, Order::Transposed, columns);
    for (result, good) in results
        .iter()
        .zip(every_form(&good, (rows, depth), &matrix, Order::Transposed, columns))
    {
        for (row, (result, good)) in result.chunks(columns).zip(good.chunks(columns)).enumerate() {
            match row {
                1 | 3 => assert!(result.iter().all(|value| value.is_nan())),
                4 => assert!(result.iter().all(|value| *value == 0.0)),
                _ => assert_eq!(result, good),
            }
        }
    }
}

/// The error of a product of normal values, over the deviation of the exact one: what the setting costs a layer, and what an outlier does.
#[test]
fn errors_are_those_of_eight_bits() {
    let (rows, depth, columns) = (64, 576, 96);
    let weight = Tensor::randn(0f32, 0.02, (columns, depth), &Device::Cpu).unwrap();
    let x = Tensor::randn(0f32, 1.0, (rows, depth), &Device::Cpu).unwrap();
    let relative = |x: &Tensor, storage| {
        let matrix = Coded::new(&weight, storage, ActivationQuantization::Int8Both);
        let stored = matrix.values(Order::Transposed);
        let x = to_values(x);
        let result = every_form(&x, (rows, depth), &matrix, Order::Transposed, columns)
            .pop()
            .unwrap();
        let (mut wrong, mut size) = (0.0, 0.0);
        for row in 0..rows {
            for column in 0..columns {
                let x: Vec<f64> = x[row * depth..][..depth]
                    .iter()
                    .map(|value| f64::from(*value))
                    .collect();
                let exact = exact(&x, &stored[column * depth..][..depth]);
                wrong += (f64::from(result[row * columns + column]) - exact).powi(2);
                size += exact * exact;
            }
        }
        (wrong / size).sqrt()
    };
    let spread = [relative(&x, Storage::Int8), relative(&x, Storage::Nf4)];
    assert!(spread[0] < 0.0085 && spread[1] < 0.0107, "{spread:?}");
    // One column 50 times the others takes nearly all of the codes.
    let gains = (0..depth).map(|index| if index == 100 { 50f32 } else { 1.0 });
    let gains = Tensor::from_iter(gains, &Device::Cpu).unwrap();
    let outlier = x.broadcast_mul(&gains).unwrap();
    let with_outlier = relative(&outlier, Storage::Int8);
    assert!((0.04..0.065).contains(&with_outlier), "{with_outlier}");
}
