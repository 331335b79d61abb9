//! Constants of the blocks of NF4 codes, plain or as codes themselves.

use candle_core::{Device, Result, Tensor};
use peft_tune_core::plan::NESTED_BLOCK;

use super::blocks::absmax;
use super::dynamic_map::DynamicMap;

/// The constants of the blocks.
#[derive(Clone, Debug)]
pub enum Constants {
    /// (blocks,) F32.
    Plain(Tensor),
    /// absmax = map\[code\] * nested + offset.
    Double {
        /// (blocks,) U8, codes of the signed dynamic map.
        codes: Tensor,
        /// (ceil(blocks / 256),) F32.
        nested: Tensor,
        offset: f32,
    },
}

/// The constants of the blocks as slices.
#[derive(Clone, Copy)]
pub(super) enum ConstantSlices<'a> {
    Plain(&'a [f32]),
    Double {
        map: &'a [f32],
        codes: &'a [u8],
        nested: &'a [f32],
        offset: f32,
    },
}

impl ConstantSlices<'_> {
    /// Constant of a block.
    #[inline(always)]
    pub(super) fn of(&self, block: usize) -> f32 {
        match self {
            Self::Plain(absmax) => absmax[block],
            Self::Double {
                map,
                codes,
                nested,
                offset,
            } => map[usize::from(codes[block])] * nested[block / NESTED_BLOCK] + offset,
        }
    }
}

/// Constants as codes of the signed dynamic map, with constants of their own (double quantization).
pub(super) fn quantize_constants(constants: &[f32], device: &Device) -> Result<Constants> {
    let sum: f64 = constants.iter().map(|constant| f64::from(*constant)).sum();
    let offset = (sum / constants.len() as f64) as f32;
    let centred: Vec<f32> = constants.iter().map(|constant| constant - offset).collect();
    let mut codes = Vec::with_capacity(centred.len());
    let mut nested = Vec::with_capacity(centred.len().div_ceil(NESTED_BLOCK));
    for block in centred.chunks(NESTED_BLOCK) {
        let constant = absmax(block);
        nested.push(constant);
        if constant == 0.0 {
            codes.extend(block.iter().map(|_| 0u8));
            continue;
        }
        let inverse = 1.0 / constant;
        codes.extend(
            block
                .iter()
                .map(|value| DynamicMap::signed().nearest_on_grid(value * inverse)),
        );
    }
    let (blocks, groups) = (codes.len(), nested.len());
    Ok(Constants::Double {
        codes: Tensor::from_vec(codes, blocks, device)?,
        nested: Tensor::from_vec(nested, groups, device)?,
        offset,
    })
}
