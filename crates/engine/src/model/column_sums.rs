//! Sums of squares over the tokens of what linear layers read, where somebody asks for them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use candle_core::{DType, Result};

use crate::tensor::Tensor;

/// Sums of squares of the columns of what linear layers of a decoder layer read, by the layer's module.
#[derive(Clone, Debug, Default)]
pub(crate) struct ColumnSums(Rc<RefCell<BTreeMap<&'static str, Vec<f64>>>>);

impl ColumnSums {
    /// Adds what the linear layers `modules` read, x (T, in).
    pub(super) fn add(&self, modules: impl Iterator<Item = &'static str>, x: &Tensor) -> Result<()> {
        let rows = x.real()?.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        let mut sums = vec![0.0; x.dim(1)?];
        for row in &rows {
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += f64::from(*value) * f64::from(*value);
            }
        }
        let (mut known, mut last) = (self.0.borrow_mut(), "");
        for module in modules {
            // Projections of one tensor are one linear layer.
            if module == last {
                continue;
            }
            last = module;
            let all = known.entry(module).or_insert_with(|| vec![0.0; sums.len()]);
            all.iter_mut().zip(&sums).for_each(|(all, sum)| *all += sum);
        }
        Ok(())
    }

    /// Takes the sums out, by module.
    pub(super) fn take(&self) -> BTreeMap<&'static str, Vec<f64>> {
        self.0.take()
    }
}
