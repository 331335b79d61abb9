//! PiSSA (arXiv:2404.02948): an adapter that starts as the principal part of its weight.
//!
//! With W = U diag(s) V^T, s falling, and the r leading triples: lora_b = U_r diag(sqrt(s_r / scaling)),
//! lora_a = diag(sqrt(s_r / scaling)) V_r^T, and the frozen weight becomes W - scaling lora_b lora_a. The decomposition
//! is exact and in F64 (PEFT's `init_lora_weights="pissa"`); a pair of singular vectors may have the other sign than
//! PEFT's, which changes neither product nor training.

use candle_core::{DType, Device, Tensor};
use faer::Mat;
use rayon::prelude::*;

use crate::Parameters;

use super::error::AdapterError;
use super::init::set;
use peft_tune_core::plan::{AdaptedLinear, AdapterPlan, AdapterSlots};

/// A weight split into its principal part and the rest; all F32 on the CPU.
#[derive(Clone, Debug)]
pub struct Pissa {
    /// (r, in)
    pub lora_a: Tensor,
    /// (out, r)
    pub lora_b: Tensor,
    /// (out, in): what stays frozen.
    pub residual: Tensor,
}

impl Pissa {
    /// Splits the weight (out, in) of a linear.
    ///
    /// # Errors
    /// A weight of another shape, or one without a decomposition because it is not finite.
    pub fn new(linear: &AdaptedLinear, weight: &Tensor) -> Result<Self, AdapterError> {
        let (outputs, inputs, rank) = (linear.linear.outputs, linear.linear.inputs, linear.rank);
        if weight.dims() != [outputs, inputs] {
            return Err(AdapterError::WeightShape {
                name: linear.linear.name.clone(),
                got: weight.dims().to_vec(),
                expected: vec![outputs, inputs],
            });
        }
        let weight = weight.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
        let rows: Vec<Vec<f32>> = weight.to_vec2()?;
        let no_decomposition = || AdapterError::NoDecomposition {
            name: linear.linear.name.clone(),
        };
        if rows.iter().flatten().any(|value| !value.is_finite()) {
            return Err(no_decomposition());
        }
        let matrix = Mat::from_fn(outputs, inputs, |row, column| f64::from(rows[row][column]));
        let svd = matrix.thin_svd().map_err(|_| no_decomposition())?;
        let (left, right, singular) = (svd.U(), svd.V(), svd.S().column_vector());
        let root = |component: usize| (singular[component] / linear.scaling).sqrt();
        let lora_a: Vec<f32> = (0..rank * inputs)
            .map(|index| (root(index / inputs) * right[(index % inputs, index / inputs)]) as f32)
            .collect();
        let lora_b: Vec<f32> = (0..outputs * rank)
            .map(|index| (root(index % rank) * left[(index / rank, index % rank)]) as f32)
            .collect();
        let lora_a = Tensor::from_vec(lora_a, (rank, inputs), &Device::Cpu)?;
        let lora_b = Tensor::from_vec(lora_b, (outputs, rank), &Device::Cpu)?;
        let residual = (weight - (lora_b.matmul(&lora_a)? * linear.scaling)?)?;
        Ok(Self {
            lora_a,
            lora_b,
            residual,
        })
    }
}

/// Fills every adapter with the principal part of its weight and returns the residual weights, in the order of the
/// plan's linears. `weight` gives the weight of a module name as the base model has it.
///
/// # Errors
/// Those of `weight` and of [`Pissa::new`].
pub fn fill_pissa(
    plan: &AdapterPlan,
    slots: &AdapterSlots,
    parameters: &Parameters,
    weight: impl Fn(&str) -> Result<Tensor, AdapterError> + Sync,
) -> Result<Vec<Tensor>, AdapterError> {
    // One decomposition a thread: faer's own threads would wait for each other on matrices of this size.
    let split = |linear: &AdaptedLinear| Pissa::new(linear, &weight(&linear.linear.name)?);
    let parts: Vec<Pissa> = plan.linears.par_iter().map(split).collect::<Result<_, _>>()?;
    let mut residuals = Vec::with_capacity(parts.len());
    for (slots, part) in slots.linears.iter().zip(parts) {
        set(parameters, slots.lora_a, part.lora_a.flatten_all()?.to_vec1()?)?;
        set(parameters, slots.lora_b, part.lora_b.flatten_all()?.to_vec1()?)?;
        residuals.push(part.residual);
    }
    Ok(residuals)
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::plan::LinearShape;
    use proptest::prelude::*;

    fn linear(outputs: usize, inputs: usize, rank: usize, scaling: f64) -> AdaptedLinear {
        AdaptedLinear {
            linear: LinearShape {
                name: "layers.0.q_proj".into(),
                inputs,
                outputs,
                bias: false,
                ..LinearShape::default()
            },
            module: "layers.0.q_proj".into(),
            by_parameter: false,
            joined: 1,
            rank,
            alpha: scaling * rank as f64,
            scaling,
            parts: Vec::new(),
        }
    }

    fn weight(outputs: usize, inputs: usize, seed: u32) -> Tensor {
        let value = |index: usize| ((index as f32 + seed as f32) * 12.9898).sin();
        let values: Vec<f32> = (0..outputs * inputs).map(value).collect();
        Tensor::from_vec(values, (outputs, inputs), &Device::Cpu).unwrap()
    }

    fn largest(tensor: &Tensor) -> f32 {
        tensor.abs().unwrap().max_all().unwrap().to_scalar().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn parts_add_up_and_are_orthogonal(outputs in 2usize..20, inputs in 2usize..20, rank in 1usize..6, seed in 0u32..99) {
            let rank = rank.min(outputs).min(inputs);
            let weight = weight(outputs, inputs, seed);
            let parts = Pissa::new(&linear(outputs, inputs, rank, 2.0), &weight).unwrap();
            let principal = (parts.lora_b.matmul(&parts.lora_a).unwrap() * 2.0).unwrap();
            prop_assert!(largest(&((&principal + &parts.residual).unwrap() - &weight).unwrap()) < 1e-5);
            // What is left has nothing in the directions of lora_a.
            let left = parts.residual.matmul(&parts.lora_a.t().unwrap()).unwrap();
            prop_assert!(largest(&left) < 1e-4);
        }
    }

    #[test]
    fn a_weight_that_does_not_fit_is_refused() {
        let linear = linear(4, 6, 2, 1.0);
        let message = Pissa::new(&linear, &weight(6, 4, 0)).unwrap_err().to_string();
        assert!(message.contains("has shape [6, 4]; expected [4, 6]"), "{message}");
        let broken = (weight(4, 6, 0) / 0.0).unwrap();
        assert!(
            Pissa::new(&linear, &broken)
                .unwrap_err()
                .to_string()
                .contains("is not finite")
        );
    }
}
