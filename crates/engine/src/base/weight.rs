//! One weight of the base model, in the storage that the precision asks for.

use candle_core::{DType, Device, Shape, Tensor};

use super::codes::Codes;
use super::quantized_rows::QuantizedRows;
use super::weight_kinds::WeightKind;
use crate::checkpoint::Checkpoint;
use crate::{TrainError, WeightsError};
use peft_tune_core::architecture::TensorShape;
use peft_tune_core::recipe::{ActivationQuantization, Precision, QuantizationAware, Recipe};
use peft_tune_kernels::ops::matmul::{Factor, QuantizedMatrix};
use peft_tune_kernels::quant::{Int8, Nf4, Sparse};

/// A weight as the precision stores it.
#[derive(Clone, Debug)]
pub(crate) enum Weight {
    /// F32, F16 or BF16.
    Dense(Tensor),
    Quantized(QuantizedRows),
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
