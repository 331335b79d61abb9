//! 4-bit NormalFloat weights (QLoRA, arXiv:2305.14314) in bitsandbytes' layout.
//!
//! | part | shape | meaning |
//! |---|---|---|
//! | `packed` | (ceil(out in / 2),) U8 | two codes a byte, the earlier element in the high half |
//! | absmax | (blocks,) | largest absolute value of each block of 64 elements |
//!
//! With double quantization, absmax - mean(absmax) is itself stored as 8-bit codes of the signed dynamic map in blocks
//! of 256. element = value[code] * absmax, in F32, rounded to the wanted dtype last.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};
use peft_tune_core::plan::{BLOCK, NESTED_BLOCK};

use super::blocks::{CHUNK, not_a_number, on_paper, to_rows, with_slice};
use super::cuda::{self, Storage};
use super::dynamic_map::DynamicMap;
use super::element::Element;
use super::error::QuantError;
use super::expand::{INT8_STEP, nf4_block, nf4_int8};
use super::nf4_constants::{ConstantSlices, Constants, quantize_constants};
use super::nf4_values::{TABLE, quantize_block};
use super::quantized::{ByteRows, Int8Blocks, Quantized, blocks_lie_in_rows};
use crate::gpu::{Argument, arguments};
use crate::thread_pool;

/// A weight (out, in) of 4-bit codes.
#[derive(Clone, Debug)]
pub struct Nf4 {
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    /// Elements of a block: even, and a divisor of the chunk that a thread widens.
    pub(super) block: usize,
    pub(super) packed: Tensor,
    pub(super) constants: Constants,
}

impl Nf4 {
    /// Quantizes a weight (out, in) of any float dtype; the result lies on the weight's device.
    ///
    /// # Errors
    /// A weight that is not a matrix or holds a value that is not finite.
    pub fn quantize(weight: &Tensor, double: bool) -> std::result::Result<Self, QuantError> {
        let (outputs, inputs, values) = to_rows(weight)?;
        let mut packed = vec![0u8; values.len().div_ceil(2)];
        let mut constants = vec![0f32; values.len().div_ceil(BLOCK)];
        let task = CHUNK / BLOCK;
        thread_pool::for_chunks2(
            (&mut packed, CHUNK / 2),
            (&mut constants, task),
            |index, packed, constants| {
                let blocks = values[index * CHUNK..].chunks(BLOCK);
                for ((packed, constant), block) in packed.chunks_mut(BLOCK / 2).zip(constants).zip(blocks) {
                    *constant = quantize_block(block, packed);
                }
            },
        );
        let device = weight.device();
        let blocks = constants.len();
        let constants = if double {
            quantize_constants(&constants, device)?
        } else {
            Constants::Plain(Tensor::from_vec(constants, blocks, device)?)
        };
        let bytes = packed.len();
        Ok(Self {
            outputs,
            inputs,
            block: BLOCK,
            packed: Tensor::from_vec(packed, bytes, device)?,
            constants,
        })
    }

    /// A weight on paper: all of it but memory. What reads its codes finds one of them everywhere.
    ///
    /// # Errors
    /// Those of candle.
    pub fn on_paper((outputs, inputs): (usize, usize), double: bool) -> Result<Self> {
        let elements = outputs * inputs;
        let blocks = elements.div_ceil(BLOCK);
        Ok(Self {
            outputs,
            inputs,
            block: BLOCK,
            packed: on_paper(elements.div_ceil(2), DType::U8)?,
            constants: match double {
                false => Constants::Plain(on_paper(blocks, DType::F32)?),
                true => Constants::Double {
                    codes: on_paper(blocks, DType::U8)?,
                    nested: on_paper(blocks.div_ceil(NESTED_BLOCK), DType::F32)?,
                    offset: 0.0,
                },
            },
        })
    }

    /// A weight of zeros with plain constants, for [`Nf4::replace_rows`].
    ///
    /// # Errors
    /// Memory.
    pub fn zeros((outputs, inputs): (usize, usize), device: &Device) -> Result<Self> {
        let elements = outputs * inputs;
        Ok(Self {
            outputs,
            inputs,
            block: BLOCK,
            packed: Tensor::zeros(elements.div_ceil(2), DType::U8, device)?,
            constants: Constants::Plain(Tensor::zeros(elements.div_ceil(BLOCK), DType::F32, device)?),
        })
    }

    /// Quantizes rows as [`Nf4::quantize`] does, in place of those from `start` on of this weight, which has plain
    /// constants: whatever shares the codes sees them change. The rows begin at a block, and end at one or with the
    /// weight. Rows with a value that is not finite are not-a-number from then on.
    ///
    /// # Errors
    /// Rows of another width, or more than there are, or that begin within a block; double quantization.
    pub fn replace_rows(&self, start: usize, rows: &Tensor) -> std::result::Result<(), QuantError> {
        let (first, count) = (start * self.inputs, rows.dim(0)?);
        let ends = (first + count * self.inputs).is_multiple_of(self.block) || start + count == self.outputs;
        let Constants::Plain(constants) = &self.constants else {
            return Err(candle_core::Error::Msg("constants that are quantized do not change".to_owned()).into());
        };
        if self.block != BLOCK || !first.is_multiple_of(BLOCK) || !ends {
            let message = format!(
                "rows {start}..{} do not begin and end at blocks of {BLOCK}",
                start + count
            );
            return Err(candle_core::Error::Msg(message).into());
        }
        let (packed, fresh) = match Self::quantize(rows, false) {
            Ok(Self {
                packed,
                constants: Constants::Plain(fresh),
                ..
            }) => (Some(packed), fresh),
            Ok(_) => return Ok(()),
            Err(QuantError::NotFinite { .. }) => {
                let blocks = (count * self.inputs).div_ceil(BLOCK);
                (None, not_a_number(blocks, self.device())?)
            }
            Err(other) => return Err(other),
        };
        if let Some(packed) = packed {
            self.packed.slice_set(&packed, 0, first / 2)?;
        }
        Ok(constants.slice_set(&fresh, 0, first / BLOCK)?)
    }

    /// The two-codes-a-byte tensor, and the constants: bitsandbytes' tensors.
    pub fn parts(&self) -> (&Tensor, &Constants) {
        (&self.packed, &self.constants)
    }

    /// Puts the weight on other tensors: what `change` makes of codes and constants, one after the other; of the same
    /// shape and dtype.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn map(&self, change: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let packed = change(&self.packed)?;
        let constants = match &self.constants {
            Constants::Plain(absmax) => Constants::Plain(change(absmax)?),
            Constants::Double { codes, nested, offset } => Constants::Double {
                codes: change(codes)?,
                nested: change(nested)?,
                offset: *offset,
            },
        };
        Ok(Self {
            packed,
            constants,
            ..*self
        })
    }

    /// Hands the codes and the constants, which lie on the CPU, to `read`.
    fn with_codes<R>(&self, read: impl FnOnce(&[u8], ConstantSlices<'_>) -> R) -> Result<R> {
        with_slice(&self.packed, |packed: &[u8]| match &self.constants {
            Constants::Plain(absmax) => {
                with_slice(absmax, |absmax: &[f32]| Ok(read(packed, ConstantSlices::Plain(absmax))))
            }
            Constants::Double { codes, nested, offset } => with_slice(codes, |codes: &[u8]| {
                with_slice(nested, |nested: &[f32]| {
                    let constants = ConstantSlices::Double {
                        map: DynamicMap::signed().values(),
                        codes,
                        nested,
                        offset: *offset,
                    };
                    Ok(read(packed, constants))
                })
            }),
        })
    }

    /// The weight as kernels take it, with the values of the signed dynamic map.
    fn on_gpu<'a>(&'a self, map: &'a Tensor) -> cuda::Weight<'a> {
        let (absmax, codes, nested, offset) = match &self.constants {
            Constants::Plain(absmax) => (Some(absmax), None, None, 0.0),
            Constants::Double { codes, nested, offset } => (None, Some(codes), Some(nested), *offset),
        };
        let arguments = arguments! { &self.packed, absmax, codes, nested, map, offset };
        cuda::Weight::new(Storage::Nf4, &arguments, self.inputs, self.block)
    }

    fn constants_plain(&self) -> Result<Tensor> {
        match &self.constants {
            Constants::Plain(absmax) => Ok(absmax.clone()),
            Constants::Double { codes, nested, offset } => {
                let map = Tensor::from_slice(DynamicMap::signed().values(), 256, self.device())?;
                let (blocks, groups) = (codes.elem_count(), nested.elem_count());
                let spread = nested
                    .unsqueeze(1)?
                    .broadcast_as((groups, NESTED_BLOCK))?
                    .flatten_all()?;
                let fractions = map.index_select(&codes.to_dtype(DType::U32)?, 0)?;
                (fractions * spread.narrow(0, 0, blocks)?)?.affine(1.0, f64::from(*offset))
            }
        }
    }
}

impl Quantized for Nf4 {
    fn shape(&self) -> (usize, usize) {
        (self.outputs, self.inputs)
    }

    fn device(&self) -> &Device {
        self.packed.device()
    }

    fn bytes(&self) -> usize {
        let constants = match &self.constants {
            Constants::Plain(absmax) => absmax.elem_count() * 4,
            Constants::Double { codes, nested, .. } => codes.elem_count() + nested.elem_count() * 4,
        };
        self.packed.elem_count() + constants
    }

    fn fill_rows<T: Element>(&self, rows: Range<usize>, into: &mut [T]) -> Result<()> {
        self.check_rows(&rows, into.len())?;
        let first = rows.start * self.inputs;
        self.with_codes(|packed, constants| fill(packed, self.block, first, into, |block| constants.of(block)))
    }

    fn fill_block<T: Element>(&self, rows: Range<usize>, columns: Range<usize>, into: &mut [T]) -> Result<()> {
        self.check_block(&rows, &columns, into.len())?;
        if into.is_empty() {
            return Ok(());
        }
        self.with_codes(|packed, constants| {
            for (row, into) in rows.zip(into.chunks_exact_mut(columns.len())) {
                let first = row * self.inputs + columns.start;
                fill_part(packed, self.block, first, into, |block| constants.of(block));
            }
        })
    }

    fn fill_int8(&self, rows: Range<usize>, columns: Range<usize>, mut into: Int8Blocks<'_>) -> Result<bool> {
        self.check_int8(&rows, &columns, &into)?;
        if !blocks_lie_in_rows(self.block, self.inputs) || !self.inputs.is_multiple_of(2) {
            return Ok(false);
        }
        self.with_codes(|packed, constants| {
            for (row, (into, factors)) in rows.zip(into.rows(columns.len())) {
                let first = row * self.inputs + columns.start;
                nf4_int8(&packed[first / 2..][..into.len().div_ceil(2)], into);
                for (index, factor) in factors.iter_mut().enumerate() {
                    *factor = constants.of((first + index * BLOCK) / self.block) * INT8_STEP;
                }
            }
            true
        })
    }

    fn rows_plain(&self, rows: Range<usize>, dtype: DType) -> Result<Tensor> {
        let (device, elements) = (self.device(), self.outputs * self.inputs);
        let pairs = Tensor::from_slice(TABLE.pairs.as_flattened(), (256, 2), device)?;
        // candle takes the largest value of an index dtype as "no index": 255 in a U8 would select zeros.
        let packed = self.packed.to_dtype(DType::U32)?;
        let values = pairs.index_select(&packed, 0)?.flatten_all()?.narrow(0, 0, elements)?;
        let constants = self.constants_plain()?;
        let whole = elements / self.block;
        let mut parts = Vec::with_capacity(2);
        if whole > 0 {
            let blocks = values.narrow(0, 0, whole * self.block)?.reshape((whole, self.block))?;
            let constants = constants.narrow(0, 0, whole)?.unsqueeze(1)?;
            parts.push(blocks.broadcast_mul(&constants)?.flatten_all()?);
        }
        if whole * self.block < elements {
            let rest = values.narrow(0, whole * self.block, elements - whole * self.block)?;
            parts.push(rest.broadcast_mul(&constants.narrow(0, whole, 1)?)?);
        }
        let weight = Tensor::cat(&parts, 0)?.reshape((self.outputs, self.inputs))?;
        weight.narrow(0, rows.start, rows.len())?.to_dtype(dtype)?.contiguous()
    }

    fn launch_rows(&self, rows: Range<usize>, into: &Tensor) -> Result<()> {
        let map = cuda::map(into.device())?;
        self.on_gpu(&map).widen(rows.start * self.inputs, into)
    }

    fn launch_byte_rows(&self, rows: Range<usize>, into: &ByteRows<'_>) -> Result<()> {
        self.check_rows(&rows, rows.len() * self.inputs)?;
        let map = cuda::map(into.codes.device())?;
        self.on_gpu(&map).byte_rows(rows.start * self.inputs, rows.len(), into)
    }

    fn to_device(&self, device: &Device) -> Result<Self> {
        self.map(&mut |tensor| tensor.to_device(device))
    }
}

/// Widens elements `first..first + into.len()` on all threads; `constant` gives that of a block.
fn fill<T: Element>(packed: &[u8], block: usize, first: usize, into: &mut [T], constant: impl Fn(usize) -> f32 + Sync) {
    thread_pool::for_chunks(into, CHUNK, |chunk, elements| {
        fill_part(packed, block, first + chunk * CHUNK, elements, &constant);
    });
}

/// Fills as [`fill`] does, on this thread.
fn fill_part<T: Element>(packed: &[u8], block: usize, first: usize, into: &mut [T], constant: impl Fn(usize) -> f32) {
    let (mut index, mut rest) = (first, into);
    while !rest.is_empty() {
        let left_in_block = block - index % block;
        let (part, tail) = rest.split_at_mut(left_in_block.min(rest.len()));
        let scale = constant(index / block);
        // Only a row of odd length starts in the middle of a byte.
        let (odd, even) = part.split_at_mut(index % 2);
        if let [element] = odd {
            *element = T::round(TABLE.pairs[usize::from(packed[index / 2])][1] * scale);
        }
        let bytes = &packed[index.div_ceil(2)..][..even.len().div_ceil(2)];
        nf4_block(&TABLE, bytes, scale, even);
        index += odd.len() + even.len();
        rest = tail;
    }
}

#[cfg(test)]
mod tests {
    use super::super::blocks::tests::assert_rows_are_replaced;
    use super::*;

    #[test]
    fn replaced_rows_are_those_of_the_whole_weight_quantized_anew() {
        assert_rows_are_replaced(
            |weight| Nf4::quantize(weight, false).unwrap(),
            |codes, start, rows| codes.replace_rows(start, rows),
        );
        let weight = Tensor::ones((4, 48), DType::F32, &Device::Cpu).unwrap();
        let codes = Nf4::quantize(&weight, false).unwrap();
        let error = codes.replace_rows(1, &weight.narrow(0, 0, 1).unwrap()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("rows 1..2 do not begin and end at blocks of 64"),
            "{error}"
        );
    }

    #[test]
    fn the_plain_form_gives_the_same_bits() {
        // Rows of 80 start in the middle of blocks, rows of 7 in the middle of bytes.
        for (shape, double) in [((5, 64), false), ((6, 80), true), ((3, 7), true), ((300, 64), true)] {
            let weight = Tensor::rand(-1f32, 1.0, shape, &Device::Cpu).unwrap();
            let weight = Nf4::quantize(&weight, double).unwrap();
            for dtype in [DType::F32, DType::BF16] {
                let fused = weight
                    .dequantize_rows(1..3, dtype)
                    .unwrap()
                    .to_dtype(DType::F32)
                    .unwrap();
                let plain = weight.rows_plain(1..3, dtype).unwrap().to_dtype(DType::F32).unwrap();
                assert_eq!(fused.to_vec2::<f32>().unwrap(), plain.to_vec2::<f32>().unwrap());
            }
            let plain = weight.rows_plain(0..shape.0, DType::F32).unwrap();
            for columns in [0..shape.1, 3..shape.1 - 1, 2..5] {
                let mut block = vec![0f32; 2 * columns.len()];
                weight.fill_block(1..3, columns.clone(), &mut block).unwrap();
                let expected = plain
                    .narrow(0, 1, 2)
                    .unwrap()
                    .narrow(1, columns.start, columns.len())
                    .unwrap();
                assert_eq!(block, expected.flatten_all().unwrap().to_vec1::<f32>().unwrap());
            }
        }
    }
}
