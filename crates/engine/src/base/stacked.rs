//! Experts that a checkpoint has in one tensor for all of them.
//!
//! | tensor | shape | holds |
//! |---|---|---|
//! | `gate_up_proj` | (E, H, 2 I) | gate in the even columns, up in the odd ones; in Llama 4 in the first and the second half |
//! | `down_proj` | (E, I, H) | |
//! | both in Gemma 4 | (E, 2 I, H), (E, H, I) | gate in the first half of the rows, up in the second |
//! | both of a family with a tensor for each expert, where transformers wrote its own layout | as in Gemma 4 | the same |
//! | `*_blocks` | (E, out, in / 32, 16) U8 | MXFP4: two values a byte, the low half first |
//! | `*_scales` | (E, out, in / 32) U8 | 2^(scale - 127) for each 32 values |
//!
//! In memory each expert has weights of its own (out, in), under the names that checkpoints with a tensor for each have.
//!
//! MXFP4 is that of the OCP Microscaling Formats specification 1.0: values of one sign, two exponent and one mantissa bit.

use candle_core::{DType, Device, Tensor};

use super::weight::Weight;
use super::weight_kinds::{WeightKind, compute_dtype};
use crate::checkpoint::Checkpoint;
use crate::{TrainError, WeightsError};
use peft_tune_core::architecture::{Architecture, ExpertPart, Experts, TensorShape};
use peft_tune_core::recipe::Precision;
use safetensors::Dtype;

/// Values that share a scale.
const BLOCK: usize = 32;
/// Magnitudes that the four bits of a value mean, without its sign.
const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The architecture as `checkpoint` has its experts: a family with a tensor for each expert is also written with one for all of a
/// layer (`save_original_format=False` of transformers 5).
pub(super) fn as_stored(mut architecture: Architecture, checkpoint: &Checkpoint) -> Architecture {
    let mut layers = 0..architecture.layers.len();
    let sparse = layers.find(|index| architecture.experts_of(*index).is_some());
    if let (Some(index), Some(experts)) = (sparse, &mut architecture.experts)
        && !experts.names.stacked
        && checkpoint.contains(&format!(
            "{}.{}",
            Architecture::layer_name(index),
            experts.names.gate_up
        ))
    {
        (experts.names.stacked, experts.names.upright) = (true, true);
    }
    architecture
}

/// The stacked tensors of one layer.
pub(crate) struct Stacked<'a> {
    pub experts: &'a Experts,
}

impl<'a> Stacked<'a> {
    /// The stacked tensors of a model, where it has some.
    pub(crate) fn of(architecture: &'a Architecture) -> Option<Self> {
        let experts = architecture.experts.as_ref().filter(|experts| experts.names.stacked)?;
        Some(Self { experts })
    }

    /// The layer's name and the projections that the tensor `name` holds.
    pub(crate) fn parts<'n>(&self, name: &'n str) -> Option<(&'n str, &'static [ExpertPart])> {
        let of = |inner: &str, parts: &'static [ExpertPart]| {
            let layer = name.strip_suffix(inner)?.strip_suffix('.')?;
            Some((layer, parts))
        };
        of(self.experts.names.gate_up, &[ExpertPart::Gate, ExpertPart::Up])
            .or_else(|| of(self.experts.names.down, &[ExpertPart::Down]))
    }

    /// Names and shapes (out, in) of the weights that the tensor `name` holds; none of another tensor.
    pub(super) fn shapes(&self, name: &str, hidden: usize) -> Vec<(String, [usize; 2])> {
        let Some((layer, parts)) = self.parts(name) else {
            return Vec::new();
        };
        let of_expert = |expert: usize| {
            parts.iter().map(move |part| {
                let name = format!("{layer}.{}", self.experts.weight_name(expert, *part));
                (name, self.experts.part_shape(*part, hidden))
            })
        };
        (0..self.experts.count).flat_map(of_expert).collect()
    }

    /// One projection (out, in) of one expert, from its part (in, outs) of the stacked tensor, or (outs, in).
    pub(super) fn split(&self, of_expert: &Tensor, parts: &[ExpertPart], place: usize) -> candle_core::Result<Tensor> {
        let beside = parts.len();
        if self.experts.names.upright {
            let height = of_expert.dims2()?.0 / beside;
            return of_expert.narrow(0, place * height, height)?.contiguous();
        }
        let (inputs, outputs) = of_expert.dims2()?;
        if self.experts.names.swapped {
            let width = outputs / beside;
            return of_expert.narrow(1, place * width, width)?.t()?.contiguous();
        }
        let columns = of_expert
            .reshape((inputs, outputs / beside, beside))?
            .narrow(2, place, 1)?;
        columns.squeeze(2)?.t()?.contiguous()
    }

    /// The stacked tensor of projections that `value` gives for each expert.
    pub(crate) fn join(
        &self,
        parts: &[ExpertPart],
        mut value: impl FnMut(usize, ExpertPart) -> Result<Tensor, TrainError>,
    ) -> Result<Tensor, TrainError> {
        let (mut all, is_upright) = (Vec::with_capacity(self.experts.count), self.experts.names.upright);
        for expert in 0..self.experts.count {
            let of_parts = parts.iter().map(|part| match (value(expert, *part)?, is_upright) {
                (value, true) => Ok(value),
                (value, false) => value.t()?.contiguous().map_err(TrainError::from),
            });
            let of_parts: Vec<Tensor> = of_parts.collect::<Result<_, TrainError>>()?;
            if is_upright {
                all.push(Tensor::cat(&of_parts, 0)?);
                continue;
            }
            all.push(match self.experts.names.swapped {
                true => Tensor::cat(&of_parts, 1)?,
                false => Tensor::stack(&of_parts, 2)?.flatten_from(1)?,
            });
        }
        Ok(Tensor::stack(&all, 0)?)
    }
}

impl Stacked<'_> {
    /// The part (in, outs) of `expert` of a stacked tensor in a checkpoint.
    pub(super) fn read(
        &self,
        checkpoint: &Checkpoint,
        tensor: &TensorShape,
        expert: usize,
        precision: Precision,
    ) -> Result<Tensor, TrainError> {
        if is_mxfp4(checkpoint, &tensor.name) {
            return mxfp4_expert(checkpoint, tensor, expert);
        }
        let dtype = if precision.is_quantized() {
            DType::F32
        } else {
            compute_dtype(precision)
        };
        Ok(checkpoint.part(&tensor.name, &tensor.shape, expert, dtype)?)
    }
}

/// Whether the tensor `name` is there as MXFP4.
pub(super) fn is_mxfp4(checkpoint: &Checkpoint, name: &str) -> bool {
    checkpoint.contains(&format!("{name}_blocks"))
}

/// The tensor that a tensor of MXFP4 belongs to.
pub(crate) fn mxfp4_owner(name: &str) -> Option<&str> {
    name.strip_suffix("_blocks").or_else(|| name.strip_suffix("_scales"))
}

/// The stacked tensor (E, in, outs) of `tensor`, expert by expert in F32, from MXFP4.
pub(super) fn mxfp4_expert(checkpoint: &Checkpoint, tensor: &TensorShape, expert: usize) -> Result<Tensor, TrainError> {
    let [count, inputs, outputs] = tensor.shape[..] else {
        return Err(candle_core::Error::Msg(format!("{} is not a stack of matrices", tensor.name)).into());
    };
    if !inputs.is_multiple_of(BLOCK) {
        return Err(candle_core::Error::Msg(format!(
            "{}: {inputs} inputs are not whole blocks of MXFP4",
            tensor.name
        ))
        .into());
    }
    let groups = inputs / BLOCK;
    let blocks = bytes(
        checkpoint,
        &format!("{}_blocks", tensor.name),
        &[count, outputs, groups, BLOCK / 2],
    )?;
    let scales = bytes(
        checkpoint,
        &format!("{}_scales", tensor.name),
        &[count, outputs, groups],
    )?;
    let mut values = Vec::with_capacity(inputs * outputs);
    let first = expert * outputs * groups;
    let of_expert = blocks[first * BLOCK / 2..]
        .chunks_exact(BLOCK / 2)
        .zip(&scales[first..]);
    for (codes, scale) in of_expert.take(outputs * groups) {
        let scale = f32::from_bits(u32::from(*scale) << 23);
        // The smallest scale is below the normal numbers.
        let scale = if scale == 0.0 { 2f32.powi(-127) } else { scale };
        for code in codes.iter().flat_map(|byte| [byte & 15, byte >> 4]) {
            let value = scale * MAGNITUDES[usize::from(code & 7)];
            values.push(if code & 8 == 0 { value } else { -value });
        }
    }
    if let Some(element) = values.iter().position(|value| !value.is_finite()) {
        return Err(WeightsError::NotFinite {
            path: checkpoint.path().to_owned(),
            tensor: format!("{}_scales", tensor.name),
            dtype: DType::F32.as_str(),
            element: (first * BLOCK + element) / BLOCK,
        }
        .into());
    }
    Ok(Tensor::from_vec(values, (outputs, inputs), &Device::Cpu)?
        .t()?
        .contiguous()?)
}

/// The bytes of a tensor of U8 of this shape.
fn bytes<'a>(checkpoint: &'a Checkpoint, name: &str, shape: &[usize]) -> Result<&'a [u8], WeightsError> {
    let Some(raw) = checkpoint.raw(name) else {
        return Err(WeightsError::MissingTensor {
            path: checkpoint.path().to_owned(),
            tensor: name.to_owned(),
            missing: 1,
        });
    };
    if raw.shape != shape {
        return Err(WeightsError::Shape {
            path: checkpoint.path().to_owned(),
            tensor: name.to_owned(),
            expected: shape.to_vec(),
            got: raw.shape.to_vec(),
        });
    }
    match raw.dtype {
        Dtype::U8 => Ok(raw.bytes),
        other => Err(WeightsError::Dtype {
            path: checkpoint.path().to_owned(),
            tensor: name.to_owned(),
            got: format!("{other:?}"),
        }),
    }
}

/// Hands the projections of all experts, from their parts (in, outs) of the stacked tensor `name`, to `take`.
pub(super) fn store_experts(
    stack: &Stacked<'_>,
    name: &str,
    of_expert: impl Fn(usize) -> Result<Tensor, TrainError>,
    precision: Precision,
    device: &Device,
    mut take: impl FnMut(String, Weight) -> Result<(), TrainError>,
) -> Result<(), TrainError> {
    let Some((layer, parts)) = stack.parts(name) else {
        return Ok(());
    };
    for expert in 0..stack.experts.count {
        let value = of_expert(expert)?;
        for (place, part) in parts.iter().enumerate() {
            let name = format!("{layer}.{}", stack.experts.weight_name(expert, *part));
            let weight = Weight::store(
                stack.split(&value, parts, place)?,
                &name,
                WeightKind::Linear,
                precision,
                device,
            )?;
            take(name, weight)?;
        }
    }
    Ok(())
}
