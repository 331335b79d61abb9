//! 8-bit weights with one constant for each block.
//!
//! code = round(w 127 / absmax) as LLM.int8() (arXiv:2208.07339, bitsandbytes' `int8_vectorwise_quant`) makes it of a
//! row; weights quantized here have blocks of 64 elements instead of rows, which a single outlier spoils. A checkpoint
//! that LLM.int8() wrote has one block a row. Codes are kept as U8 with 128 added: candle has no signed bytes.
//!
//! Design note: bitsandbytes' other 8-bit code, the dynamic map, has 1.6 times the error on normal weights in blocks of
//! 64 (0.0095 against 0.0059 of their deviation): its strength is small values, which do not matter in a sum.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};
use peft_tune_core::plan::BLOCK;

use super::blocks::{CHUNK, absmax, not_a_number, on_paper, to_rows, with_slice};
use super::cuda::{self, Storage};
use super::element::Element;
use super::error::QuantError;
use super::expand::{INT8_STEP, int8_block};
use super::quantized::{ByteRows, Int8Blocks, Quantized, blocks_lie_in_rows};
use crate::gpu::{Argument, arguments};
use crate::thread_pool;

/// Number that is added to a code to store it in a U8.
const BIAS: u8 = 128;
/// 1.5 * 2^23
const ROUNDER: f32 = 12_582_912.0;

/// A weight (out, in) of 8-bit codes.
#[derive(Clone, Debug)]
pub struct Int8 {
    outputs: usize,
    inputs: usize,
    /// Elements of a block.
    block: usize,
    /// (out in,) U8: code + 128.
    codes: Tensor,
    /// (blocks,) F32.
    constants: Tensor,
}

impl Int8 {
    /// Quantizes a weight (out, in) of any float dtype; the result lies on the weight's device.
    ///
    /// # Errors
    /// A weight that is not a matrix or holds a value that is not finite.
    pub fn quantize(weight: &Tensor) -> std::result::Result<Self, QuantError> {
        Self::quantize_in(weight, |_| BLOCK)
    }

    /// Quantizes as [`Int8::quantize`] does, with one block a row, as LLM.int8() has them: what a checkpoint of
    /// bitsandbytes can hold.
    ///
    /// # Errors
    /// Errors of [`Int8::quantize`].
    pub fn quantize_rows(weight: &Tensor) -> std::result::Result<Self, QuantError> {
        Self::quantize_in(weight, |inputs| inputs)
    }

    /// A weight on paper: all of it but memory. What reads its codes finds one of them everywhere.
    ///
    /// # Errors
    /// Those of candle.
    pub fn on_paper(shape: (usize, usize)) -> Result<Self> {
        Self::on_paper_in(shape, BLOCK)
    }

    /// Makes the weight of [`Int8::on_paper`] with one block a row.
    ///
    /// # Errors
    /// Those of candle.
    pub fn on_paper_in_rows(shape: (usize, usize)) -> Result<Self> {
        Self::on_paper_in(shape, shape.1)
    }

    fn on_paper_in((outputs, inputs): (usize, usize), block: usize) -> Result<Self> {
        let elements = outputs * inputs;
        Ok(Self {
            outputs,
            inputs,
            block,
            codes: on_paper(elements, DType::U8)?,
            constants: on_paper(elements.div_ceil(block.max(1)), DType::F32)?,
        })
    }

    /// A weight of zeros with one block a row, for [`Int8::replace_rows`].
    ///
    /// # Errors
    /// Memory.
    pub fn zeros_in_rows((outputs, inputs): (usize, usize), device: &Device) -> Result<Self> {
        Ok(Self {
            outputs,
            inputs,
            block: inputs,
            codes: Tensor::full(BIAS, outputs * inputs, device)?,
            constants: Tensor::zeros(outputs, DType::F32, device)?,
        })
    }

    /// Quantizes in blocks of so many elements, by the number of inputs.
    fn quantize_in(weight: &Tensor, block_of: impl Fn(usize) -> usize) -> std::result::Result<Self, QuantError> {
        let (outputs, inputs, values) = to_rows(weight)?;
        let block = block_of(inputs).max(1);
        let mut codes = vec![0u8; values.len()];
        let mut constants = vec![0f32; values.len().div_ceil(block)];
        let task = (CHUNK / block).max(1);
        thread_pool::for_chunks2(
            (&mut codes, task * block),
            (&mut constants, task),
            |index, codes, constants| {
                let blocks = values[index * task * block..].chunks(block);
                for ((codes, constant), block) in codes.chunks_mut(block).zip(constants).zip(blocks) {
                    *constant = quantize_block(block, codes);
                }
            },
        );
        let (elements, blocks, device) = (codes.len(), constants.len(), weight.device());
        Ok(Self {
            outputs,
            inputs,
            block,
            codes: Tensor::from_vec(codes, elements, device)?,
            constants: Tensor::from_vec(constants, blocks, device)?,
        })
    }

    /// Puts the weight on other tensors: what `change` makes of codes and constants, one after the other; of the same
    /// shape and dtype.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn map(&self, change: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self {
            codes: change(&self.codes)?,
            constants: change(&self.constants)?,
            ..*self
        })
    }

    /// Quantizes rows as [`Int8::quantize_rows`] does, in place of those from `start` on of this weight, which has one
    /// block a row: whatever shares the codes sees them change. Rows with a value that is not finite are not-a-number
    /// from then on.
    ///
    /// # Errors
    /// Rows of another width, or more than there are; another kind of blocks.
    pub fn replace_rows(&self, start: usize, rows: &Tensor) -> std::result::Result<(), QuantError> {
        if self.block != self.inputs {
            return Err(
                candle_core::Error::Msg("only a weight with one block a row takes rows anew".to_owned()).into(),
            );
        }
        let (codes, constants) = match Self::quantize_rows(rows) {
            Ok(fresh) => (Some(fresh.codes), fresh.constants),
            Err(QuantError::NotFinite { .. }) => (None, not_a_number(rows.dim(0)?, self.device())?),
            Err(other) => return Err(other),
        };
        if let Some(codes) = codes {
            self.codes.slice_set(&codes, 0, start * self.inputs)?;
        }
        Ok(self.constants.slice_set(&constants, 0, start)?)
    }

    /// The weight as kernels take it.
    fn on_gpu(&self) -> cuda::Weight<'_> {
        let arguments = arguments! { &self.codes, &self.constants };
        cuda::Weight::new(Storage::Int8, &arguments, self.inputs, self.block)
    }

    /// The signed codes (out, in), their bits in U8, and the constant of each row (out,), on the CPU.
    pub(super) fn row_codes(&self) -> Result<(Tensor, Tensor)> {
        if self.block != self.inputs {
            candle_core::bail!("only a weight with one block a row is written");
        }
        let codes: Vec<u8> = self.codes.to_device(&Device::Cpu)?.to_vec1()?;
        let codes = codes.into_iter().map(|code| code ^ 0x80).collect();
        let codes = Tensor::from_vec(codes, (self.outputs, self.inputs), &Device::Cpu)?;
        Ok((codes, self.constants.to_device(&Device::Cpu)?))
    }

    /// A weight of signed codes and one constant a row, as LLM.int8() has it.
    pub(super) fn from_rows(inputs: usize, codes: &[u8], constants: Vec<f32>) -> Result<Self> {
        // Signed bytes to biased ones: a flip of the sign bit.
        let codes: Vec<u8> = codes.iter().map(|code| code ^ 0x80).collect();
        let (elements, outputs) = (codes.len(), constants.len());
        Ok(Self {
            outputs,
            inputs,
            block: inputs,
            codes: Tensor::from_vec(codes, elements, &Device::Cpu)?,
            constants: Tensor::from_vec(constants, outputs, &Device::Cpu)?,
        })
    }
}

impl Quantized for Int8 {
    fn shape(&self) -> (usize, usize) {
        (self.outputs, self.inputs)
    }

    fn device(&self) -> &Device {
        self.codes.device()
    }

    fn bytes(&self) -> usize {
        self.codes.elem_count() + self.constants.elem_count() * 4
    }

    fn fill_rows<T: Element>(&self, rows: Range<usize>, into: &mut [T]) -> Result<()> {
        self.check_rows(&rows, into.len())?;
        let first = rows.start * self.inputs;
        with_slice(&self.codes, |codes: &[u8]| {
            with_slice(&self.constants, |constants: &[f32]| {
                thread_pool::for_chunks(into, CHUNK, |chunk, elements| {
                    fill(codes, constants, self.block, first + chunk * CHUNK, elements);
                });
                Ok(())
            })
        })
    }

    fn fill_block<T: Element>(&self, rows: Range<usize>, columns: Range<usize>, into: &mut [T]) -> Result<()> {
        self.check_block(&rows, &columns, into.len())?;
        if into.is_empty() {
            return Ok(());
        }
        with_slice(&self.codes, |codes: &[u8]| {
            with_slice(&self.constants, |constants: &[f32]| {
                for (row, into) in rows.zip(into.chunks_exact_mut(columns.len())) {
                    fill(codes, constants, self.block, row * self.inputs + columns.start, into);
                }
                Ok(())
            })
        })
    }

    fn fill_int8(&self, rows: Range<usize>, columns: Range<usize>, mut into: Int8Blocks<'_>) -> Result<bool> {
        self.check_int8(&rows, &columns, &into)?;
        if !blocks_lie_in_rows(self.block, self.inputs) {
            return Ok(false);
        }
        with_slice(&self.codes, |codes: &[u8]| {
            with_slice(&self.constants, |constants: &[f32]| {
                for (row, (into, factors)) in rows.zip(into.rows(columns.len())) {
                    let first = row * self.inputs + columns.start;
                    for (code, biased) in into.iter_mut().zip(&codes[first..]) {
                        *code = (biased ^ 0x80) as i8;
                    }
                    for (index, factor) in factors.iter_mut().enumerate() {
                        *factor = constants[(first + index * BLOCK) / self.block] * INT8_STEP;
                    }
                }
                Ok(true)
            })
        })
    }

    fn rows_plain(&self, rows: Range<usize>, dtype: DType) -> Result<Tensor> {
        let elements = self.outputs * self.inputs;
        let blocks = self.constants.elem_count();
        let spread = self
            .constants
            .unsqueeze(1)?
            .broadcast_as((blocks, self.block))?
            .flatten_all()?;
        let codes = self.codes.to_dtype(DType::F32)?.affine(1.0, -f64::from(BIAS))?;
        let weight = ((codes * spread.narrow(0, 0, elements)?)? * f64::from(INT8_STEP))?;
        let weight = weight.reshape((self.outputs, self.inputs))?;
        weight.narrow(0, rows.start, rows.len())?.to_dtype(dtype)?.contiguous()
    }

    fn launch_rows(&self, rows: Range<usize>, into: &Tensor) -> Result<()> {
        self.on_gpu().widen(rows.start * self.inputs, into)
    }

    fn launch_byte_rows(&self, rows: Range<usize>, into: &ByteRows<'_>) -> Result<()> {
        self.check_rows(&rows, rows.len() * self.inputs)?;
        self.on_gpu().byte_rows(rows.start * self.inputs, rows.len(), into)
    }

    fn to_device(&self, device: &Device) -> Result<Self> {
        self.map(&mut |tensor| tensor.to_device(device))
    }
}

/// Widens elements `first..first + into.len()`, block by block; the first and the last may be cut.
fn fill<T: Element>(codes: &[u8], constants: &[f32], block: usize, first: usize, into: &mut [T]) {
    let (mut index, mut rest) = (first, into);
    while !rest.is_empty() {
        let left_in_block = block - index % block;
        let (part, tail) = rest.split_at_mut(left_in_block.min(rest.len()));
        int8_block(&codes[index..index + part.len()], constants[index / block], part);
        index += part.len();
        rest = tail;
    }
}

fn quantize_block(block: &[f32], codes: &mut [u8]) -> f32 {
    let constant = absmax(block);
    let factor = if constant > 0.0 { 127.0 / constant } else { 0.0 };
    for (code, value) in codes.iter_mut().zip(block) {
        // Added to 1.5 * 2^23, a number below 2^22 is rounded to an integer, ties to even, in the low bits. The
        // library's function is a call for each element on processors without a rounding instruction.
        let rounded = (value * factor + ROUNDER).to_bits().wrapping_sub(ROUNDER.to_bits());
        *code = rounded.wrapping_add(u32::from(BIAS)) as u8;
    }
    constant
}

#[cfg(test)]
mod tests {
    use super::super::blocks::tests::assert_rows_are_replaced;
    use super::*;

    #[test]
    fn replaced_rows_are_those_of_the_whole_weight_quantized_anew() {
        assert_rows_are_replaced(
            |weight| Int8::quantize_rows(weight).unwrap(),
            |codes, start, rows| codes.replace_rows(start, rows),
        );
    }

    #[test]
    fn the_plain_form_gives_the_same_bits() {
        for shape in [(5, 64), (6, 80), (3, 7)] {
            let weight = Tensor::rand(-1f32, 1.0, shape, &Device::Cpu).unwrap();
            let weight = Int8::quantize(&weight).unwrap();
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
