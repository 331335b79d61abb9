//! One weight of the base model, in the storage that the precision asks for.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};
use half::bf16;

use crate::checkpoint::Checkpoint;
use crate::{TrainError, WeightsError};
use peft_tune_core::architecture::TensorShape;
use peft_tune_core::recipe::{ActivationQuantization, Precision};
use peft_tune_kernels::ops::matmul::{Factor, QuantizedMatrix};
use peft_tune_kernels::quant::{Element, Int8, Int8Blocks, Nf4, QuantError, Quantized};

/// What a weight is stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightKind {
    /// In the compute dtype.
    Dense,
    /// Of a linear layer: quantized where the precision says so.
    Linear,
    /// F32 whatever the precision: a rounded score chooses another expert.
    Exact,
}

impl WeightKind {
    fn dtype(self, precision: Precision) -> DType {
        match self {
            Self::Exact => DType::F32,
            Self::Dense | Self::Linear => compute_dtype(precision),
        }
    }
}

/// A weight as the precision stores it.
#[derive(Clone, Debug)]
pub(crate) enum Weight {
    /// F32, F16 or BF16.
    Dense(Tensor),
    Quantized(QuantizedRows),
}

/// Rows of a quantized weight; products widen them block by block.
#[derive(Clone, Debug)]
pub(crate) struct QuantizedRows {
    codes: Codes,
    rows: Range<usize>,
    /// Compute dtype.
    dtype: DType,
    /// Which products take their activations in 8 bits.
    activations: ActivationQuantization,
}

/// A quantized weight (out, in).
#[derive(Clone, Debug)]
pub(crate) enum Codes {
    Nf4(Nf4),
    Int8(Int8),
}

impl Codes {
    fn quantize(weight: &Tensor, precision: Precision) -> Result<Option<Self>, QuantError> {
        Ok(match precision {
            Precision::Nf4 => Some(Self::Nf4(Nf4::quantize(weight, false)?)),
            Precision::Nf4Double => Some(Self::Nf4(Nf4::quantize(weight, true)?)),
            Precision::Int8 => Some(Self::Int8(Int8::quantize(weight)?)),
            Precision::Fp32 | Precision::Bf16 | Precision::Fp16 => None,
        })
    }

    /// The weight `name` as bitsandbytes left it in `checkpoint`; `None` where it is dense there.
    fn read(checkpoint: &Checkpoint, name: &str) -> Result<Option<Self>, QuantError> {
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

    fn shape(&self) -> (usize, usize) {
        match self {
            Self::Nf4(codes) => codes.shape(),
            Self::Int8(codes) => codes.shape(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Nf4(codes) => codes.bytes(),
            Self::Int8(codes) => codes.bytes(),
        }
    }

    fn widened(&self, rows: Range<usize>, dtype: DType) -> candle_core::Result<Tensor> {
        match self {
            Self::Nf4(codes) => codes.dequantize_rows(rows, dtype),
            Self::Int8(codes) => codes.dequantize_rows(rows, dtype),
        }
    }

    fn fill(&self, rows: Range<usize>, into: &Tensor) -> candle_core::Result<()> {
        match self {
            Self::Nf4(codes) => codes.dequantize_rows_into(rows, into),
            Self::Int8(codes) => codes.dequantize_rows_into(rows, into),
        }
    }

    fn fill_block<T: Element>(
        &self,
        rows: Range<usize>,
        columns: Range<usize>,
        into: &mut [T],
    ) -> candle_core::Result<()> {
        match self {
            Self::Nf4(codes) => codes.fill_block(rows, columns, into),
            Self::Int8(codes) => codes.fill_block(rows, columns, into),
        }
    }

    fn fill_int8(&self, rows: Range<usize>, columns: Range<usize>, into: Int8Blocks<'_>) -> candle_core::Result<bool> {
        match self {
            Self::Nf4(codes) => codes.fill_int8(rows, columns, into),
            Self::Int8(codes) => codes.fill_int8(rows, columns, into),
        }
    }

    fn is_on_cpu(&self) -> bool {
        match self {
            Self::Nf4(codes) => codes.device().is_cpu(),
            Self::Int8(codes) => codes.device().is_cpu(),
        }
    }

    fn to_device(&self, device: &Device) -> candle_core::Result<Self> {
        Ok(match self {
            Self::Nf4(codes) => Self::Nf4(codes.to_device(device)?),
            Self::Int8(codes) => Self::Int8(codes.to_device(device)?),
        })
    }

    /// Whether these are the codes that `precision` would make; nf4 with plain and with nested constants both are
    /// what a 4-bit precision asks for.
    fn serves(&self, precision: Precision) -> bool {
        match self {
            Self::Nf4(_) => matches!(precision, Precision::Nf4 | Precision::Nf4Double),
            Self::Int8(_) => precision == Precision::Int8,
        }
    }
}

impl Weight {
    /// Reads `tensor` from `checkpoint` into the storage of `precision`. Linear layers of the decoder are quantized;
    /// embedding, LM head, norms and biases never are. A checkpoint that bitsandbytes quantized keeps its codes where
    /// they are what the precision asks for, and is widened where not. What others quantized is widened.
    pub(crate) fn load(
        checkpoint: &Checkpoint,
        tensor: &TensorShape,
        kind: WeightKind,
        precision: Precision,
        device: &Device,
    ) -> Result<Self, TrainError> {
        let dtype = kind.dtype(precision);
        let named = |source| WeightsError::Quantized {
            tensor: tensor.name.clone(),
            source,
        };
        if let Some(codes) = Codes::read(checkpoint, &tensor.name).map_err(named)? {
            let (rows, columns) = codes.shape();
            if tensor.shape != [rows, columns] {
                return Err(WeightsError::Shape {
                    path: checkpoint.path().to_owned(),
                    tensor: tensor.name.clone(),
                    expected: tensor.shape.clone(),
                    got: vec![rows, columns],
                }
                .into());
            }
            if codes.serves(precision) && kind == WeightKind::Linear {
                return Ok(Self::quantized(codes.to_device(device)?, dtype));
            }
            let wide = codes.widened(0..rows, DType::F32)?;
            return Self::store(wide, &tensor.name, kind, precision, device);
        }
        if let Some(wide) = checkpoint.packed(&tensor.name, &tensor.shape)? {
            return Self::store(wide, &tensor.name, kind, precision, device);
        }
        if kind == WeightKind::Linear && precision.is_quantized() {
            let wide = checkpoint.tensor(&tensor.name, &tensor.shape, DType::F32, &Device::Cpu)?;
            return Self::store(wide, &tensor.name, kind, precision, device);
        }
        let dense = checkpoint.tensor(&tensor.name, &tensor.shape, dtype, device)?;
        Ok(Self::Dense(dense))
    }

    /// Puts `value` into the storage of `precision`; see [`Weight::load`].
    pub(crate) fn store(
        value: Tensor,
        name: &str,
        kind: WeightKind,
        precision: Precision,
        device: &Device,
    ) -> Result<Self, TrainError> {
        let dtype = kind.dtype(precision);
        let codes = match kind {
            WeightKind::Linear => Codes::quantize(&value, precision).map_err(|source| WeightsError::Quantized {
                tensor: name.to_owned(),
                source,
            })?,
            WeightKind::Dense | WeightKind::Exact => None,
        };
        Ok(match codes {
            Some(codes) => Self::quantized(codes.to_device(device)?, dtype),
            None => Self::Dense(value.to_device(device)?.to_dtype(dtype)?.contiguous()?),
        })
    }

    fn quantized(codes: Codes, dtype: DType) -> Self {
        let rows = 0..codes.shape().0;
        Self::Quantized(QuantizedRows {
            codes,
            rows,
            dtype,
            activations: ActivationQuantization::None,
        })
    }

    /// The same weight for products that take their activations in 8 bits; a dense one as it is.
    pub(crate) fn with_activations(self, activations: ActivationQuantization) -> Self {
        match self {
            Self::Dense(tensor) => Self::Dense(tensor),
            Self::Quantized(weight) => Self::Quantized(QuantizedRows { activations, ..weight }),
        }
    }

    /// Bytes of the whole weight with its block constants.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Dense(tensor) => tensor.elem_count() * tensor.dtype().size_in_bytes(),
            Self::Quantized(weight) => weight.codes.bytes(),
        }
    }

    /// Rows `start..start + rows`, without a copy.
    pub(crate) fn rows(&self, start: usize, rows: usize) -> candle_core::Result<Self> {
        Ok(match self {
            Self::Dense(tensor) => Self::Dense(tensor.narrow(0, start, rows)?),
            Self::Quantized(weight) => {
                let start = weight.rows.start + start;
                Self::Quantized(QuantizedRows {
                    rows: start..start + rows,
                    ..weight.clone()
                })
            }
        })
    }

    /// The weight with all the precision it has: as it is stored or, where it is quantized, in F32.
    pub(crate) fn exact(&self) -> candle_core::Result<Tensor> {
        match self {
            Self::Dense(tensor) => Ok(tensor.clone()),
            Self::Quantized(weight) => weight.dense(DType::F32),
        }
    }

    /// The weight as one dense tensor in the compute dtype; a copy only where it is quantized.
    pub(crate) fn dense(&self) -> candle_core::Result<Tensor> {
        match self {
            Self::Dense(tensor) => Ok(tensor.clone()),
            Self::Quantized(weight) => weight.dense(weight.dtype),
        }
    }

    /// The weight as the right operand of a product; never a copy.
    pub(crate) fn factor(&self) -> Factor<'_> {
        match self {
            Self::Dense(tensor) => Factor::Dense(tensor),
            Self::Quantized(weight) => Factor::QuantizedMatrix(weight),
        }
    }
}

impl QuantizedRows {
    /// `rows` of this weight as rows of the whole one.
    fn of_whole(&self, rows: Range<usize>) -> Range<usize> {
        self.rows.start + rows.start..self.rows.start + rows.end
    }
}

impl QuantizedMatrix for QuantizedRows {
    fn dims2(&self) -> (usize, usize) {
        (self.rows.len(), self.codes.shape().1)
    }

    fn bytes(&self) -> usize {
        // Of the rows only: their part of the whole.
        self.codes.bytes() * self.rows.len() / self.codes.shape().0.max(1)
    }

    fn storage(&self) -> &'static str {
        match self.codes {
            Codes::Nf4(_) => "nf4",
            Codes::Int8(_) => "int8",
        }
    }

    fn activations(&self) -> ActivationQuantization {
        self.activations
    }

    fn fill_int8(&self, rows: Range<usize>, columns: Range<usize>, into: Int8Blocks<'_>) -> candle_core::Result<bool> {
        self.codes.fill_int8(self.of_whole(rows), columns, into)
    }

    fn is_on_cpu(&self) -> bool {
        self.codes.is_on_cpu()
    }

    fn dense(&self, dtype: DType) -> candle_core::Result<Tensor> {
        self.codes.widened(self.rows.clone(), dtype)
    }

    fn fill(&self, into: &Tensor) -> candle_core::Result<()> {
        self.codes.fill(self.rows.clone(), into)
    }

    fn fill_f32(&self, rows: Range<usize>, columns: Range<usize>, into: &mut [f32]) -> candle_core::Result<()> {
        self.codes.fill_block(self.of_whole(rows), columns, into)
    }

    fn fill_bf16(&self, rows: Range<usize>, columns: Range<usize>, into: &mut [bf16]) -> candle_core::Result<()> {
        self.codes.fill_block(self.of_whole(rows), columns, into)
    }
}

/// Dtype in which a precision computes.
pub(crate) fn compute_dtype(precision: Precision) -> DType {
    match precision.compute() {
        Precision::Fp32 => DType::F32,
        Precision::Fp16 => DType::F16,
        _ => DType::BF16,
    }
}
