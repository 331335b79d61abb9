//! Size of the updates of a training, from a sample of its values: up to 4,096 of them, evenly spaced, are read behind each step. A copy
//! of all values would cost as much memory as they do.

use candle_core::{Result, Tensor};

use crate::Parameters;

/// Values that are read, at most.
const MOST: usize = 4096;

/// The sampled values as they were last.
#[derive(Debug)]
pub(super) struct UpdateSample {
    /// Indices of the sampled values.
    indices: Tensor,
    last: Vec<f32>,
}

/// Root mean squares over the sampled values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct UpdateSize {
    /// Change since the last time.
    pub update: f64,
    pub values: f64,
}

impl UpdateSample {
    /// A sample of the values as they are.
    pub(super) fn new(parameters: &Parameters) -> Result<Self> {
        let elements = parameters.values.elem_count();
        let count = elements.clamp(1, MOST);
        let spaced = |index: usize| (index as u128 * elements as u128 / count as u128) as i64;
        let indices: Vec<i64> = (0..count).map(spaced).collect();
        let indices = Tensor::from_vec(indices, count, parameters.values.device())?;
        let last = read(parameters, &indices)?;
        Ok(Self { indices, last })
    }

    /// Reads the values again, and tells how far they are from where they were.
    pub(super) fn take(&mut self, parameters: &Parameters) -> Result<UpdateSize> {
        let now = read(parameters, &self.indices)?;
        let apart = now
            .iter()
            .zip(&self.last)
            .map(|(now, last)| f64::from(*now) - f64::from(*last));
        let size = UpdateSize {
            update: root_mean_square(apart),
            values: root_mean_square(now.iter().map(|value| f64::from(*value))),
        };
        self.last = now;
        Ok(size)
    }
}

fn read(parameters: &Parameters, indices: &Tensor) -> Result<Vec<f32>> {
    parameters.values.index_select(indices, 0)?.to_vec1()
}

fn root_mean_square(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    (values.map(|value| value * value).sum::<f64>() / count).sqrt()
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::{ParameterKind, ParameterLayout};

    #[test]
    fn an_update_is_as_large_as_the_values_moved() {
        for elements in [6, 10_000] {
            let mut layout = ParameterLayout::default();
            layout.push("a", &[2, elements / 2], ParameterKind::LoraA);
            let parameters = Parameters::zeros(layout, &Device::Cpu).unwrap();
            let mut sample = UpdateSample::new(&parameters).unwrap();
            let set = |value: f32| {
                let values = Tensor::full(value, elements, &Device::Cpu).unwrap();
                parameters.values.slice_set(&values, 0, 0).unwrap();
            };
            set(3.0);
            assert_eq!(
                sample.take(&parameters).unwrap(),
                UpdateSize {
                    update: 3.0,
                    values: 3.0
                }
            );
            set(1.0);
            assert_eq!(
                sample.take(&parameters).unwrap(),
                UpdateSize {
                    update: 2.0,
                    values: 1.0
                }
            );
            set(f32::NAN);
            assert!(sample.take(&parameters).unwrap().update.is_nan());
        }
    }
}
