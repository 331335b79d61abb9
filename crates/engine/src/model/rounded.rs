//! The adapters' A and B in the dtype that a GPU multiplies in.
//!
//! They train in F32. On the CPU a product converts what it packs; on a GPU each would need a launch of its own that
//! converts before it, some twenty for a layer. So one launch at the start of each pass rounds all of them.

use candle_core::{DType, Result, Tensor};

use super::traced::rounding;
use crate::parameters::flat_view;
use crate::tensor;
use crate::{ParameterKind, Parameters};
use peft_tune_core::plan::Memory;
use peft_tune_kernels::gpu;

/// A rounded copy of all A and B, which lie first in the flat buffer.
#[derive(Clone, Debug)]
pub(super) struct Rounded {
    values: Tensor,
    copy: Tensor,
}

impl Rounded {
    /// A copy in `dtype`, where a GPU multiplies in another dtype than F32. It holds nothing before [`Rounded::refresh`]. `paper` is the
    /// memory of parameters on paper.
    pub(super) fn new(parameters: &Parameters, dtype: DType, paper: Option<Memory>) -> Result<Option<Self>> {
        let factors = parameters.layout.slots().iter();
        let factors = factors.take_while(|slot| matches!(slot.kind, ParameterKind::LoraA | ParameterKind::LoraB));
        let elements = factors.map(|slot| slot.elements()).sum();
        let device = parameters.values.device();
        let is_on_gpu = match paper {
            Some(memory) => memory == Memory::Device,
            None => gpu::is_for(device, dtype),
        };
        if elements == 0 || dtype == DType::F32 || !is_on_gpu {
            return Ok(None);
        }
        Ok(Some(Self {
            values: parameters.values.narrow(0, 0, elements)?,
            copy: match paper {
                Some(_) => tensor::on_paper(elements, dtype)?,
                None => gpu::empty(elements, dtype, device)?,
            },
        }))
    }

    /// Rounds the values as they are now, on paper where `ids` are.
    pub(super) fn refresh(&self, ids: &tensor::Tensor) -> Result<()> {
        rounding::round(&self.values, &ids.operand(&self.copy))
    }

    /// The copy of the elements from `offset` on, if it has them.
    pub(super) fn view(&self, offset: usize, shape: &[usize]) -> Result<Option<Tensor>> {
        let end = offset + shape.iter().product::<usize>();
        let is_there = end <= self.copy.elem_count();
        is_there.then(|| flat_view(&self.copy, offset, shape)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::ParameterLayout;

    fn parameters() -> Parameters {
        let mut layout = ParameterLayout::default();
        layout.push("a", &[2, 4], ParameterKind::LoraA);
        layout.push("b", &[3, 2], ParameterKind::LoraB);
        layout.push("m", &[3], ParameterKind::Magnitude);
        Parameters::zeros(layout, &Device::Cpu).unwrap()
    }

    #[test]
    fn views_of_the_copy_follow_the_values() {
        gpu::emulated(|| {
            let parameters = parameters();
            let rounded = Rounded::new(&parameters, DType::BF16, None).unwrap().unwrap();
            let b = rounded.view(8, &[3, 2]).unwrap().unwrap();
            for value in [1.0f32, 2.003] {
                let values = Tensor::full(value, 17, &Device::Cpu).unwrap();
                parameters.values.slice_set(&values, 0, 0).unwrap();
                rounded.refresh(&values.into()).unwrap();
                let found: Vec<f32> = b
                    .flatten_all()
                    .unwrap()
                    .to_dtype(DType::F32)
                    .unwrap()
                    .to_vec1()
                    .unwrap();
                assert_eq!(found, [half::bf16::from_f32(value).to_f32(); 6]);
            }
            // The magnitude is no factor of a product.
            assert!(rounded.view(14, &[3]).unwrap().is_none());
        });
    }

    #[test]
    fn what_multiplies_f32_or_converts_by_itself_has_no_copy() {
        assert!(Rounded::new(&parameters(), DType::BF16, None).unwrap().is_none());
        gpu::emulated(|| assert!(Rounded::new(&parameters(), DType::F32, None).unwrap().is_none()));
    }
}
