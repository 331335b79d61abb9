//! Attention, by the length of documents and the width of heads.

use candle_core::{DType, Result};

use super::clock::{Effort, seconds};
use super::operand;
use peft_tune_core::predict::Grid;
use peft_tune_kernels::ops::attention;
use peft_tune_kernels::ops::attention::{Saved, Settings};

const LENGTHS: [usize; 3] = [32, 128, 512];
const WIDTHS: [usize; 3] = [16, 64, 128];
/// Query heads and key heads of what is measured.
const HEADS: (usize, usize) = (4, 2);
const SETTINGS: Settings = Settings {
    scale: 0.125,
    window: None,
    soft_cap: None,
};

/// Seconds forward for one token and query head, by (document length, head width).
pub(super) fn forward(dtype: DType, effort: Effort) -> Result<Grid> {
    grid(
        effort,
        |batch| {
            let Batch { q, k, offsets } = batch;
            seconds(effort, || attention::forward(q, k, k, offsets, &SETTINGS).map(drop))
        },
        dtype,
    )
}

/// Seconds backward for one token and query head, by (document length, head width).
pub(super) fn backward(dtype: DType, effort: Effort) -> Result<Grid> {
    grid(
        effort,
        |batch| {
            let Batch { q, k, offsets } = batch;
            let (o, lse) = attention::forward(q, k, k, offsets, &SETTINGS)?;
            let saved = Saved {
                q,
                k,
                v: k,
                o: &o,
                lse: &lse,
            };
            seconds(effort, || attention::backward(saved, &o, offsets, &SETTINGS).map(drop))
        },
        dtype,
    )
}

struct Batch {
    q: candle_core::Tensor,
    k: candle_core::Tensor,
    offsets: Vec<u32>,
}

fn grid(effort: Effort, time: impl Fn(&Batch) -> Result<f64>, dtype: DType) -> Result<Grid> {
    let tokens = match effort {
        Effort::Full => 1024,
        Effort::Coarse => 256,
    };
    let (lengths, widths) = (effort.points(&LENGTHS), effort.points(&WIDTHS));
    let grid = super::grid([&lengths, &widths, &[1]], |[length, width, _]| {
        let batch = Batch {
            q: operand(&[tokens, HEADS.0, width], dtype)?,
            k: operand(&[tokens, HEADS.1, width], dtype)?,
            offsets: (0..=tokens / length).map(|index| (index * length) as u32).collect(),
        };
        Ok(time(&batch)? / (tokens * HEADS.0) as f64)
    })?;
    // The third axis was there for the sake of `grid` only.
    Ok(grid.with_axes(2))
}
