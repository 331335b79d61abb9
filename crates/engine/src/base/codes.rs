//! Codes of a weight, in one of the forms that products widen.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};

use crate::checkpoint::Checkpoint;
use peft_tune_core::recipe::{Precision, QuantizationAware};
use peft_tune_kernels::quant::{ByteRows, Element, Int8, Int8Blocks, Nf4, QuantError, Quantized, Sparse};

/// A quantized or sparse weight (out, in).
#[derive(Clone, Debug)]
pub(crate) enum Codes {
    Nf4(Nf4),
    Int8(Int8),
    /// Values as they are, of which two of each four are left out.
    Sparse(Sparse),
}

impl Codes {
    pub(super) fn quantize(weight: &Tensor, precision: Precision) -> Result<Option<Self>, QuantError> {
        Ok(match precision {
            Precision::Nf4 => Some(Self::Nf4(Nf4::quantize(weight, false)?)),
            Precision::Nf4Double => Some(Self::Nf4(Nf4::quantize(weight, true)?)),
            Precision::Int8 => Some(Self::Int8(Int8::quantize(weight)?)),
            Precision::Fp32 | Precision::Bf16 | Precision::Fp16 => None,
        })
    }

    /// The weight `name` as bitsandbytes left it in `checkpoint`; `None` where it is dense there.
    pub(super) fn read(checkpoint: &Checkpoint, name: &str) -> Result<Option<Self>, QuantError> {
        let codes = Self::read_codes(checkpoint, name)?;
        checkpoint.let_go(name);
        Ok(codes)
    }

    fn read_codes(checkpoint: &Checkpoint, name: &str) -> Result<Option<Self>, QuantError> {
        let find = |name: &str| checkpoint.raw(name);
        if checkpoint.contains(&format!("{name}.quant_state.bitsandbytes__nf4")) {
            return Nf4::from_bitsandbytes(name, find).map(|codes| Some(Self::Nf4(codes)));
        }
        let scales = name.strip_suffix("weight").map(|module| format!("{module}SCB"));
        if scales.is_some_and(|scales| checkpoint.contains(&scales)) {
            return Int8::from_bitsandbytes(name, find).map(|codes| Some(Self::Int8(codes)));
        }
        Ok(None)
    }

    /// Zeros in the form of a merged model; `None` where merged models are not quantized.
    pub(super) fn zeros(
        shape: (usize, usize),
        form: QuantizationAware,
        device: &Device,
    ) -> candle_core::Result<Option<Self>> {
        Ok(match form {
            QuantizationAware::Int8 => Some(Self::Int8(Int8::zeros_in_rows(shape, device)?)),
            QuantizationAware::Nf4 => Some(Self::Nf4(Nf4::zeros(shape, device)?)),
            QuantizationAware::None => None,
        })
    }

    /// Zeros in the form of a merged model, on paper; `None` where merged models are not quantized.
    pub(super) fn merged_on_paper(shape: (usize, usize), form: QuantizationAware) -> candle_core::Result<Option<Self>> {
        Ok(match form {
            QuantizationAware::Int8 => Some(Self::Int8(Int8::on_paper_in_rows(shape)?)),
            QuantizationAware::Nf4 => Some(Self::Nf4(Nf4::on_paper(shape, false)?)),
            QuantizationAware::None => None,
        })
    }

    pub(super) fn replace_rows(&self, start: usize, rows: &Tensor) -> Result<(), QuantError> {
        match self {
            Self::Nf4(codes) => codes.replace_rows(start, rows),
            Self::Int8(codes) => codes.replace_rows(start, rows),
            Self::Sparse(_) => {
                let message = "sparse values have no codes to replace".to_owned();
                Err(candle_core::Error::Msg(message).into())
            }
        }
    }

    pub(super) fn shape(&self) -> (usize, usize) {
        match self {
            Self::Nf4(codes) => codes.shape(),
            Self::Int8(codes) => codes.shape(),
            Self::Sparse(codes) => codes.shape(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Nf4(codes) => codes.bytes(),
            Self::Int8(codes) => codes.bytes(),
            Self::Sparse(codes) => codes.bytes(),
        }
    }

    pub(super) fn widened(&self, rows: Range<usize>, dtype: DType) -> candle_core::Result<Tensor> {
        match self {
            Self::Nf4(codes) => codes.dequantize_rows(rows, dtype),
            Self::Int8(codes) => codes.dequantize_rows(rows, dtype),
            Self::Sparse(codes) => codes.dequantize_rows(rows, dtype),
        }
    }

    pub(super) fn fill(&self, rows: Range<usize>, into: &Tensor) -> candle_core::Result<()> {
        match self {
            Self::Nf4(codes) => codes.dequantize_rows_into(rows, into),
            Self::Int8(codes) => codes.dequantize_rows_into(rows, into),
            Self::Sparse(codes) => codes.dequantize_rows_into(rows, into),
        }
    }

    pub(super) fn fill_block<T: Element>(
        &self,
        rows: Range<usize>,
        columns: Range<usize>,
        into: &mut [T],
    ) -> candle_core::Result<()> {
        match self {
            Self::Nf4(codes) => codes.fill_block(rows, columns, into),
            Self::Int8(codes) => codes.fill_block(rows, columns, into),
            Self::Sparse(codes) => codes.fill_block(rows, columns, into),
        }
    }

    pub(super) fn fill_int8(
        &self,
        rows: Range<usize>,
        columns: Range<usize>,
        into: Int8Blocks<'_>,
    ) -> candle_core::Result<bool> {
        match self {
            Self::Nf4(codes) => codes.fill_int8(rows, columns, into),
            Self::Int8(codes) => codes.fill_int8(rows, columns, into),
            Self::Sparse(codes) => codes.fill_int8(rows, columns, into),
        }
    }

    pub(super) fn fill_byte_rows(&self, rows: Range<usize>, into: &ByteRows<'_>) -> candle_core::Result<()> {
        match self {
            Self::Nf4(codes) => codes.launch_byte_rows(rows, into),
            Self::Int8(codes) => codes.launch_byte_rows(rows, into),
            Self::Sparse(codes) => codes.launch_byte_rows(rows, into),
        }
    }

    pub(super) fn is_on_cpu(&self) -> bool {
        match self {
            Self::Nf4(codes) => codes.device().is_cpu(),
            Self::Int8(codes) => codes.device().is_cpu(),
            Self::Sparse(codes) => codes.device().is_cpu(),
        }
    }

    pub(super) fn to_device(&self, device: &Device) -> candle_core::Result<Self> {
        Ok(match self {
            Self::Nf4(codes) => Self::Nf4(codes.to_device(device)?),
            Self::Int8(codes) => Self::Int8(codes.to_device(device)?),
            Self::Sparse(codes) => Self::Sparse(codes.to_device(device)?),
        })
    }

    pub(super) fn map(
        &self,
        change: &mut dyn FnMut(&Tensor) -> candle_core::Result<Tensor>,
    ) -> candle_core::Result<Self> {
        Ok(match self {
            Self::Nf4(codes) => Self::Nf4(codes.map(change)?),
            Self::Int8(codes) => Self::Int8(codes.map(change)?),
            Self::Sparse(codes) => Self::Sparse(codes.map(change)?),
        })
    }

    /// Whether these are the codes that `precision` would make; nf4 with plain and with nested constants both are
    /// what a 4-bit precision asks for.
    pub(super) fn serves(&self, precision: Precision) -> bool {
        match self {
            Self::Nf4(_) => matches!(precision, Precision::Nf4 | Precision::Nf4Double),
            Self::Int8(_) => precision == Precision::Int8,
            // Made of dense weights, never read.
            Self::Sparse(_) => false,
        }
    }
}
