//! Weights of which two of each four neighbours in a row are left out (2:4).
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | w | (out, in) | the weight, in a multiple of four |
//! | n | (in,) | norms of the inputs' columns, 1 where size alone decides |
//! | kept | (out, in / 2) | the two values that stay of each group of four, in their order |
//! | positions | (out in / 8,) U8 | two bits for each of them: its place in its group |
//!
//! A value's score is |w| n of its column, in F32 (Wanda, arXiv:2306.11695; with n = 1 the magnitude). Of equal scores that of the
//! lower column counts as the larger one, so that the same weight always keeps the same values. Groups are numbered over all rows;
//! the low half of a byte of positions is of the even group, and the low two bits of a half are of its first value.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor, WithDType, bail};
use half::{bf16, f16};
use peft_tune_core::recipe::{KEPT_OF_GROUP, SPARSE_GROUP};
use rayon::prelude::*;

use super::blocks::{on_paper, to_rows, with_slice};
use super::element::Element;
use super::error::QuantError;
use super::quantized::{ByteRows, Int8Blocks, Quantized};
use super::scatter::{self, StoredFloat};

/// A weight (out, in) with two of each four values.
#[derive(Clone, Debug)]
pub struct Sparse {
    outputs: usize,
    inputs: usize,
    /// (out, in / 2)
    kept: Tensor,
    /// (out in / 8,) U8, rounded up.
    positions: Tensor,
}

impl Sparse {
    /// Keeps two of each four values of a weight (out, in) on the CPU, F32, BF16 or F16, as they are. The scores are of the values
    /// rounded to `decides`, so that a weight in another dtype keeps the same ones, times `norms` of the columns where there are some.
    ///
    /// # Errors
    /// A weight that is not a matrix, holds a value that is not finite, or whose rows are not whole groups of four; norms of another
    /// number, or that are not finite.
    pub fn compress(weight: &Tensor, decides: DType, norms: Option<&[f32]>) -> std::result::Result<Self, QuantError> {
        let (outputs, inputs, values) = to_rows(&weight.to_dtype(decides)?)?;
        if !inputs.is_multiple_of(SPARSE_GROUP) {
            return Err(QuantError::NotInGroups { inputs });
        }
        if norms.is_some_and(|norms| norms.len() != inputs || norms.iter().any(|norm| !norm.is_finite())) {
            return Err(QuantError::BadNorms { inputs });
        }
        let groups = values.len() / SPARSE_GROUP;
        let mut positions = vec![0u8; groups.div_ceil(2)];
        positions.par_iter_mut().enumerate().for_each(|(index, byte)| {
            for group in 2 * index..(2 * index + 2).min(groups) {
                let first = group * SPARSE_GROUP;
                let of_group = [0, 1, 2, 3].map(|place| {
                    let norm = norms.map_or(1.0, |norms| norms[(first + place) % inputs]);
                    values[first + place].abs() * norm
                });
                *byte |= places_of(of_group) << (4 * (group % 2));
            }
        });
        let weight = weight.contiguous()?;
        let kept = match weight.dtype() {
            DType::BF16 => gather::<bf16>(&weight, &positions)?,
            DType::F16 => gather::<f16>(&weight, &positions)?,
            _ => gather::<f32>(&weight.to_dtype(DType::F32)?, &positions)?,
        };
        let count = positions.len();
        Ok(Self {
            outputs,
            inputs,
            kept,
            positions: Tensor::from_vec(positions, count, &Device::Cpu)?,
        })
    }

    /// A weight on paper, of values in `dtype`: all of it but memory.
    ///
    /// # Errors
    /// Those of candle.
    pub fn on_paper((outputs, inputs): (usize, usize), dtype: DType) -> Result<Self> {
        let kept = outputs * inputs / SPARSE_GROUP * KEPT_OF_GROUP;
        Ok(Self {
            outputs,
            inputs,
            kept: on_paper(kept, dtype)?,
            positions: on_paper((outputs * inputs / SPARSE_GROUP).div_ceil(2), DType::U8)?,
        })
    }

    /// Puts the weight on other tensors: what `change` makes of values and positions, one after the other; of the same
    /// shape and dtype.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn map(&self, change: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self {
            kept: change(&self.kept)?,
            positions: change(&self.positions)?,
            ..*self
        })
    }

    /// Dtype of the values.
    pub fn dtype(&self) -> DType {
        self.kept.dtype()
    }

    /// Expands columns of rows, row by row, into as many elements.
    fn expand<S: StoredFloat, T: Element>(
        &self,
        rows: Range<usize>,
        columns: &Range<usize>,
        into: &mut [T],
    ) -> Result<()> {
        with_slice(&self.kept, |kept: &[S]| {
            with_slice(&self.positions, |positions: &[u8]| {
                for (row, into) in rows.zip(into.chunks_exact_mut(columns.len())) {
                    scatter::fill(kept, positions, row * self.inputs + columns.start, into);
                }
                Ok(())
            })
        })
    }

    fn fill<T: Element>(&self, rows: Range<usize>, columns: &Range<usize>, into: &mut [T]) -> Result<()> {
        match self.kept.dtype() {
            DType::BF16 => self.expand::<bf16, T>(rows, columns, into),
            DType::F16 => self.expand::<f16, T>(rows, columns, into),
            _ => self.expand::<f32, T>(rows, columns, into),
        }
    }
}

/// The places of the two largest scores of a group: the lower one in the low two bits, the higher one above it.
fn places_of(scores: [f32; SPARSE_GROUP]) -> u8 {
    // Only what is larger takes the place of an earlier one.
    let largest = |but: usize| {
        let others = (0..SPARSE_GROUP).filter(|place| *place != but);
        others.fold(None, |best: Option<usize>, place| match best {
            Some(best) if scores[place] <= scores[best] => Some(best),
            _ => Some(place),
        })
    };
    let first = largest(SPARSE_GROUP).unwrap_or(0);
    let second = largest(first).unwrap_or(1);
    (first.min(second) | (first.max(second) << 2)) as u8
}

/// The values at the positions, (out, in / 2).
fn gather<D: WithDType>(weight: &Tensor, positions: &[u8]) -> Result<Tensor> {
    let (outputs, inputs) = weight.dims2()?;
    let kept = with_slice(weight, |values: &[D]| {
        let mut kept = Vec::with_capacity(values.len() / SPARSE_GROUP * KEPT_OF_GROUP);
        for (group, values) in values.chunks_exact(SPARSE_GROUP).enumerate() {
            let places = positions[group / 2] >> (4 * (group % 2));
            kept.push(values[usize::from(places & 3)]);
            kept.push(values[usize::from((places >> 2) & 3)]);
        }
        Ok(kept)
    })?;
    Tensor::from_vec(kept, (outputs, inputs / SPARSE_GROUP * KEPT_OF_GROUP), &Device::Cpu)
}

impl Quantized for Sparse {
    fn shape(&self) -> (usize, usize) {
        (self.outputs, self.inputs)
    }

    fn device(&self) -> &Device {
        self.kept.device()
    }

    fn bytes(&self) -> usize {
        self.kept.elem_count() * self.kept.dtype().size_in_bytes() + self.positions.elem_count()
    }

    fn fill_rows<T: Element>(&self, rows: Range<usize>, into: &mut [T]) -> Result<()> {
        self.check_rows(&rows, into.len())?;
        let columns = 0..self.inputs;
        into.par_chunks_mut(self.inputs)
            .zip(rows)
            .try_for_each(|(into, row)| self.fill(row..row + 1, &columns, into))
    }

    fn fill_block<T: Element>(&self, rows: Range<usize>, columns: Range<usize>, into: &mut [T]) -> Result<()> {
        self.check_block(&rows, &columns, into.len())?;
        if into.is_empty() {
            return Ok(());
        }
        self.fill(rows, &columns, into)
    }

    /// Refuses to fill codes: the values are none.
    fn fill_int8(&self, rows: Range<usize>, columns: Range<usize>, into: Int8Blocks<'_>) -> Result<bool> {
        self.check_int8(&rows, &columns, &into)?;
        Ok(false)
    }

    fn rows_plain(&self, rows: Range<usize>, dtype: DType) -> Result<Tensor> {
        if !matches!(dtype, DType::F32 | DType::BF16 | DType::F16) {
            bail!("a sparse weight is expanded to F32, BF16 or F16, not {dtype:?}");
        }
        self.to_device(&Device::Cpu)?
            .dequantize_rows(rows, dtype)?
            .to_device(self.device())
    }

    fn launch_rows(&self, rows: Range<usize>, into: &Tensor) -> Result<()> {
        into.slice_set(&self.rows_plain(rows, into.dtype())?, 0, 0)
    }

    fn launch_byte_rows(&self, _rows: Range<usize>, _into: &ByteRows<'_>) -> Result<()> {
        bail!("a sparse weight has no codes")
    }

    fn to_device(&self, device: &Device) -> Result<Self> {
        Ok(Self {
            kept: self.kept.to_device(device)?,
            positions: self.positions.to_device(device)?,
            ..*self
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The weight with zeros for what is left out: plain loops in F64, the scores sorted.
    fn masked(values: &[f32], inputs: usize, norms: Option<&[f32]>) -> Vec<f32> {
        let mut masked = vec![0.0; values.len()];
        for (group, of_group) in values.chunks(4).enumerate() {
            let score = |place: usize| {
                let norm = norms.map_or(1.0, |norms| norms[(4 * group + place) % inputs]);
                // Scores are F32: the product of two F32 values in F64 is exact, and rounded once.
                f64::from((f64::from(of_group[place].abs()) * f64::from(norm)) as f32)
            };
            let mut places = [0, 1, 2, 3];
            // A stable sort leaves the lower place in front of an equal one.
            places.sort_by(|a, b| score(*b).total_cmp(&score(*a)));
            for place in &places[..2] {
                masked[4 * group + place] = of_group[*place];
            }
        }
        masked
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    fn widened(weight: &Tensor) -> Vec<f32> {
        weight
            .to_dtype(DType::F32)
            .unwrap()
            .flatten_all()
            .unwrap()
            .to_vec1()
            .unwrap()
    }

    /// Small whole numbers, so that there are ties and zeros of both signs, and others.
    fn value() -> impl Strategy<Value = f32> {
        prop_oneof![
            (-3i8..4).prop_map(f32::from),
            Just(-0.0f32),
            -100.0f32..100.0,
            (any::<u32>()).prop_map(|bits| f32::from_bits(bits & 0xbfff_ffff)),
        ]
    }

    proptest! {
        #[test]
        fn what_is_expanded_is_the_masked_weight_to_the_bit(
            rows in 1usize..6,
            groups in 1usize..40,
            by_norms in any::<bool>(),
            seed in prop::collection::vec(value(), 6 * 160),
            norms in prop::collection::vec(0.0f32..4.0, 160),
        ) {
            let inputs = 4 * groups;
            let values = &seed[..rows * inputs];
            let norms = by_norms.then_some(&norms[..inputs]);
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                let weight = Tensor::from_slice(values, (rows, inputs), &Device::Cpu).unwrap();
                let weight = weight.clamp(-6e4f32, 6e4f32).unwrap().to_dtype(dtype).unwrap();
                let expected = masked(&widened(&weight), inputs, norms);
                let sparse = Sparse::compress(&weight, dtype, norms).unwrap();
                prop_assert_eq!(bits(&widened(&sparse.dequantize(dtype).unwrap())), bits(&expected));
                prop_assert_eq!(sparse.dtype(), dtype);
                let bytes = rows * inputs / 2 * dtype.size_in_bytes() + (rows * inputs).div_ceil(8);
                prop_assert_eq!(sparse.bytes(), bytes);
                // Two places of each four, in their order.
                let positions: Vec<u8> = sparse.positions.to_vec1().unwrap();
                for group in 0..rows * groups {
                    let places = positions[group / 2] >> (4 * (group % 2));
                    prop_assert!((places & 3) < ((places >> 2) & 3));
                }
            }
        }

        #[test]
        fn any_block_of_it_is_that_block_of_the_whole(
            rows in 1usize..5,
            groups in 1usize..60,
            cut in (0.0f64..1.0, 0.0f64..1.0),
        ) {
            let inputs = 4 * groups;
            let value = |index: usize| ((index * 2_654_435_761) % 1009) as f32 / 64.0 - 7.0;
            let values: Vec<f32> = (0..rows * inputs).map(value).collect();
            let (a, b) = ((cut.0 * inputs as f64) as usize, (cut.1 * inputs as f64) as usize);
            let columns = a.min(b)..a.max(b) + 1;
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                let weight = Tensor::from_slice(&values, (rows, inputs), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
                let sparse = Sparse::compress(&weight, dtype, None).unwrap();
                let whole = masked(&widened(&weight), inputs, None);
                let block = |row: usize| &whole[row * inputs + columns.start..row * inputs + columns.end];
                let expected: Vec<f32> = (0..rows).flat_map(|row| block(row).to_vec()).collect();
                let mut single = vec![9f32; expected.len()];
                sparse.fill_block(0..rows, columns.clone(), &mut single).unwrap();
                prop_assert_eq!(bits(&single), bits(&expected));
                let mut pair = vec![bf16::ONE; expected.len()];
                sparse.fill_block(0..rows, columns.clone(), &mut pair).unwrap();
                let expected: Vec<u16> = expected.iter().map(|value| bf16::from_f32(*value).to_bits()).collect();
                prop_assert_eq!(pair.iter().map(|value| value.to_bits()).collect::<Vec<_>>(), expected);
            }
        }
    }

    #[test]
    fn of_equal_scores_the_lower_columns_stay() {
        let weight = Tensor::new(&[[1f32, -1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 2.0]], &Device::Cpu).unwrap();
        let sparse = Sparse::compress(&weight, DType::F32, None).unwrap();
        assert_eq!(
            widened(&sparse.dequantize(DType::F32).unwrap()),
            [1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0]
        );
        assert_eq!(sparse.positions.to_vec1::<u8>().unwrap(), [0b1100_0100]);
    }

    #[test]
    fn the_dtype_that_decides_may_be_another_one_than_the_values_have() {
        // Equal in BF16, where the lower column stays; in F32 the higher one is larger.
        let weight = Tensor::new(&[[1f32, 1.001, 0.5, 3.0]], &Device::Cpu).unwrap();
        let kept = |decides| {
            let sparse = Sparse::compress(&weight, decides, None).unwrap();
            widened(&sparse.dequantize(DType::F32).unwrap())
        };
        assert_eq!(kept(DType::BF16), [1.0, 0.0, 0.0, 3.0]);
        assert_eq!(kept(DType::F32), [0.0, 1.001, 0.0, 3.0]);
    }

    #[test]
    fn what_cannot_be_left_out_of_is_refused() {
        let weight = |shape: (usize, usize)| Tensor::ones(shape, DType::F32, &Device::Cpu).unwrap();
        let error = Sparse::compress(&weight((2, 6)), DType::F32, None)
            .unwrap_err()
            .to_string();
        assert!(error.contains("rows of 6 values"), "{error}");
        let error = Sparse::compress(&weight((2, 8)), DType::F32, Some(&[1.0; 4]))
            .unwrap_err()
            .to_string();
        assert!(error.contains("8 columns"), "{error}");
        assert!(Sparse::compress(&weight((2, 4)), DType::F32, Some(&[1.0, f32::NAN, 1.0, 1.0])).is_err());
        let torn = Tensor::new(&[[1f32, f32::INFINITY, 1.0, 1.0]], &Device::Cpu).unwrap();
        assert!(Sparse::compress(&torn, DType::F32, None).is_err());
        let sparse = Sparse::compress(&weight((2, 8)), DType::F32, None).unwrap();
        assert!(sparse.fill_block(0..3, 0..8, &mut [0f32; 24]).is_err());
        assert!(sparse.rows_plain(0..1, DType::U8).is_err());
        assert_eq!(
            widened(&sparse.rows_plain(1..2, DType::F32).unwrap()),
            [1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]
        );
    }
}
