//! Samples of tensors, as `tests/golden/sample.py` takes them.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{DType, Tensor};

/// Every 13th value of a tensor's elements in their order; two numbers stand for the others.
pub(crate) struct Sample {
    values: Vec<f64>,
    /// Absolute value of the largest element.
    largest: f64,
    /// Root of the sum of squares of all elements.
    norm: f64,
}

impl Sample {
    const STRIDE: usize = 13;

    /// The samples of one file by their tensors' names.
    pub(crate) fn read(path: &Path) -> BTreeMap<String, Self> {
        let mut tensors: BTreeMap<String, Tensor> = super::tensors(path).into_iter().collect();
        let [largest, norm] = ["largest", "norm"].map(|name| flat(&tensors.remove(name).unwrap()));
        assert_eq!(
            (largest.len(), norm.len()),
            (tensors.len(), tensors.len()),
            "{}",
            path.display()
        );
        let numbers = largest.into_iter().zip(norm);
        let samples = tensors.into_iter().zip(numbers);
        samples
            .map(|((name, tensor), (largest, norm))| {
                let values = flat(&tensor);
                (name, Self { values, largest, norm })
            })
            .collect()
    }

    /// How far a tensor is from the sampled one: the largest difference of an element over the largest element, or the
    /// relative difference of the largest elements or of the norms where that is greater.
    pub(crate) fn error_of(&self, actual: &Tensor) -> f64 {
        let actual = flat(actual);
        assert_eq!(actual.len().div_ceil(Self::STRIDE), self.values.len(), "elements");
        let largest = actual.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
        let norm = actual.iter().map(|value| value * value).sum::<f64>().sqrt();
        let differences = self.values.iter().zip(actual.iter().step_by(Self::STRIDE));
        let differences = differences.map(|(expected, actual)| (expected - actual).abs() / self.largest);
        let of_all = [(largest / self.largest - 1.0).abs(), (norm / self.norm - 1.0).abs()];
        greatest(differences.chain(of_all))
    }

    /// How far the elements from `first` on are from the sampled ones, relative to the largest of those.
    pub(crate) fn error_of_part(&self, actual: &[f32], first: usize) -> f64 {
        let sampled = (first..first + actual.len()).filter(|index| index.is_multiple_of(Self::STRIDE));
        let pairs: Vec<(f64, f64)> = sampled
            .map(|index| (self.values[index / Self::STRIDE], f64::from(actual[index - first])))
            .collect();
        let largest = greatest(pairs.iter().map(|(expected, _)| expected.abs()));
        greatest(pairs.iter().map(|(expected, actual)| (expected - actual).abs())) / largest
    }
}

/// The greatest number, and no number where one is none.
fn greatest(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.fold(0.0, |most, number| match number > most || number.is_nan() {
        true => number,
        false => most,
    })
}

fn flat(tensor: &Tensor) -> Vec<f64> {
    let wide = tensor.to_dtype(DType::F64).unwrap();
    wide.flatten_all().unwrap().to_vec1().unwrap()
}
