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

    /// Absolute value of the largest element.
    pub(crate) fn largest(&self) -> f64 {
        self.largest
    }

    /// How far a tensor is from the sampled one: the largest difference of an element over the largest element, or the
    /// relative difference of the largest elements or of the norms where that is greater.
    pub(crate) fn error_of(&self, actual: &Tensor) -> f64 {
        self.error_over(self.largest, actual)
    }

    /// How far a tensor is from the sampled one, as [`Sample::error_of`] has it, with differences of elements over `scale`.
    pub(crate) fn error_over(&self, scale: f64, actual: &Tensor) -> f64 {
        let actual = Self::taken(actual);
        assert_eq!(actual.values.len(), self.values.len(), "elements");
        let pairs = self.values.iter().zip(&actual.values);
        let pairs = pairs.chain([(&self.largest, &actual.largest)]);
        let differences = pairs.map(|(expected, actual)| (expected - actual).abs() / scale);
        greatest(differences.chain([(actual.norm / self.norm - 1.0).abs()]))
    }

    /// Fails unless a tensor equals the sampled one in each sampled element, the largest element and the norm. Norms may
    /// differ as another order of additions in F64 makes them: less than most elements do whose last bit in F32 is wrong.
    #[track_caller]
    pub(crate) fn assert_equal(&self, actual: &Tensor, name: &str) {
        let actual = Self::taken(actual);
        assert_eq!(actual.values.len(), self.values.len(), "{name}: elements");
        let mut pairs = self.values.iter().zip(&actual.values).enumerate();
        if let Some((index, (expected, found))) = pairs.find(|(_, (expected, found))| expected != found) {
            panic!("{name}: {found:e} instead of {expected:e} at {}", index * Self::STRIDE);
        }
        assert_eq!(actual.largest, self.largest, "{name}: largest element");
        let error = (actual.norm / self.norm - 1.0).abs();
        assert!(error <= 1e-13, "{name}: {error:.1e} in the norm");
    }

    /// The sample of a tensor.
    fn taken(tensor: &Tensor) -> Self {
        let elements = flat(tensor);
        Self {
            values: elements.iter().copied().step_by(Self::STRIDE).collect(),
            largest: elements.iter().fold(0.0, |most: f64, value| most.max(value.abs())),
            norm: elements.iter().map(|value| value * value).sum::<f64>().sqrt(),
        }
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
pub(crate) fn greatest(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.fold(0.0, |most, number| match number > most || number.is_nan() {
        true => number,
        false => most,
    })
}

fn flat(tensor: &Tensor) -> Vec<f64> {
    let wide = tensor.to_dtype(DType::F64).unwrap();
    wide.flatten_all().unwrap().to_vec1().unwrap()
}
