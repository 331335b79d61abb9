//! One weight of the base model, in the storage that the precision asks for.

use std::ops::Range;

use candle_core::{DType, Device, Shape, Tensor};
use half::bf16;

use crate::checkpoint::Checkpoint;
use crate::{TrainError, WeightsError};
use peft_tune_core::architecture::TensorShape;
use peft_tune_core::recipe::{ActivationQuantization, Precision, QuantizationAware, Recipe};
use peft_tune_kernels::ops::matmul::{Factor, QuantizedMatrix};
use peft_tune_kernels::quant::{ByteRows, Element, Int8, Int8Blocks, Nf4, QuantError, Quantized, Sparse};

/// Storage of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightKind {
    /// Values in the compute dtype.
    Dense,
    /// Weight of a linear layer: quantized where the precision says so.
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

/// Rows of a quantized or sparse weight; products widen them block by block.
#[derive(Clone, Debug)]
pub(crate) struct QuantizedRows {
    codes: Codes,
    rows: Range<usize>,
    /// Compute dtype.
    dtype: DType,
    /// Quantization of the activations that products with the weight take.
    activations: ActivationQuantization,
}

/// A quantized or sparse weight (out, in).
#[derive(Clone, Debug)]
pub(crate) enum Codes {
    Nf4(Nf4),
    Int8(Int8),
    /// Values as they are, of which two of each four are left out.
    Sparse(Sparse),
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

    /// Zeros in the form of a merged model; `None` where merged models are not quantized.
    fn zeros(shape: (usize, usize), form: QuantizationAware, device: &Device) -> candle_core::Result<Option<Self>> {
        Ok(match form {
            QuantizationAware::Int8 => Some(Self::Int8(Int8::zeros_in_rows(shape, device)?)),
            QuantizationAware::Nf4 => Some(Self::Nf4(Nf4::zeros(shape, device)?)),
            QuantizationAware::None => None,
        })
    }

    /// Zeros in the form of a merged model, on paper; `None` where merged models are not quantized.
    fn merged_on_paper(shape: (usize, usize), form: QuantizationAware) -> candle_core::Result<Option<Self>> {
        Ok(match form {
            QuantizationAware::Int8 => Some(Self::Int8(Int8::on_paper_in_rows(shape)?)),
            QuantizationAware::Nf4 => Some(Self::Nf4(Nf4::on_paper(shape, false)?)),
            QuantizationAware::None => None,
        })
    }

    fn replace_rows(&self, start: usize, rows: &Tensor) -> Result<(), QuantError> {
        match self {
            Self::Nf4(codes) => codes.replace_rows(start, rows),
            Self::Int8(codes) => codes.replace_rows(start, rows),
            Self::Sparse(_) => {
                let message = "sparse values have no codes to replace".to_owned();
                Err(candle_core::Error::Msg(message).into())
            }
        }
    }

    fn shape(&self) -> (usize, usize) {
        match self {
            Self::Nf4(codes) => codes.shape(),
            Self::Int8(codes) => codes.shape(),
            Self::Sparse(codes) => codes.shape(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Nf4(codes) => codes.bytes(),
            Self::Int8(codes) => codes.bytes(),
            Self::Sparse(codes) => codes.bytes(),
        }
    }

    fn widened(&self, rows: Range<usize>, dtype: DType) -> candle_core::Result<Tensor> {
        match self {
            Self::Nf4(codes) => codes.dequantize_rows(rows, dtype),
            Self::Int8(codes) => codes.dequantize_rows(rows, dtype),
            Self::Sparse(codes) => codes.dequantize_rows(rows, dtype),
        }
    }

    fn fill(&self, rows: Range<usize>, into: &Tensor) -> candle_core::Result<()> {
        match self {
            Self::Nf4(codes) => codes.dequantize_rows_into(rows, into),
            Self::Int8(codes) => codes.dequantize_rows_into(rows, into),
            Self::Sparse(codes) => codes.dequantize_rows_into(rows, into),
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
            Self::Sparse(codes) => codes.fill_block(rows, columns, into),
        }
    }

    fn fill_int8(&self, rows: Range<usize>, columns: Range<usize>, into: Int8Blocks<'_>) -> candle_core::Result<bool> {
        match self {
            Self::Nf4(codes) => codes.fill_int8(rows, columns, into),
            Self::Int8(codes) => codes.fill_int8(rows, columns, into),
            Self::Sparse(codes) => codes.fill_int8(rows, columns, into),
        }
    }

    fn fill_byte_rows(&self, rows: Range<usize>, into: &ByteRows<'_>) -> candle_core::Result<()> {
        match self {
            Self::Nf4(codes) => codes.launch_byte_rows(rows, into),
            Self::Int8(codes) => codes.launch_byte_rows(rows, into),
            Self::Sparse(codes) => codes.launch_byte_rows(rows, into),
        }
    }

    fn is_on_cpu(&self) -> bool {
        match self {
            Self::Nf4(codes) => codes.device().is_cpu(),
            Self::Int8(codes) => codes.device().is_cpu(),
            Self::Sparse(codes) => codes.device().is_cpu(),
        }
    }

    fn to_device(&self, device: &Device) -> candle_core::Result<Self> {
        Ok(match self {
            Self::Nf4(codes) => Self::Nf4(codes.to_device(device)?),
            Self::Int8(codes) => Self::Int8(codes.to_device(device)?),
            Self::Sparse(codes) => Self::Sparse(codes.to_device(device)?),
        })
    }

    fn map(&self, change: &mut dyn FnMut(&Tensor) -> candle_core::Result<Tensor>) -> candle_core::Result<Self> {
        Ok(match self {
            Self::Nf4(codes) => Self::Nf4(codes.map(change)?),
            Self::Int8(codes) => Self::Int8(codes.map(change)?),
            Self::Sparse(codes) => Self::Sparse(codes.map(change)?),
        })
    }

    /// Whether these are the codes that `precision` would make; nf4 with plain and with nested constants both are
    /// what a 4-bit precision asks for.
    fn serves(&self, precision: Precision) -> bool {
        match self {
            Self::Nf4(_) => matches!(precision, Precision::Nf4 | Precision::Nf4Double),
            Self::Int8(_) => precision == Precision::Int8,
            // Made of dense weights, never read.
            Self::Sparse(_) => false,
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

    /// A weight on paper, in the storage that `recipe` asks for: all of it but memory.
    ///
    /// # Errors
    /// A matrix that is quantized or sparse and has no two dimensions.
    pub(crate) fn on_paper(shape: &[usize], kind: WeightKind, recipe: &Recipe) -> candle_core::Result<Self> {
        let (dtype, shape) = (kind.dtype(recipe.precision), Shape::from(shape));
        let codes = match (kind, recipe.precision, recipe.weight_sparsity.is_none()) {
            (WeightKind::Linear, _, false) => Some(Codes::Sparse(Sparse::on_paper(shape.dims2()?, dtype)?)),
            (WeightKind::Linear, Precision::Nf4, _) => Some(Codes::Nf4(Nf4::on_paper(shape.dims2()?, false)?)),
            (WeightKind::Linear, Precision::Nf4Double, _) => Some(Codes::Nf4(Nf4::on_paper(shape.dims2()?, true)?)),
            (WeightKind::Linear, Precision::Int8, _) => Some(Codes::Int8(Int8::on_paper(shape.dims2()?)?)),
            _ => None,
        };
        Ok(match codes {
            Some(codes) => Self::quantized(codes, dtype),
            None => Self::Dense(crate::tensor::on_paper(shape, dtype)?),
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

    /// Codes of zeros (out, in) in the form of a merged model, multiplied in `dtype`; `None` where merged models are not quantized.
    ///
    /// # Errors
    /// Memory.
    pub(crate) fn zeros(
        shape: (usize, usize),
        form: QuantizationAware,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Option<Self>> {
        let codes = Codes::zeros(shape, form, device)?;
        Ok(codes.map(|codes| Self::quantized(codes, dtype)))
    }

    /// Weight of zeros in the form of a merged model, on paper; see [`Weight::zeros`].
    ///
    /// # Errors
    /// Those of candle.
    pub(crate) fn merged_on_paper(
        shape: (usize, usize),
        form: QuantizationAware,
        dtype: DType,
    ) -> candle_core::Result<Option<Self>> {
        let codes = Codes::merged_on_paper(shape, form)?;
        Ok(codes.map(|codes| Self::quantized(codes, dtype)))
    }

    /// Quantizes `rows` in place of those from `start` on of a weight that [`Weight::zeros`] made: whatever shares the codes sees
    /// them change. Rows with a value that is not finite are not-a-number from then on.
    ///
    /// # Errors
    /// Rows of another shape, or within blocks; a dense weight.
    pub(crate) fn replace_rows(&self, start: usize, rows: &Tensor) -> candle_core::Result<()> {
        let Self::Quantized(weight) = self else {
            candle_core::bail!("a dense weight has no codes to replace");
        };
        let replaced = weight.codes.replace_rows(weight.rows.start + start, rows);
        replaced.map_err(candle_core::Error::wrap)
    }

    /// Weight for products that take their activations in 8 bits; a dense one as it is.
    pub(crate) fn with_activations(self, activations: ActivationQuantization) -> Self {
        match self {
            Self::Dense(tensor) => Self::Dense(tensor),
            Self::Quantized(weight) => Self::Quantized(QuantizedRows { activations, ..weight }),
        }
    }

    /// Compresses the weight to two of each four values of a row, those of the largest scores; see
    /// [`Sparse::compress`]. A weight that is compressed already stays as it is.
    ///
    /// # Errors
    /// Errors of [`Sparse::compress`]; `name` is the weight's.
    pub(crate) fn sparsified(&self, name: &str, decides: DType, norms: Option<&[f32]>) -> Result<Self, TrainError> {
        let Self::Dense(tensor) = self else {
            return Ok(self.clone());
        };
        let sparse = Sparse::compress(tensor, decides, norms).map_err(|source| WeightsError::Quantized {
            tensor: name.to_owned(),
            source,
        })?;
        Ok(Self::quantized(Codes::Sparse(sparse), tensor.dtype()))
    }

    /// Puts the weight on other tensors: what `change` makes of each of its own, in their order; of the same shape and
    /// dtype.
    pub(crate) fn map(
        &self,
        change: &mut dyn FnMut(&Tensor) -> candle_core::Result<Tensor>,
    ) -> candle_core::Result<Self> {
        Ok(match self {
            Self::Dense(tensor) => Self::Dense(change(tensor)?),
            Self::Quantized(weight) => Self::Quantized(QuantizedRows {
                codes: weight.codes.map(change)?,
                rows: weight.rows.clone(),
                ..*weight
            }),
        })
    }

    /// The tensors that it consists of, in the order of [`Weight::map`].
    pub(crate) fn tensors(&self) -> candle_core::Result<Vec<Tensor>> {
        let mut all = Vec::new();
        self.map(&mut |tensor| {
            all.push(tensor.clone());
            Ok(tensor.clone())
        })?;
        Ok(all)
    }

    /// A weight of the same shapes and dtypes that holds no memory.
    pub(crate) fn without_values(&self) -> candle_core::Result<Self> {
        self.map(&mut |tensor| Tensor::zeros((), tensor.dtype(), tensor.device())?.broadcast_as(tensor.shape()))
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
            Self::Quantized(weight) => weight.dense(match &weight.codes {
                Codes::Sparse(values) => values.dtype(),
                Codes::Nf4(_) | Codes::Int8(_) => DType::F32,
            }),
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
            Codes::Sparse(ref values) => match values.dtype() {
                DType::BF16 => "sparse_bf16",
                DType::F16 => "sparse_fp16",
                _ => "sparse_fp32",
            },
        }
    }

    fn activations(&self) -> ActivationQuantization {
        self.activations
    }

    fn fill_int8(&self, rows: Range<usize>, columns: Range<usize>, into: Int8Blocks<'_>) -> candle_core::Result<bool> {
        self.codes.fill_int8(self.of_whole(rows), columns, into)
    }

    fn fill_byte_rows(&self, into: &ByteRows<'_>) -> candle_core::Result<()> {
        self.codes.fill_byte_rows(self.rows.clone(), into)
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

#[cfg(test)]
mod tests {
    use peft_tune_kernels::ops::matmul::{Term, nn_sum, nt_sum};

    use super::*;

    fn values(rows: usize, columns: usize, seed: usize) -> Vec<f32> {
        let value = |index: usize| ((index * 2_654_435_761 + seed * 40_503) % 2003) as f32 / 1001.0 - 1.0;
        (0..rows * columns).map(value).collect()
    }

    /// The value that stays, 0 for what is left out: a loop over the group in F64.
    fn kept(weight: &[f64], column: usize) -> f64 {
        let first = column / 4 * 4;
        let larger = |other: &usize| {
            let (own, other_size) = (weight[column].abs(), weight[*other].abs());
            other_size > own || (other_size == own && *other < column)
        };
        match (first..first + 4).filter(larger).count() < 2 {
            true => weight[column],
            false => 0.0,
        }
    }

    /// x W^T and dy W of a sparse weight, against loops in F64, and in every bit those of the dense weight of the same values.
    #[test]
    fn products_of_a_sparse_weight_are_those_of_the_masked_one() {
        // Rows below and above those of AMX; groups that end within a vector, a micro-panel and a KC block.
        for [tokens, outputs, inputs] in [[3, 8, 12], [20, 50, 100], [64, 130, 1036], [33, 1100, 36], [40, 96, 4]] {
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                let tensor = |rows, columns, seed| {
                    let values = values(rows, columns, seed);
                    let tensor = Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap();
                    tensor.to_dtype(dtype).unwrap()
                };
                let wide = |tensor: &Tensor| -> Vec<Vec<f64>> {
                    let rows = tensor.to_dtype(DType::F32).unwrap().to_vec2::<f32>().unwrap();
                    rows.into_iter()
                        .map(|row| row.into_iter().map(f64::from).collect())
                        .collect()
                };
                let (x, dy, w) = (
                    tensor(tokens, inputs, 1),
                    tensor(tokens, outputs, 2),
                    tensor(outputs, inputs, 3),
                );
                let sparse = Weight::Dense(w.clone()).sparsified("w", dtype, None).unwrap();
                let rows = wide(&w).into_iter();
                let masked: Vec<Vec<f64>> = rows.map(|row| (0..inputs).map(|at| kept(&row, at)).collect()).collect();
                assert_eq!(wide(&sparse.dense().unwrap()), masked);
                let y = nt_sum(&[Term::new(&x, sparse.factor(), 1.0)]).unwrap();
                let dx = nn_sum(&[Term::new(&dy, sparse.factor(), 1.0)]).unwrap();
                // To the bit.
                let dense = sparse.dense().unwrap();
                assert_eq!(wide(&y), wide(&nt_sum(&[Term::new(&x, &dense, 1.0)]).unwrap()));
                assert_eq!(wide(&dx), wide(&nn_sum(&[Term::new(&dy, &dense, 1.0)]).unwrap()));
                let tolerance = match dtype {
                    DType::F32 => 1e-5,
                    _ => 1e-2,
                };
                let close = |got: f64, expected: f64, size: f64| (got - expected).abs() <= tolerance * size.max(1.0);
                let (x, dy) = (wide(&x), wide(&dy));
                for (token, row) in wide(&y).iter().enumerate() {
                    for (output, got) in row.iter().enumerate() {
                        let terms = x[token].iter().zip(&masked[output]).map(|(x, w)| x * w);
                        let (sum, size) =
                            terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + f64::abs(term)));
                        assert!(close(*got, sum, size), "{dtype:?} y {token} {output}: {got} {sum}");
                    }
                }
                for (token, row) in wide(&dx).iter().enumerate() {
                    for (input, got) in row.iter().enumerate() {
                        let terms = dy[token].iter().zip(&masked).map(|(dy, w)| dy * w[input]);
                        let (sum, size) =
                            terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + f64::abs(term)));
                        assert!(close(*got, sum, size), "{dtype:?} dx {token} {input}: {got} {sum}");
                    }
                }
            }
        }
    }

    #[test]
    fn rows_of_a_sparse_weight_are_those_of_the_whole() {
        let w = Tensor::from_vec(values(12, 20, 5), (12, 20), &Device::Cpu).unwrap();
        let sparse = Weight::Dense(w).sparsified("w", DType::F32, None).unwrap();
        let whole = sparse.dense().unwrap().to_vec2::<f32>().unwrap();
        let part = sparse.rows(5, 4).unwrap();
        assert_eq!(part.dense().unwrap().to_vec2::<f32>().unwrap(), whole[5..9]);
        assert_eq!(sparse.bytes(), 12 * 20 / 2 * 4 + 12 * 20 / 8);
        // What is sparse already stays as it is, and codes are none of its business.
        let again = sparse.sparsified("w", DType::F32, None).unwrap();
        assert_eq!(again.dense().unwrap().to_vec2::<f32>().unwrap(), whole);
        assert_eq!(sparse.exact().unwrap().dtype(), DType::F32);
    }
}
