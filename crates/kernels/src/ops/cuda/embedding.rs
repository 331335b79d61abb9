//! The gradient of an embedding.

use candle_core::{Result, Tensor};

use crate::gpu::{Argument, Launch, Source, element_name};

static SOURCE: Source = Source {
    name: "embedding",
    text: include_str!("embedding.cu"),
    headers: &[],
};

/// Adds dy (T, H) to the rows `ids` (U32) of `into` (V, H) F32. Where a token occurs more than once its sum is made in no
/// fixed order: the last bits may differ from run to run.
pub fn backward_add(dy: &Tensor, ids: &Tensor, into: &Tensor) -> Result<()> {
    let (tokens, hidden) = dy.dims2()?;
    let dy = dy.contiguous()?;
    let name = format!("embedding_backward_{}", element_name(dy.dtype()).unwrap_or_default());
    let launch = Launch {
        source: &SOURCE,
        kernel: &name,
        blocks: [tokens, 1, 1],
        threads: [256, 1, 1],
        shared_bytes: 0,
    };
    let arguments = [
        Argument::Tensor(&dy),
        Argument::Tensor(ids),
        Argument::Tensor(into),
        Argument::U32(hidden as u32),
    ];
    launch.run(into.device(), &arguments)
}
