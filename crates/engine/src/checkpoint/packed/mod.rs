//! Weights that another program quantized: read to the values that its own readers give.
//!
//! | format | tensors in place of `M.weight` (out, in) | value |
//! |---|---|---|
//! | FP8, INT8 (compressed-tensors) | `M.weight` F8_E4M3 or I8, `M.weight_scale` | (code - zero)·scale |
//! | FP8 in tiles (DeepSeek, Qwen) | `M.weight` F8_E4M3, `M.weight_scale_inv` | code·scale |
//! | INT4 (compressed-tensors) | `M.weight_packed`, `M.weight_scale`, `M.weight_shape` | (code - zero)·scale |
//! | NVFP4 (compressed-tensors) | `M.weight_packed`, `M.weight_scale` F8_E4M3, `M.weight_global_scale` | code·(scale / global) |
//! | MXFP4 (compressed-tensors) | `M.weight_packed`, `M.weight_scale` U8 | code·2^(scale - 127) |
//! | GPTQ | `M.qweight`, `M.qzeros`, `M.scales`, `M.g_idx` | (code - zero)·scale |
//! | AWQ | `M.qweight`, `M.qzeros`, `M.scales` | (code - zero)·scale |
//!
//! A scale serves a part of the weight: all of it, a row, a tile, or a group of a row's columns. Products are rounded to
//! the scales' own dtype, as the readers compute them. Which format a weight has is seen by its tensors; `config.json`
//! decides what they do not tell ([`Packing`]). What scales activations (`input_scale`, `k_scale`, …) is left alone: the
//! engine's activations are never quantized.
//!
//! Sources: compressed-tensors 0.20 (`compressors/`), transformers 5.23 (`integrations/finegrained_fp8.py`), GPTQModel
//! (`nn_modules/qlinear/torch.py`), AutoAWQ 0.2.9 (`utils/packing_utils.py`), OCP Microscaling Formats 1.0.

mod awq;
mod codes;
mod compressed;
mod error;
mod gptq;
mod packing;
mod parts;
mod scales;

use candle_core::{Device, Tensor};

pub(crate) use error::PackedError;
pub(super) use packing::Packing;
use parts::Parts;

use super::Checkpoint;

/// Endings of the names of a module's tensors in these formats, beside `weight` itself.
const ENDINGS: &[&str] = &[
    "weight_packed",
    "weight_shape",
    "weight_scale",
    "weight_scale_inv",
    "weight_global_scale",
    "weight_zero_point",
    "weight_g_idx",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
];

/// Scales of activations and of cached keys and values, which only a program that quantizes these needs.
const OF_ACTIVATIONS: &[&str] = &[
    "input_scale",
    "input_global_scale",
    "input_zero_point",
    "output_scale",
    "output_zero_point",
    "q_scale",
    "k_scale",
    "v_scale",
    "activation_scale",
];

/// Tensors that stand in place of `M.weight`.
const IN_PLACE: [&str; 2] = ["weight_packed", "qweight"];

/// The weight that the tensor `name` belongs to: `M.weight` for `M.qzeros`.
pub(super) fn owner(name: &str) -> Option<String> {
    let (module, ending) = name.rsplit_once('.')?;
    ENDINGS.contains(&ending).then(|| format!("{module}.weight"))
}

/// Whether nothing of the model is lost without the tensor `name`: it scales activations, or it is the bias of zeros that GPTQ's
/// first programs gave every layer.
pub(super) fn is_idle(checkpoint: &Checkpoint, name: &str) -> bool {
    let Some((module, ending)) = name.rsplit_once('.') else {
        return false;
    };
    let is_zero = || {
        checkpoint
            .raw(name)
            .is_some_and(|bias| bias.bytes.iter().all(|byte| *byte == 0))
    };
    OF_ACTIVATIONS.contains(&ending)
        || (ending == "bias" && checkpoint.contains(&format!("{module}.qweight")) && is_zero())
}

/// Whether `checkpoint` has the weight `name` in a form that takes another name.
pub(super) fn is_in_place(checkpoint: &Checkpoint, name: &str) -> bool {
    let module = name.strip_suffix("weight");
    module.is_some_and(|module| {
        IN_PLACE
            .iter()
            .any(|ending| checkpoint.contains(&format!("{module}{ending}")))
    })
}

/// The weight `name` (out, in), F32 on the CPU; `None` where the checkpoint has it plain.
///
/// # Errors
/// A tensor that is missing, of another shape or dtype, or damaged; a form of the format that is not read.
pub(super) fn read(checkpoint: &Checkpoint, name: &str, shape: &[usize]) -> Result<Option<Tensor>, PackedError> {
    let Some(module) = name.strip_suffix(".weight") else {
        return Ok(None);
    };
    let parts = Parts::new(checkpoint, module);
    let is_coded = parts.find("weight").is_some_and(|weight| codes::is_coded(weight.dtype));
    let (packed, quantized) = (parts.find("weight_packed"), parts.find("qweight"));
    if !is_coded && packed.is_none() && quantized.is_none() {
        return Ok(None);
    }
    let &[outputs, inputs] = shape else {
        return Err(PackedError::NotAMatrix { shape: shape.to_vec() });
    };
    let packing = checkpoint.packing();
    let values = if is_coded {
        compressed::read_bytes(&parts, packing, (outputs, inputs))
    } else if packed.is_some() {
        compressed::read_packed(&parts, packing, (outputs, inputs))
    } else if is_awq(packing, &parts, inputs) {
        awq::read(&parts, (outputs, inputs))
    } else {
        gptq::read(&parts, packing, (outputs, inputs))
    }?;
    parts.let_go();
    if let Some(place) = values.iter().position(|value| !value.is_finite()) {
        return Err(PackedError::NotFinite { element: place });
    }
    Ok(Some(Tensor::from_vec(values, (outputs, inputs), &Device::Cpu)?))
}

/// Whether codes lie in AWQ's order: along the outputs, where GPTQ has them along the inputs.
fn is_awq(packing: &Packing, parts: &Parts<'_>, inputs: usize) -> bool {
    match packing.method() {
        Some("awq") => true,
        Some("gptq") => false,
        _ => parts
            .find("qweight")
            .is_some_and(|codes| codes.shape.first() == Some(&inputs)),
    }
}
