//! Trainable parameters: flat F32 buffers with named views.
//!
//! All parameters lie in one tensor and all their gradients in another, so that the global gradient norm, clipping and
//! the optimizer each are one pass over memory (one launch on a GPU), whatever the number of adapters.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};

use peft_tune_core::plan::ParameterLayout;

/// Values and gradients of the trainable parameters.
#[derive(Clone, Debug)]
pub struct Parameters {
    pub layout: Arc<ParameterLayout>,
    /// (elements,) F32.
    pub values: Tensor,
    /// (elements,) F32; backward adds to it, the trainer clears it.
    pub gradients: Tensor,
}

impl Parameters {
    /// Parameters that are all zero.
    pub fn zeros(layout: impl Into<Arc<ParameterLayout>>, device: &Device) -> Result<Self> {
        let layout = layout.into();
        // A tensor without elements cannot be made on every device.
        let elements = layout.elements().max(1);
        let values = Tensor::zeros(elements, DType::F32, device)?;
        let gradients = Tensor::zeros(elements, DType::F32, device)?;
        Ok(Self {
            layout,
            values,
            gradients,
        })
    }

    /// Parameters on paper: one zero in the place of all.
    pub(crate) fn on_paper(layout: Arc<ParameterLayout>) -> Result<Self> {
        let zeros = crate::tensor::on_paper(layout.elements().max(1), DType::F32)?;
        Ok(Self {
            layout,
            values: zeros.clone(),
            gradients: zeros,
        })
    }

    /// Parameter `index` as a view into the flat values: it sees every later update, and copies nothing.
    pub fn value(&self, index: usize) -> Result<Tensor> {
        self.view(&self.values, index)
    }

    /// Gradient of parameter `index` as a view into the flat gradients.
    pub fn gradient(&self, index: usize) -> Result<Tensor> {
        self.view(&self.gradients, index)
    }

    /// Views of these elements of the flat values and gradients.
    pub(crate) fn part(&self, elements: &Range<usize>) -> Result<[Tensor; 2]> {
        let part = |buffer: &Tensor| buffer.narrow(0, elements.start, elements.len());
        Ok([part(&self.values)?, part(&self.gradients)?])
    }

    fn view(&self, buffer: &Tensor, index: usize) -> Result<Tensor> {
        let slot = &self.layout.slots()[index];
        flat_view(buffer, slot.offset, &slot.shape)
    }
}

/// The elements of a flat buffer from `offset` on, in a shape.
pub(crate) fn flat_view(buffer: &Tensor, offset: usize, shape: &[usize]) -> Result<Tensor> {
    let part = buffer.narrow(0, offset, shape.iter().product())?;
    match part.layout().stride() {
        // On paper; a reshape would copy.
        [0] => part.narrow(0, 0, 1)?.reshape(())?.broadcast_as(shape),
        _ => part.reshape(shape),
    }
}
