//! Routing of tokens to experts, and their rows sorted by expert. Nothing is read by the host.

use candle_core::{DType, Result, Tensor};
use peft_tune_core::plan::products::{SORTED_AT_ONCE, most_tiles};

use crate::gpu::{Argument, GROUPS, Source, arguments, empty, source};
use crate::ops::offsets::{Offsets, OnDevice};
use crate::ops::routing::{Routing, Scores, Settings};

static SOURCE: Source = source!("routing", GROUPS);

/// Tokens of a block, a warp for each.
const WARPS: usize = 4;
/// Choices that a block sorts (routing.cu).
const CHUNK: usize = SORTED_AT_ONCE;

/// Whether there are kernels for so many experts.
pub(crate) fn takes(experts: usize) -> bool {
    (1..=1024).contains(&experts)
}

/// Routes every token; settings have been checked.
pub(crate) fn forward(logits: &Tensor, correction: Option<&Tensor>, settings: &Settings) -> Result<Routing> {
    let (logits, device) = (logits.contiguous()?, logits.device());
    let correction = correction
        .map(|correction| correction.to_dtype(DType::F32)?.contiguous())
        .transpose()?;
    let ((tokens, experts), chosen) = (logits.dims2()?, settings.chosen);
    let total = tokens * chosen;
    let scores = empty((tokens, experts), DType::F32, device)?;
    let (choices, unsorted) = (empty(total, DType::U32, device)?, empty(total, DType::F32, device)?);
    let (groups, best_groups) = settings.groups.unwrap_or((0, 0));
    let mut launch = SOURCE.launch("route", [tokens.div_ceil(WARPS), 1, 1], [32 * WARPS, 1, 1]);
    launch.shared_bytes = 4 * WARPS * (2 * experts + groups);
    let arguments = arguments! {
        &logits, correction.as_ref(), &scores, &choices, &unsorted, tokens as u32, experts as u32, chosen as u32,
        u32::from(settings.scores == Scores::Sigmoid), u32::from(settings.normalised), settings.scale, groups as u32,
        best_groups as u32,
    };
    launch.run(device, &arguments)?;
    let chunks = total.div_ceil(CHUNK);
    let counts = empty((chunks, experts), DType::U32, device)?;
    let sizes = (total as u32, experts as u32, chosen as u32);
    let launch = SOURCE.launch("count_choices", [chunks, 1, 1], [CHUNK, 1, 1]);
    launch.run(device, &arguments! { &choices, &counts, sizes.0, sizes.1 })?;
    let on_device = OnDevice {
        offsets: empty(experts + 1, DType::U32, device)?,
        map: empty((most_tiles(experts, total), 2), DType::U32, device)?,
    };
    let launch = SOURCE.launch("sum_counts", [1, 1, 1], [CHUNK, 1, 1]);
    let tiles = on_device.map.dim(0)? as u32;
    let arguments = arguments! { &counts, &on_device.offsets, &on_device.map, chunks as u32, sizes.1, tiles };
    launch.run(device, &arguments)?;
    let of_tokens = empty(total, DType::U32, device)?;
    let (rows, weights) = (
        empty((tokens, chosen), DType::U32, device)?,
        empty(total, DType::F32, device)?,
    );
    let launch = SOURCE.launch("place_choices", [chunks, 1, 1], [CHUNK, 1, 1]);
    let arguments = arguments! { &choices, &unsorted, &counts, &of_tokens, &rows, &weights, sizes.0, sizes.1, sizes.2 };
    launch.run(device, &arguments)?;
    Ok(Routing {
        scores,
        weights,
        tokens: of_tokens,
        rows,
        offsets: Offsets::of_device(experts, total, on_device),
    })
}

/// The gradient of the logits from that of the weights; shapes have been checked.
pub(crate) fn backward(routing: &Routing, d_weights: &Tensor, settings: &Settings) -> Result<Tensor> {
    let d_weights = d_weights.to_dtype(DType::F32)?.contiguous()?;
    let ((tokens, experts), device) = (routing.scores.dims2()?, d_weights.device());
    let d_logits = empty((tokens, experts), DType::F32, device)?;
    let mut launch = SOURCE.launch("route_backward", [tokens.div_ceil(WARPS), 1, 1], [32 * WARPS, 1, 1]);
    launch.shared_bytes = 4 * WARPS * experts;
    let arguments = arguments! {
        &routing.scores, &routing.offsets.on_device(device)?.offsets, &routing.rows, &routing.weights, &d_weights,
        &d_logits, tokens as u32, experts as u32, settings.chosen as u32, u32::from(settings.scores == Scores::Sigmoid),
        u32::from(settings.normalised), settings.scale,
    };
    launch.run(device, &arguments)?;
    Ok(d_logits)
}
